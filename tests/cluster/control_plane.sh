#!/usr/bin/env bash
# The bare cluster's control plane and network, and its faults:
#   control_plane.sh start|stop|status    `start` begins from nothing; images on nodes are kept
#   control_plane.sh halt|run PROCESS     SIGKILL to etcd, apiserver, controller-manager or scheduler, and its return
#   control_plane.sh freeze|thaw PROCESS  SIGSTOP and SIGCONT
#   control_plane.sh throttle|unthrottle PROCESS it runs a fifth of the time
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

certificates() {
  local p=$RUN/pki who
  [ -f "$p/ca.crt" ] || openssl req -x509 -newkey rsa:2048 -nodes -keyout "$p/ca.key" -out "$p/ca.crt" -days 365 -subj /CN=cprjob-test-ca 2>/dev/null
  cert apiserver /CN=kube-apiserver "IP:127.0.0.1,IP:$API,IP:10.96.0.1,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc"
  cert admin /O=system:masters/CN=admin
  cert kubelet-client /O=system:masters/CN=apiserver-kubelet-client
  cert cm /CN=system:kube-controller-manager
  cert scheduler /CN=system:kube-scheduler
  cert proxy /CN=system:kube-proxy
  [ -f "$p/sa.key" ] || { openssl genrsa -out "$p/sa.key" 2048 2>/dev/null; openssl rsa -in "$p/sa.key" -pubout -out "$p/sa.pub" 2>/dev/null; }
  for who in admin cm scheduler; do kubeconfig $who 127.0.0.1 $who; done
  kubeconfig proxy "$API" proxy
  kubeconfig dns "$API" admin # tests only: DNS needs no more than to read services
}

run() { # run PROCESS: unless it runs already
  local p=$RUN/pki groups=() gates=()
  # PodGroups came to this version of their API with Kubernetes 1.37.
  case $("$BIN/kube-apiserver" --version) in
    *v1.3[56].*) ;;
    *) gates=(--feature-gates GenericWorkload=true) groups=(--runtime-config scheduling.k8s.io/v1beta1=true) ;;
  esac
  ! alive "$1" || return 0
  case $1 in
    etcd)
      spawn etcd "$BIN/etcd" --data-dir "$RUN/etcd" --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
          --listen-peer-urls http://127.0.0.1:2380 --unsafe-no-fsync --log-level error
      ;;
    apiserver)
      # Webhooks are reached at their pods (aggregator routing), because no kube-proxy serves this host.
      spawn apiserver "$BIN/kube-apiserver" --enable-aggregator-routing=true --etcd-servers http://127.0.0.1:2379 --advertise-address "$API" --bind-address 0.0.0.0 \
          --client-ca-file "$p/ca.crt" --tls-cert-file "$p/apiserver.crt" --tls-private-key-file "$p/apiserver.key" \
          --kubelet-client-certificate "$p/kubelet-client.crt" --kubelet-client-key "$p/kubelet-client.key" --kubelet-certificate-authority "$p/ca.crt" \
          --kubelet-preferred-address-types InternalIP --service-account-key-file "$p/sa.pub" --service-account-signing-key-file "$p/sa.key" \
          --service-account-issuer https://kubernetes.default.svc --service-cluster-ip-range $SERVICES --authorization-mode Node,RBAC \
          --enable-admission-plugins NodeRestriction --allow-privileged=true "${gates[@]}" "${groups[@]}"
      ;;
    controller-manager)
      spawn controller-manager "$BIN/kube-controller-manager" --kubeconfig "$RUN/kubeconfig/cm" --service-account-private-key-file "$p/sa.key" \
          --root-ca-file "$p/ca.crt" --use-service-account-credentials --cluster-signing-cert-file "$p/ca.crt" --cluster-signing-key-file "$p/ca.key" \
          --leader-elect=false "${gates[@]}" --node-monitor-grace-period "${GRACE:-10s}" --node-monitor-period 2s
      ;;
    scheduler)
      spawn scheduler "$BIN/kube-scheduler" --kubeconfig "$RUN/kubeconfig/scheduler" --leader-elect=false "${gates[@]}"
      ;;
    *) die "no process of the control plane: $1" ;;
  esac
  case $1 in etcd|apiserver) prefer "$1" ;; esac
}

# A real control plane has machines of its own. Here pods and tests would leave it a twelfth of the processors, and leases
# would expire. A kernel that groups processes by session weighs sessions by the niceness of the group.
prefer() { # prefer PROCESS
  local pid; pid=$(process "$1")
  renice -n -10 -p "$pid" >/dev/null 2>&1 || return 0 # a container may lack the right
  [ ! -e "/proc/$pid/autogroup" ] || echo -10 >"/proc/$pid/autogroup"
}

process() { # process NAME: its pid
  local pid; alive "$1" || die "$1 does not run"
  read -r pid _ <"$RUN/pid/$1"
  echo "$pid"
}

throttle() { # throttle PROCESS
  spawn "throttle-$1" bash -c 'while kill -STOP $0; do sleep 0.4; kill -CONT $0; sleep 0.1; done' "$(process "$1")"
}

unthrottle() { # unthrottle PROCESS
  reap "throttle-$1"
  kill -CONT "$(process "$1")"
}

firewall() { # firewall -I|-D: with br_netfilter, iptables filters what crosses our bridge, and Docker's policy is to drop it
  [ "$(cat /proc/sys/net/bridge/bridge-nf-call-iptables 2>/dev/null)" = 1 ] && command -v iptables >/dev/null || return 0
  iptables "$1" FORWARD -i cprjob -o cprjob -j ACCEPT
}

start() {
  local p=$RUN/pki
  mkdir -p "$RUN"/{pki,log,pid,kubeconfig,images}
  ip netns list | cut -d' ' -f1 >"$RUN/netns-before"
  bridge cprjob "$API/24"
  firewall -I
  sysctl -qw net.ipv4.ip_forward=1
  ip link add cprjobsvc type bridge
  ip link set cprjobsvc up
  ip route add $SERVICES dev cprjobsvc
  ip route add blackhole $PODS.0.0/16
  certificates
  run etcd
  run apiserver
  wait_until 60 "the API server is ready" kubectl get --raw /readyz
  run controller-manager
  run scheduler
  cat >"$RUN/Corefile" <<C
.:53 {
  bind $DNS
  kubernetes cluster.local in-addr.arpa {
    kubeconfig $RUN/kubeconfig/dns x
    ttl 1
  }
}
C
  [ -f "$RUN/images/pause/index.json" ] || {
    gcc -Os -static -s -o "$RUN/images/pause.bin" "$here/pause.c"
    python3 "$here/oci.py" pack "$RUN/images/pause.bin" /pause "$RUN/images/pause"
  }
}

stop() { # what was started (by recorded pid) and its networks; PURGE=1: the nodes' images too
  local i d n m
  for d in "$RUN"/node*/; do [ ! -d "$d" ] || "$here/node.sh" kill "${d//[!0-9]/}"; done
  for n in scheduler controller-manager apiserver etcd; do reap "throttle-$n"; reap $n; done
  sleep 0.5
  awk -v r="$RUN/" 'index($2, r) == 1 {print $2}' /proc/mounts | sort -r | while read -r m; do umount -l "$m" 2>/dev/null || true; done
  for d in "$RUN"/node*/; do
    [ -d "$d" ] || continue
    ip netns del "cprjob-$(basename "$d")" 2>/dev/null || true
    rm -rf "$d"/{run,kubelet,ipam,logs}
  done
  if [ -f "$RUN/netns-before" ]; then
    for n in $(ip netns list | cut -d' ' -f1 | grep '^cni-' | grep -vxFf "$RUN/netns-before"); do ip netns del "$n" || true; done
  fi
  for i in 1 2 3 4 5 6; do ip link del "cprjobv$i" 2>/dev/null || true; done
  ip link del cprjob 2>/dev/null || true
  firewall -D 2>/dev/null || true
  ip link del cprjobsvc 2>/dev/null || true
  ip route del blackhole $PODS.0.0/16 2>/dev/null || true
  rm -rf "$RUN"/{etcd,pid,log,netns-before}
  [ -z "${PURGE:-}" ] || rm -rf "$RUN"
}

status() { # all of it runs, and answers
  local name
  [ -e /sys/class/net/cprjob ] || return 1
  for name in etcd apiserver controller-manager scheduler; do alive $name || return 1; done
  kubectl get --raw /readyz --request-timeout=5s >/dev/null 2>&1
}

case ${1:-} in
  start)  start ;;
  stop)   stop ;;
  status) status ;;
  halt)   reap "$2" ;;
  run)    run "$2" ;;
  freeze) kill -STOP "$(process "$2")" ;;
  thaw)   kill -CONT "$(process "$2")" ;;
  throttle) throttle "$2" ;;
  unthrottle) unthrottle "$2" ;;
  *)      sed -n '2,6s/^# //p' "$0" >&2; exit 2 ;;
esac
