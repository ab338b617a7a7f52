#!/usr/bin/env bash
# The cluster where a Docker daemon runs, its nodes by number (1 is the stable worker), their faults and their images:
#   kind.sh up|down|status   a stopped node of a cluster that is there is started again
#   kind.sh cut|join N       a network partition: the node and its pods live on, unreachable
#   kind.sh kill|start N     power failure and return
#   kind.sh block|unblock A B    node A gets no packets of node B and its pods: a one-way cut
#   kind.sh load NAME [N...] an image onto nodes (all of them, or those named)
#   kind.sh ctr N ARGS...    containerd's own client on that node
#   kind.sh kill-child N ID  SIGKILL to the one child of a container's first process
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
name=cprjob-test # cprjob is that of docs/kind.md

node() { echo "$name-worker$([ "$1" = 1 ] || echo "$1")"; }
containers() { kind get nodes --name "$name" 2>/dev/null | grep "^$name-"; }
stopped() { containers | xargs -r docker inspect -f '{{if not .State.Running}}{{.Name}}{{end}}' | grep -q .; }
nft() { docker exec -i "$(node "$1")" nft -f -; }
drop() { docker exec "$(node "$1")" nft delete table inet "$2"; }
address() { docker inspect -f '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}' "$1"; }

status() { # all of it runs, and answers
  containers >/dev/null && ! stopped && kubectl get --raw /readyz --request-timeout=5s >/dev/null 2>&1
}

up() {
  mkdir -p "$RUN"/{kubeconfig,images,log}
  if containers >/dev/null; then
    containers | xargs docker start >/dev/null
    kind export kubeconfig --name "$name" --kubeconfig "$KUBECONFIG"
  else
    kind create cluster --name "$name" --config "$root/examples/kind.yaml" --image "$KIND_NODE" --kubeconfig "$KUBECONFIG" --wait 120s
  fi
  wait_until 60 "the API server is ready" kubectl get --raw /readyz
}

load() { # load NAME [NUMBER...]: other projects' servers are packed here, ours are the daemon's; what a node has is not sent again
  local image=$1 i nodes=(); shift
  [ $# -gt 0 ] || set -- $(seq "$NODES")
  for i in "$@"; do nodes+=("$(node "$i")"); done
  if [ -d "$RUN/images/$image" ]; then
    for i in "${nodes[@]}"; do
      python3 "$here/oci.py" load "$RUN/images/$image" "localhost/cprjob-$image:dev" docker exec -i "$i" ctr -n k8s.io
    done
  else
    kind load docker-image --name "$name" --nodes "$(IFS=,; echo "${nodes[*]}")" "localhost/cprjob-$image:dev"
  fi
}

command=${1:-}; [ $# -eq 0 ] || shift
case $command in
  up|status) "$command" ;;
  down)    kind delete cluster --name "$name" ;;
  cut)     nft "$1" <<N
table inet cprjob_cut {
  chain arriving { type filter hook prerouting priority -300; iifname "eth*" drop; }
  chain leaving { type filter hook postrouting priority 300; oifname "eth*" drop; }
}
N
    ;;
  join)    drop "$1" cprjob_cut 2>/dev/null || true ;; # of a node that was not cut, or has no power, there is nothing to undo
  kill)    docker kill "$(node "$1")" >/dev/null ;;
  start)   docker start "$(node "$1")" >/dev/null ;;
  block)   nft "$1" <<N
table inet cprjob_block_$2 {
  chain c { type filter hook prerouting priority -300; ip saddr { $(address "$(node "$2")"), $(kubectl get node "$(node "$2")" -o 'jsonpath={.spec.podCIDR}') } drop; }
}
N
    ;;
  unblock) drop "$1" "cprjob_block_$2" ;;
  load)    load "$@" ;;
  ctr)     n=$1; shift; docker exec "$(node "$n")" ctr -n k8s.io "$@" ;;
  kill-child) kill_child "$here/kind.sh" "$1" "$2" docker exec -i "$(node "$1")" sh ;;
  *)       sed -n '2,9s/^# //p' "$0" >&2; exit 2 ;;
esac
