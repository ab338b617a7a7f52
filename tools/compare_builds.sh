#!/usr/bin/env bash
# Compare the training speed of two checkouts: `tools/compare_builds.sh OLD NEW [OPTION of cprjob bench train]...`
# The checkouts, each with `make env` done, train in turn, PAIRS times (default 7). For each pair the script prints the
# samples per second of both and their ratio, and at the end the median of the ratios. Run it on a quiet machine.
set -euo pipefail
old=$(realpath "$1") new=$(realpath "$2")
shift 2

speed() { # CHECKOUT OPTION...: the samples per second of a job
  local checkout=$1
  shift
  (cd "$checkout" && .venv/bin/cprjob bench train --repeats 1 --json "$@") |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["contenders"]["cprjob"]["samples_per_s"])'
}

for pair in $(seq "${PAIRS:-7}"); do
  # The second of a pair may find a warmer machine, so the order alternates.
  if ((pair % 2)); then a=$(speed "$old" "$@") b=$(speed "$new" "$@"); else b=$(speed "$new" "$@") a=$(speed "$old" "$@"); fi
  printf '%s %s\n' "$a" "$b"
done | python3 -c '
import statistics, sys
ratios = []
for pair, line in enumerate(sys.stdin, 1):
    old, new = map(float, line.split())
    ratios.append(new / old)
    print(f"pair {pair}: old {old:,.0f}, new {new:,.0f} samples/s, ratio {ratios[-1]:.3f}", flush=True)
print(f"median of {len(ratios)} ratios: {statistics.median(ratios):.3f}")
'
