#!/usr/bin/env bash
# Make localhost/python:base (Debian bookworm, Python 3.11) for machines that reach no image registry: once, about 45 s.
#   base_image.sh buildah|docker   who shall have it; needs root and debootstrap
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
image=localhost/python:base
! "$1" images -q $image 2>/dev/null | grep -q . || exit 0
{ [ "$(id -u)" = 0 ] && command -v debootstrap >/dev/null; } ||
  die "no registry has the Dockerfile's base image: name one by CPR_BASE, or install debootstrap and be root to make it here"
say "making the base image (once)"
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$tree" >/dev/null
rm -rf "$tree"/var/cache/apt/* "$tree"/var/lib/apt/lists/*
if [ "$1" = docker ]; then
  tar -C "$tree" -c . | docker import --change 'CMD ["python3"]' - $image >/dev/null
else
  container=$(buildah from scratch)
  buildah add -q "$container" "$tree" / >/dev/null
  buildah config --cmd '["python3"]' "$container"
  buildah commit -q "$container" $image >/dev/null
  buildah rm "$container" >/dev/null
fi
