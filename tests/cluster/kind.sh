#!/usr/bin/env bash
# The cluster where a Docker daemon runs: kind.sh start|stop|up|load NAME|ctr NODE ARGS...
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
name=${CPR_CLUSTER_NAME:-cprjob}
command=${1:-}; [ $# -eq 0 ] || shift
case $command in
  up)    kind get clusters 2>/dev/null | grep -qx "$name" ;;
  start) mkdir -p "$RUN/kubeconfig" "$RUN/images"
         kind create cluster --name "$name" --config "$root/examples/kind.yaml" --kubeconfig "$KUBECONFIG" --wait 120s ;;
  stop)  kind delete cluster --name "$name" ;;
  load)  # an image packed here, or one of the daemon; neither sends what the nodes have
         if [ -d "$RUN/images/$1" ]; then
           for node in $(kind get nodes --name "$name"); do python3 "$here/oci.py" load "$RUN/images/$1" "localhost/cprjob-$1:dev" docker exec -i "$node" ctr -n k8s.io; done
         else
           kind load docker-image --name "$name" "localhost/cprjob-$1:dev"
         fi ;;
  ctr)   node=$1; shift; docker exec "$node" ctr -n k8s.io "$@" ;;
  *)     echo "usage: kind.sh up|start|stop|load NAME|ctr NODE ARGS..." >&2; exit 2 ;;
esac
