#!/usr/bin/env bash
# Build images, each by its name with % in the place of the target: images.sh NAME [operator|trainer|operator-next]...
#   images.sh cprjob-%:0.1.0         what `make images` builds: the names of the chart and of the examples
# The test cluster's are localhost/cprjob-%:dev. Its operator-next is made of its operator: what a release with the next contract version would be.
# With buildah where it can make its own base image, as for the bare cluster, else with docker. kind finds them in the daemon either way.
# The machine's certificates are shown to pip: a proxy's may be among them.
#   CPR_BASE     the base image, with Python >= 3.11 (default: the Dockerfile's; one made here with buildah, or where no registry has it)
#   CPR_WHEELS   a folder with the CPU build of torch; without one torch comes from the package index, with its CUDA libraries
#   CPR_SOURCE   a folder with the files of another release (default: this checkout). Layers of requirements that it shares are not built again
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
wheels=${CPR_WHEELS-$root/../shared/wheels}
source=${CPR_SOURCE:-$root}
certificates=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}
[ $# -gt 0 ] || { sed -n '2,3s/^# \{0,1\}//p' "$0" >&2; exit 2; }
name=$1; shift
[ $# -gt 0 ] || set -- operator trainer

docker_has() { docker image inspect "$1" >/dev/null 2>&1 || docker pull --quiet "$1" >/dev/null 2>&1; }

options=()
if ls "$wheels"/torch-*+cpu-cp311-*.whl >/dev/null 2>&1; then
  options+=(--build-context "wheels=$(cd "$wheels" && pwd)" --build-arg TORCH=torch-cpu)
fi
if [ -f "$certificates" ]; then
  options+=(--secret "id=certificates,src=$certificates" --build-arg PIP_CERT=/run/secrets/certificates)
fi
if [ "$(id -u)" = 0 ] && command -v buildah >/dev/null && command -v debootstrap >/dev/null; then
  if [ -z "${CPR_BASE:-}" ]; then "$here/base_image.sh" buildah; CPR_BASE=localhost/python:base; fi
  # chroot: it asks least of the machine.
  build=(buildah bud --layers --isolation chroot --network host)
  # The Dockerfile of another release may lack the secret: Debian's pip trusts what lies here.
  [ "$source" = "$root" ] || [ ! -f "$certificates" ] || build+=(-v "$certificates:/etc/ssl/certs/ca-certificates.crt:ro")
elif docker buildx version >/dev/null 2>&1; then
  if [ -z "${CPR_BASE:-}" ] && ! docker_has "$(sed -n 's/^ARG BASE=//p' "$root/Dockerfile")"; then
    "$here/base_image.sh" docker; CPR_BASE=localhost/python:base
  fi
  build=(docker buildx build --load)
else
  die "nothing here builds images: install buildah and debootstrap and be root, or install Docker's buildx"
fi
[ -z "${CPR_BASE:-}" ] || options+=(--build-arg "BASE=$CPR_BASE")
log=$(mktemp)
trap 'rm -f "$log"' EXIT
logged() { "$@" >"$log" 2>&1 || { tail -n 40 "$log" >&2; die "the $target image does not build"; }; }
for target in "$@"; do
  image=${name/\%/$target}
  case $target in
    operator-next) what=(-f "$here/next.Dockerfile" "$here") ;;
    *)             what=(${options[@]+"${options[@]}"} --target "$target" "$source") ;; # an empty array is unset to macOS's bash
  esac
  echo "building $image" >&2
  logged "${build[@]}" -t "$image" "${what[@]}"
  if [ "${build[0]}" = buildah ] && [ "$(backend 2>/dev/null || true)" = kind ]; then
    id=$(buildah images -q --no-trunc "$image")
    [ "$(docker image inspect -f '{{.Id}}' "$image" 2>/dev/null)" = "$id" ] || logged buildah push -q "$image" "docker-daemon:$image"
  fi
done
