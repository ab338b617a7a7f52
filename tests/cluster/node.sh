#!/usr/bin/env bash
# A node of the bare cluster, its faults and its images:
#   node.sh cut|join N       a network partition: the node and its pods live on, unreachable
#   node.sh kill|start N     power failure and return
#   node.sh block|unblock A B    node A gets no packets of node B and its pods: a one-way cut
#   node.sh slow|fast N      2 Mbit/s to and from the node
#   node.sh lossy|lossless N     every tenth packet that arrives at the node is lost
#   node.sh shut|open N PORT     packets to a port on the node are lost
#   node.sh halt N DAEMON    SIGKILL to its kubelet, containerd, proxy or dns; `start` brings it back
#   node.sh squeeze|relax N  the kubelet finds too little memory on the node, and evicts pods
#   node.sh load LAYOUT NAME [N...]    an OCI layout folder onto nodes (all of them, or those named)
#   node.sh ctr N ARGS...    containerd's own client on that node
#   node.sh kill-child N ID  SIGKILL to the one child of a container's first process
#   node.sh oom N ID         fill a container's memory until the kernel kills the process that works in it
#   node.sh freeze-thread N ID I    stop one thread of a container's process by its number (0: the main one), until `thaw-thread N ID`
#   node.sh throttle N ID    let a container's processes run a fifth of the time, until `unthrottle N ID`
#   node.sh calm N           undo slow, lossy, shut and squeeze, whichever are in force
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

network() { # network NUMBER: the node's network namespace, once
  local i=$1 n=node$1 ip=$HOSTS.$((10 + $1)) other
  [ ! -e "/var/run/netns/cprjob-$n" ] || return 0
  ip netns add "cprjob-$n"
  ip link add "cprjobv$i" type veth peer name eth0 netns "cprjob-$n"
  ip link set "cprjobv$i" master cprjob up
  ip -n "cprjob-$n" link set lo up
  ip -n "cprjob-$n" addr add "$ip/24" dev eth0
  ip -n "cprjob-$n" link set eth0 up
  # Empty bridges stand in for dummy devices. There is no default route: nothing in a node can leave the machine.
  ip -n "cprjob-$n" link add svc0 type bridge
  ip -n "cprjob-$n" link set svc0 up
  ip -n "cprjob-$n" route add $SERVICES dev svc0
  ip -n "cprjob-$n" link add dns0 type bridge
  ip -n "cprjob-$n" addr add $DNS/32 dev dns0
  ip -n "cprjob-$n" link set dns0 up
  in_node "$n" sysctl -qw net.ipv4.ip_forward=1
  ip route add "$PODS.$i.0/24" via "$ip"
  for other in 1 2 3 4 5 6; do
    [ "$other" = "$i" ] || ip -n "cprjob-$n" route add "$PODS.$other.0/24" via "$HOSTS.$((10 + other))"
  done
}

configure() { # configure NUMBER FOLDER
  local i=$1 d=$2
  cat >"$d/cni/10-bridge.conflist" <<C
{"cniVersion":"0.4.0","name":"cprjob","plugins":[{"type":"bridge","bridge":"cni0","isGateway":true,"ipMasq":false,"hairpinMode":true,
 "ipam":{"type":"host-local","dataDir":"$d/ipam","ranges":[[{"subnet":"$PODS.$i.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}},
 {"type":"portmap","capabilities":{"portMappings":true}}]}
C
  cat >"$d/containerd.toml" <<C
version = 2
root = "$d/containerd"
state = "$d/run"
[grpc]
  address = "$d/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$d/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
C
  cat >"$d/kubelet.yaml" <<C
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /cprjob-node$i
containerRuntimeEndpoint: unix://$d/containerd.sock
authentication: {x509: {clientCAFile: $RUN/pki/ca.crt}, anonymous: {enabled: false}, webhook: {enabled: true}}
authorization: {mode: Webhook}
tlsCertFile: $RUN/pki/node$i.crt
tlsPrivateKeyFile: $RUN/pki/node$i.key
clusterDNS: [$DNS]
clusterDomain: cluster.local
resolvConf: /dev/null
podLogsDir: $d/logs
failSwapOn: false
nodeStatusUpdateFrequency: 2s
syncFrequency: 10s
nodeLeaseDurationSeconds: 8
evictionHard: {memory.available: 200Mi}
imageGCHighThresholdPercent: 100
C
}

cgroups() { # cgroups NAME: the kubelet wants its root cgroup to exist
  local c
  if [ -e /sys/fs/cgroup/cgroup.controllers ]; then mkdir -p "/sys/fs/cgroup/$1"; return; fi
  for c in /sys/fs/cgroup/*/; do case $c in */unified/) ;; *) mkdir -p "$c/$1" ;; esac; done
  for c in cpus mems; do cat "/sys/fs/cgroup/cpuset/cpuset.$c" >"/sys/fs/cgroup/cpuset/$1/cpuset.$c"; done
}

kubelet() { # kubelet NUMBER
  local n=node$1; local d=$RUN/$n
  spawn "$n-kubelet" nsenter "--net=/var/run/netns/cprjob-$n" -- "$BIN/kubelet" --config "$d/kubelet.yaml" --kubeconfig "$RUN/kubeconfig/$n" \
    --root-dir "$d/kubelet" --cert-dir "$d/kubelet/pki" --hostname-override "$n" --node-ip "$HOSTS.$((10 + $1))" --v=1
}

start() { # start NUMBER: what does not run yet
  local i=$1 n=node$1 ip=$HOSTS.$((10 + $1)); local d=$RUN/$n
  mkdir -p "$d"/{cni,containerd,run,kubelet}
  cert "$n" "/O=system:nodes/CN=system:node:$n" "IP:$ip,DNS:$n"
  kubeconfig "$n" "$API" "$n"
  network "$i"; configure "$i" "$d"; cgroups "cprjob-$n"
  # nsenter, not 'ip netns exec': that mounts a fresh /sys and hides the cgroups.
  local in=(nsenter "--net=/var/run/netns/cprjob-$n" --)
  alive "$n-containerd" || spawn "$n-containerd" "${in[@]}" containerd -c "$d/containerd.toml"
  wait_until 60 "$n's containerd answers" ctr -a "$d/containerd.sock" version
  load "$RUN/images/pause" localhost/pause:1 "$i"
  alive "$n-kubelet" || kubelet "$i"
  alive "$n-proxy" || spawn "$n-proxy" "${in[@]}" "$BIN/kube-proxy" --kubeconfig "$RUN/kubeconfig/proxy" --proxy-mode nftables \
    --hostname-override "$n" --cluster-cidr $PODS.0.0/16 --conntrack-max-per-core 0
  alive "$n-dns" || spawn "$n-dns" "${in[@]}" "$BIN/coredns" -conf "$RUN/Corefile"
}

kill_node() { # kill_node NUMBER: kubelet, runtime and every container at once
  local n=node$1 f pid child
  for f in kubelet proxy dns containerd; do reap "$n-$f"; done
  # The shims carry this node's socket on their command line; their children are its containers.
  for pid in $(grep -lsza -- "$RUN/$n/containerd.sock" /proc/[0-9]*/cmdline | grep -oE '[0-9]+'); do
    for child in $(cat "/proc/$pid/task/$pid/children" 2>/dev/null); do kill -KILL "$child" 2>/dev/null || true; done
    kill -KILL "$pid" 2>/dev/null || true
  done
}

pids() { # pids N ID: a container's first process, and that one's children
  local pid; pid=$(ctr -a "$RUN/node$1/containerd.sock" -n k8s.io tasks ls | awk -v id="$2" '$1 == id {print $2}')
  [ -n "$pid" ] || die "the container has no process"
  echo "$pid" $(cat "/proc/$pid/task/$pid/children")
}

slow() { # slow NUMBER: netem is not a part of every kernel, a token bucket is
  local bucket=(root tbf rate 2mbit burst 32k latency 400ms)
  tc qdisc replace dev "cprjobv$1" "${bucket[@]}"
  in_node "node$1" tc qdisc replace dev eth0 "${bucket[@]}"
}

fast() { # fast NUMBER
  tc qdisc del dev "cprjobv$1" root 2>/dev/null || true
  in_node "node$1" tc qdisc del dev eth0 root 2>/dev/null || true
}

drop() { # drop NUMBER TABLE RULE...
  local n=$1 table=$2; shift 2
  in_node "node$n" nft -f - <<N
table inet cprjob_$table { chain c { type filter hook prerouting priority -300; $* drop; }; }
N
}

calm() { # calm NUMBER
  local table
  fast "$1"
  for table in $(in_node "node$1" nft list tables inet | grep -oE 'cprjob_(lossy|shut|block)\w*'); do
    in_node "node$1" nft delete table inet "$table"
  done
  relax "$1"
}

squeeze() { # squeeze NUMBER: the node has the memory, but its kubelet wants nearly all of it free
  sed -i 's/^evictionHard:.*/evictionHard: {memory.available: "99%"}\nevictionPressureTransitionPeriod: 1s/' "$RUN/node$1/kubelet.yaml"
  restart_kubelet "$1"
}

relax() { # relax NUMBER: `start` writes the kubelet's file anew
  grep -q '^evictionPressure' "$RUN/node$1/kubelet.yaml" || return 0
  reap "node$1-kubelet"
  start "$1"
}

restart_kubelet() { # restart_kubelet NUMBER: with the file as it is
  reap "node$1-kubelet"
  kubelet "$1"
}

freeze_thread() { # freeze_thread NUMBER ID THREAD: of the working process, a child of the supervisor
  local found; found=$(pids "$1" "$2")
  spawn "freeze-thread-$2" python3 "$here/freeze_thread.py" "${found##* }" "$3"
}

throttle() { # throttle NUMBER ID
  local found; found=$(pids "$1" "$2")
  spawn "throttle-$2" bash -c 'while kill -STOP $0; do sleep 0.4; kill -CONT $0; sleep 0.1; done' "$found"
}

unthrottle() { # unthrottle NUMBER ID
  local found
  reap "throttle-$2"
  found=$(pids "$1" "$2" 2>/dev/null) || return 0 # its container is gone
  kill -CONT $found 2>/dev/null || true
}

load() { # load LAYOUT NAME [NUMBER...]
  local layout=$1 name=$2 i pids=(); shift 2
  [ $# -gt 0 ] || set -- $(seq "$NODES")
  for i in "$@"; do
    python3 "$here/oci.py" load "$layout" "$name" ctr -a "$RUN/node$i/containerd.sock" -n k8s.io &
    pids+=($!)
  done
  for i in "${pids[@]}"; do wait "$i"; done
}

command=${1:-}; [ $# -eq 0 ] || shift
case $command in
  cut)     ip link set "cprjobv$1" down ;;
  join)    ip link set "cprjobv$1" up ;;
  kill)    kill_node "$1" ;;
  start)   start "$1" ;;
  block)   in_node "node$1" nft -f - <<N
table inet cprjob_block_$2 { chain c { type filter hook prerouting priority -300; ip saddr { $HOSTS.$((10 + $2)), $PODS.$2.0/24 } drop; }; }
N
    ;;
  slow|fast|squeeze|relax|calm) "$command" "$1" ;;
  lossy)   drop "$1" lossy iifname eth0 numgen random mod 10 == 0 ;;
  lossless) in_node "node$1" nft delete table inet cprjob_lossy ;;
  shut)    drop "$1" "shut_$2" tcp dport "$2" ;;
  open)    in_node "node$1" nft delete table inet "cprjob_shut_$2" ;;
  halt)    reap "node$1-$2" ;;
  oom)     found=$(pids "$1" "$2"); python3 "$here/hog.py" "${found##* }" ;;
  freeze-thread) freeze_thread "$@" ;;
  thaw-thread) reap "freeze-thread-$2" ;;
  throttle|unthrottle) "$command" "$@" ;;
  unblock) in_node "node$1" nft delete table inet "cprjob_block_$2" ;;
  load)    load "$@" ;;
  ctr)     n=$1; shift; ctr -a "$RUN/node$n/containerd.sock" -n k8s.io "$@" ;;
  kill-child) kill_child "$here/node.sh" "$1" "$2" sh ;;
  *)       sed -n '2,18s/^# //p' "$0" >&2; exit 2 ;;
esac
