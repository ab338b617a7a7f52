#!/usr/bin/env bash
# Make localhost/python:base (Debian bookworm, Python 3.11) for machines that reach no image registry: once, about 45 s.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
! buildah images -q localhost/python:base 2>/dev/null | grep -q . || exit 0
say "making the base image (once)"
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$tree" >/dev/null
rm -rf "$tree"/var/cache/apt/* "$tree"/var/lib/apt/lists/*
container=$(buildah from scratch)
buildah add -q "$container" "$tree" / >/dev/null
buildah config --cmd '["python3"]' "$container"
buildah commit -q "$container" localhost/python:base >/dev/null
buildah rm "$container" >/dev/null
