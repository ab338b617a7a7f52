#!/usr/bin/env bash
# lowest.sh COMMAND...: run it, and all that it starts, with idle processor time alone.
# `nice` alone is not enough: where the kernel weighs whole sessions (autogroup), it counts only within one, and the
# processes of tests have sessions of their own. Root can make a cgroup for them, of a tenth of one usual process's
# weight. With less than that its processes would get no turn for seconds, which the jobs of tests take for hung ones.
set -euo pipefail
enter() { # enter CGROUP FILE WEIGHT
  mkdir -p "$1" && echo "$3" >"$1/$2" && echo $$ >"$1/cgroup.procs"
}
name=cprjob-lowest
{ enter "/sys/fs/cgroup/cpu/$name" cpu.shares 100 || enter "/sys/fs/cgroup/$name" cpu.weight 10; } 2>/dev/null || true
exec nice -n 19 "$@"
