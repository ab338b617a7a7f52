#!/usr/bin/env bash
# Build Kubernetes and its companions from the Go module proxy into $BIN, each once: binaries.sh NAME...
# On 2 cores: kubernetes 3.5 min, minio 2, versitygw 2, coredns 2, helm 1.5, promtool and prometheus 2, kueue 4, etcd 0.6, kubectl 0.5. Needs Go >= 1.25.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
K8S=v1.35.4 # the newest whose staging modules are all published; 1.35 still runs on cgroup v1
work=$(mktemp -d)
exec 8>&2 # where a failed build's last words go
trap 'status=$?; [ $status = 0 ] || tail -n 40 "$work/log" >&8; rm -rf "$work"' EXIT
mkdir -p "$BIN"
export CGO_ENABLED=0 GOBIN=$BIN GOFLAGS=-mod=mod

kubernetes() { # kubernetes COMMAND...
  local upstream c v=k8s.io/component-base/version
  mkdir -p "$work/$1"; cd "$work/$1"
  go mod download -json "k8s.io/kubernetes@$K8S" >mod.json
  upstream=$(python3 -c 'import json; print(json.load(open("mod.json"))["GoMod"])')
  # k8s.io/kubernetes replaces its staging modules by folders that the module's archive lacks: use the published ones.
  { printf 'module build\ngo 1.25\nrequire k8s.io/kubernetes %s\n' $K8S
    sed -nE "s#^[[:space:]]+(k8s\.io/[^ ]+) => \./staging/src/.*#replace \1 => \1 v0.${K8S#v1.}#p" "$upstream"; } >go.mod
  { printf '//go:build tools\n\npackage build\nimport (\n'
    for c in "$@"; do echo "_ \"k8s.io/kubernetes/cmd/$c\""; done
    echo ')'; } >tools.go
  go mod tidy
  go build -trimpath -ldflags "-s -w -X $v.gitVersion=$K8S -X $v.gitMajor=1 -X $v.gitMinor=35" -o "$BIN/" "${@/#/k8s.io/kubernetes/cmd/}"
}
etcd() {
  mkdir "$work/etcd"; cd "$work/etcd"
  printf 'module build\ngo 1.25\nrequire go.etcd.io/etcd/server/v3 v3.6.5\n' >go.mod
  printf '//go:build tools\n\npackage build\nimport _ "go.etcd.io/etcd/server/v3"\n' >tools.go
  go mod tidy
  go build -trimpath -ldflags "-s -w" -o "$BIN/etcd" go.etcd.io/etcd/server/v3
}
release() { cd "$work"; go install -trimpath -ldflags "-s -w" "$@"; }
# Of the ways to find targets Kubernetes alone: the others bring the clients of all clouds.
prometheus() { release -tags remove_all_sd,enable_kubernetes_sd "github.com/prometheus/prometheus/cmd/$1@v0.316.0"; }
kueue() { # and its chart, which has the resource definitions
  release sigs.k8s.io/kueue/cmd/kueue@v0.15.0
  cd "$work"; go mod download -json sigs.k8s.io/kueue@v0.15.0 >mod.json
  rm -rf "$BIN/kueue-chart"
  cp -r "$(python3 -c 'import json; print(json.load(open("mod.json"))["Dir"])')/charts/kueue" "$BIN/kueue-chart"
  chmod -R u+w "$BIN/kueue-chart"
}
azurite() { # for data in abfss://; no cluster needs it
  command -v npm >/dev/null || die "azurite-blob is missing, and there is no npm to install it with"
  npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$BIN/azurite" azurite@3.35.0
  ln -sf azurite/node_modules/.bin/azurite-blob "$BIN/azurite-blob"
}
build() {
  case $1 in
    kubernetes) kubernetes kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet ;;
    kubectl)    kubernetes kubectl ;;
    etcd)       etcd ;;
    coredns)    release github.com/coredns/coredns@v1.15.0 ;;
    kwok)       release sigs.k8s.io/kwok/cmd/kwok@v0.7.0 ;;
    minio)      release github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c ;;
    versitygw)  release github.com/versity/versitygw/cmd/versitygw@v1.8.0 ;;
    helm)       release helm.sh/helm/v4/cmd/helm@v4.3.1 ;;
    kueue)      kueue ;;
    azurite-blob) azurite ;;
    promtool|prometheus) prometheus "$1" ;;
    *)          die "unknown: $1" ;;
  esac
}

for name in "$@"; do
  case $name in
    kubernetes) have=$BIN/kubelet ;;
    kubectl|helm) have=$(command -v "$name") || have=$BIN/$name ;; # one of the machine's own serves
    *) have=$BIN/$name ;;
  esac
  [ ! -x "$have" ] || continue
  command -v go >/dev/null || die "$name is missing, and there is no Go to build it with"
  say "building $name (once)"
  begun=$SECONDS
  build "$name" >"$work/log" 2>&1
  say "built $name in $((SECONDS - begun)) s"
done
