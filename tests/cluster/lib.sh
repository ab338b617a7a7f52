# Sourced by the other scripts of this folder: the places of files, and the processes of a cluster made of plain
# processes ("bare").
# A bare node is a network namespace with its own containerd, kubelet, kube-proxy and DNS.
# shellcheck shell=bash
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/cprjob
BIN=${CPR_CLUSTER_BIN:-$CACHE/bin}
if [ "$(id -u)" = 0 ]; then RUN=${CPR_CLUSTER_RUN:-/var/lib/cprjob-cluster}; else RUN=${CPR_CLUSTER_RUN:-$CACHE/cluster}; fi
NODES=${CPR_CLUSTER_NODES:-3} # at most 6
SERVICES=10.96.0.0/16 PODS=10.244 HOSTS=10.213.0 DNS=169.254.20.10
API=$HOSTS.1
KIND_NODE=${KIND_NODE_IMAGE:-kindest/node:v1.35.0}
export PATH=$PATH:$BIN KUBECONFIG=$RUN/kubeconfig/admin

wait_until() { # wait_until SECONDS WHAT COMMAND...: try again until the command succeeds
  local within_s=$1 what=$2 begun=$SECONDS; shift 2
  until "$@" >/dev/null 2>&1; do
    [ $((SECONDS - begun)) -lt "$within_s" ] || die "not within $within_s s: $what; see $RUN/log"
    sleep 0.25
  done
}

say() { echo "cluster: $*" >&2; }
die() { say "$@"; exit 1; }

# Succeeds if the daemon has kind's node image or can pull it; one that the user names is not checked.
has_node_image() {
  [ -n "${KIND_NODE_IMAGE:-}" ] || docker image inspect "$KIND_NODE" >/dev/null 2>&1 || timeout 10 docker manifest inspect "$KIND_NODE" >/dev/null 2>&1
}

# The way to a cluster on this machine, or the reason why there is none: kind where a Docker daemon runs and has a node image, else bare.
backend() {
  local no_kind="no kind with a running Docker daemon and a node image (KIND_NODE_IMAGE)"
  if [ -n "${CPR_CLUSTER_BACKEND:-}" ]; then echo "$CPR_CLUSTER_BACKEND"; return; fi
  if command -v kind >/dev/null && docker info >/dev/null 2>&1 && has_node_image; then echo kind; return; fi
  [ "$(id -u)" = 0 ] || { echo "$no_kind, and no root for a cluster of plain processes"; return 1; }
  command -v apt-get >/dev/null || { echo "$no_kind, and no Debian to install containerd on"; return 1; }
  [ -x "$BIN/kubelet" ] || command -v go >/dev/null || { echo "no Go to build Kubernetes with, and no binaries in $BIN"; return 1; }
  echo bare
}

# Our own children only: a pid counts while the process that started under it still runs, so its start time is recorded too.
# A killed one without a wait (Z) does not.
started() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | awk '$1 != "Z" {print $20}'; }
spawn() { # spawn NAME COMMAND...; fd 9 is the lock of cluster.sh
  local name=$1; shift
  setsid "$@" >>"$RUN/log/$name.log" 2>&1 </dev/null 9>&- &
  echo "$! $(started $!)" >"$RUN/pid/$name"
}
alive() { # alive NAME
  local pid start; [ -f "$RUN/pid/$1" ] && read -r pid start <"$RUN/pid/$1" && [ -n "$start" ] && [ "$(started "$pid")" = "$start" ]
}
reap() { # reap NAME: returns when the process has ended, so that it can be started again at once
  local pid; alive "$1" || return 0
  read -r pid _ <"$RUN/pid/$1"
  kill -KILL "$pid" 2>/dev/null || true
  wait_until 30 "$1 has ended" ended "$1"
}
ended() { ! alive "$1"; }
# Fails unless there is exactly one child, so that a fault that did not happen is not a riddle for the test that waits for its effect.
kill_child() { # kill_child SCRIPT NODE CONTAINER SHELL...: SHELL reads commands on the node from its input
  local pid; pid=$("$1" ctr "$2" tasks ls | awk -v id="$3" '$1 == id {print $2}'); shift 3
  [ -n "$pid" ] || die "the container has no process"
  "$@" -s "$pid" <<'S'
set -eu
set -- "$1" $(cat "/proc/$1/task/$1/children")
[ $# = 2 ] || { echo "process $1 has $(($# - 1)) children" >&2; exit 1; }
kill -KILL "$2"
S
}
bridge() { # bridge NAME ADDRESS: without a MAC of its own it takes its lowest port's, and who knew the one before talks to nobody
  ip link add "$1" address 02:63:70:72:6a:01 type bridge
  ip addr add "$2" dev "$1"
  ip link set "$1" up
}
in_node() { local n=$1; shift; nsenter --net="/var/run/netns/cprjob-$n" -- "$@"; }

cert() { # cert NAME SUBJECT [SAN]
  local p=$RUN/pki; [ ! -f "$p/$1.crt" ] || return 0
  openssl req -newkey rsa:2048 -nodes -keyout "$p/$1.key" -out "$p/$1.csr" -subj "$2" 2>/dev/null
  openssl x509 -req -in "$p/$1.csr" -CA "$p/ca.crt" -CAkey "$p/ca.key" -CAcreateserial -days 365 -out "$p/$1.crt" \
    -extfile <(echo extendedKeyUsage=serverAuth,clientAuth; [ -z "${3:-}" ] || echo "subjectAltName=$3") 2>/dev/null
}
kubeconfig() { # kubeconfig NAME SERVER CERT
  cat >"$RUN/kubeconfig/$1" <<K
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://$2:6443", certificate-authority: $RUN/pki/ca.crt}}]
users: [{name: u, user: {client-certificate: $RUN/pki/$3.crt, client-key: $RUN/pki/$3.key}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
K
}
