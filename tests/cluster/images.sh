#!/usr/bin/env bash
# Build the images, localhost/cprjob-{operator,trainer,operator-next}:dev, with docker where a daemon runs, else with buildah: images.sh [operator|trainer|operator-next]...
# operator-next is made of the operator's image: what a release with the next contract version would be.
#   CPR_BASE     the base image, with Python >= 3.11 (default: the Dockerfile's; with buildah one made here)
#   CPR_WHEELS   a folder with the CPU build of torch; without one torch comes from the package index, with its CUDA libraries
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
wheels=${CPR_WHEELS-$root/../shared/wheels}
certificates=/etc/ssl/certs/ca-certificates.crt
[ $# -gt 0 ] || set -- operator trainer operator-next

options=()
if ls "$wheels"/torch-*+cpu-cp311-*.whl >/dev/null 2>&1; then
  options+=(--build-context "wheels=$(cd "$wheels" && pwd)" --build-arg TORCH=torch-cpu)
fi
if docker info >/dev/null 2>&1; then
  build=(docker build)
else
  if [ -z "${CPR_BASE:-}" ]; then "$here/base_image.sh"; CPR_BASE=localhost/python:base; fi
  # chroot: it asks least of the machine. Its own certificates, because a proxy's may be among them.
  build=(buildah bud --layers --isolation chroot --network host)
  [ ! -f $certificates ] || build+=(-v "$certificates:$certificates:ro")
fi
[ -z "${CPR_BASE:-}" ] || options+=(--build-arg "BASE=$CPR_BASE")
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for target in "$@"; do
  case $target in
    operator-next) what=(-f "$here/next.Dockerfile" "$here") ;;
    *)             what=("${options[@]}" --target "$target" "$root") ;;
  esac
  "${build[@]}" -t "localhost/cprjob-$target:dev" "${what[@]}" >"$log" 2>&1 || { tail -n 40 "$log" >&2; die "the $target image does not build"; }
done
