#!/usr/bin/env bash
# The test cluster: three nodes, MinIO, the images, the operator.
#   cluster.sh up            all of it; what is there already stays, what changed is replaced
#   cluster.sh prepare       only what is installed and compiled once
#   cluster.sh images        only the images: of this checkout, and of the release before
#   cluster.sh with NAME...  prometheus and operator-next, which only some tests need, on the nodes of a cluster that is up
#   cluster.sh down          stop it (bare nodes keep their images for the next time, unless PURGE=1)
#   cluster.sh status        what runs; fails when nothing does
#   cluster.sh backend       kind | bare, or why this machine can have no cluster
#   cluster.sh kubeconfig    the path of the administrator's kubeconfig
# CPR_CLUSTER_BACKEND=kind|bare overrides the choice; CPR_CLUSTER_OPERATOR=no leaves the operator out.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

is_up() {
  case $backend in
    kind) "$here/kind.sh" status ;;
    bare) "$here/control_plane.sh" status ;;
  esac
}

start() {
  local i
  if [ "$backend" = kind ]; then
    is_up || "$here/kind.sh" up
    for i in $(seq "$NODES"); do "$here/kind.sh" join "$i"; done # undo a fault that an aborted test left
  else
    if ! is_up; then
      "$here/control_plane.sh" stop # what an earlier run left: its processes may be gone, its networks not
      "$here/control_plane.sh" start
    fi
    for i in $(seq "$NODES"); do
      [ ! -e "/sys/class/net/cprjobv$i" ] || "$here/node.sh" join "$i" # the same
      "$here/node.sh" start "$i"
    done
    wait_until 60 "$NODES nodes are registered" registered
    kubectl label node node1 cprjob.io/stable=true --overwrite >/dev/null
  fi
  kubectl wait --for=condition=Ready node --all --timeout=90s >/dev/null
  kubectl uncordon $(kubectl get nodes -o 'jsonpath={.items[*].metadata.name}') >/dev/null
}

registered() { [ "$(kubectl get nodes -o name | wc -l)" = "$NODES" ]; }

export_image() { # export_image NAME: from buildah's store into a layout folder; zstd: containerd unpacks it 1.6 times as fast as gzip
  local layout=$RUN/images/$1 id; id=$(buildah images -q --no-trunc "localhost/cprjob-$1:dev")
  [ "$(cat "$layout.id" 2>/dev/null)" != "$id" ] || return 0
  python3 "$here/registry.py" "$layout" buildah push -q --tls-verify=false --compression-format zstd "localhost/cprjob-$1:dev" "docker://ADDRESS/$1:dev"
  python3 "$here/oci.py" prune "$layout"
  echo "$id" >"$layout.id"
}

pack() { # pack NAME: the image of a server of another project
  [ -f "$RUN/images/$1/index.json" ] || python3 "$here/oci.py" pack "$BIN/$1" "/$1" "$RUN/images/$1"
}

load_image() {
  local nodes=(); mapfile -t nodes < <(seq "$NODES")
  case $backend/$1 in
    */minio|*/versitygw|*/prometheus) pack "$1" ;;
    bare/*)                           export_image "$1" ;;
  esac
  case $1 in minio|prometheus|*-before) nodes=(1) ;; esac # they run on the stable node only
  if [ "$backend" = kind ]; then
    "$here/kind.sh" load "$1" "${nodes[@]}"
  else
    "$here/node.sh" load "$RUN/images/$1" "localhost/cprjob-$1:dev" "${nodes[@]}"
  fi
}

images() {
  "$here/images.sh" localhost/cprjob-%:dev operator trainer
  before
}

before() { # the release before, which tests/support/previous_release.py names, as operator-before and trainer-before; it never changes
  local files commit; commit=$(sed -n 's/^COMMIT = "\(.*\)"/\1/p' "$here/../support/previous_release.py")
  git -C "$root" cat-file -e "$commit^{commit}" 2>/dev/null || return 0 # the test of the upgrade skips
  if [ "$(cat "$RUN/before" 2>/dev/null)" = "$commit" ] && has operator-before && has trainer-before; then return; fi
  files=$(mktemp -d)
  git -C "$root" archive "$commit" | tar -x -C "$files"
  CPR_SOURCE=$files "$here/images.sh" localhost/cprjob-%-before:dev operator trainer
  rm -rf "$files"
  echo "$commit" >"$RUN/before"
}

has() { # has NAME: an image of ours is built
  if [ "$backend" = kind ]; then docker image inspect "localhost/cprjob-$1:dev" >/dev/null 2>&1; else buildah images -q "localhost/cprjob-$1:dev" >/dev/null 2>&1; fi
}

load_before() { # what these images share with today's is neither compressed nor sent to a node again
  local name
  [ -f "$RUN/before" ] || return 0
  for name in operator trainer; do
    if [ "$backend" = bare ] && [ ! -d "$RUN/images/$name-before" ]; then
      mkdir "$RUN/images/$name-before"
      cp -al "$RUN/images/$name/blobs" "$RUN/images/$name-before"
    fi
    load_image "$name-before"
  done
}

with() {
  local name
  exec 9>"$RUN/lock"; flock 9
  for name in "$@"; do
    case $name in
      prometheus)    "$here/binaries.sh" prometheus ;;
      operator-next) "$here/images.sh" localhost/cprjob-%:dev operator-next ;;
      *)             die "unknown: $name" ;;
    esac
    load_image "$name"
  done
}

install_operator() { # the annotation rolls the Deployment when the image behind the same tag is another one
  local id said
  if [ "$backend" = kind ]; then id=$(docker image inspect -f '{{.Id}}' localhost/cprjob-operator:dev); else id=$(cat "$RUN/images/operator.id"); fi
  if ! said=$(helm upgrade --install cprjob "$root/charts/cprjob" --namespace cprjob-system --create-namespace --take-ownership \
    --wait --timeout 60s --set image.repository=localhost/cprjob-operator,image.tag=dev \
    --set-string 'nodeSelector.cprjob\.io/stable=true' --set-string "podAnnotations.cprjob\.io/image-id=$id" 2>&1); then
    kubectl -n cprjob-system logs -l app.kubernetes.io/name=cprjob --tail 20 >&2 || true
    die "the operator does not become ready: $said"
  fi
}

prepare() {
  mkdir -p "$RUN/images"
  exec 9>"$RUN/lock"; flock 9 # two of us would start everything twice
  if [ "$backend" = bare ]; then
    "$here/packages.sh"
    "$here/binaries.sh" kubernetes kubectl etcd coredns minio versitygw helm promtool cert-manager-crds
  else
    "$here/binaries.sh" kubectl minio versitygw helm promtool cert-manager-crds
  fi
}

up() {
  local name
  prepare
  images
  start
  for name in operator trainer minio versitygw; do load_image $name; done
  load_before
  kubectl apply -f "$here/manifests/minio.yaml" >/dev/null
  kubectl -n cprjob-store rollout status deployment/minio --timeout=90s >/dev/null
  [ "${CPR_CLUSTER_OPERATOR:-}" = no ] || install_operator
  say "up: export KUBECONFIG=$KUBECONFIG"
}

backend=$(backend) || die "$backend"
case ${1:-} in
  up)         up ;;
  prepare)    prepare ;;
  images)     prepare; images ;;
  with)       shift; with "$@" ;;
  down)       if [ "$backend" = kind ]; then "$here/kind.sh" down; else "$here/control_plane.sh" stop; fi ;;
  status)     is_up || { echo down; exit 1; }
              kubectl get nodes
              kubectl get pods --all-namespaces -o wide ;;
  backend)    echo "$backend" ;;
  kubeconfig) echo "$KUBECONFIG" ;;
  *)          sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
