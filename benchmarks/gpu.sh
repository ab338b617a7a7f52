#!/usr/bin/env bash
# Check and measure jobs on a GPU of this machine in ten minutes at most, and print each command with its outcome.
#   benchmarks/gpu.sh               needs `make env` with a CUDA build of torch, and a GPU; fails at once without them
#   DEVICE=cpu benchmarks/gpu.sh    tries the script on a machine without a GPU: the tests of GPUs are left out
# Bench results are JSON and logs in OUT (default: build/gpu). Exit code 0 only if every part succeeded.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
device=${DEVICE:-cuda}
out=${OUT:-build/gpu}
bin=.venv/bin
LIMIT_S=570
windows=(--repeats 2 --seconds 8)
ratio=1e-3
[ "$device" = cuda ] || { windows=(--rows 1000 --repeats 1 --seconds 2); ratio=0; }
failed=()

die() { echo "gpu: $*" >&2; exit 1; }

part() { # part NAME SECONDS COMMAND...: run a part within its seconds and those that are left of the whole; report it
  local name=$1 most=$2 begun=$SECONDS left=$((LIMIT_S - SECONDS)); shift 2
  [ "$left" -ge "$most" ] || most=$left
  if [ "$most" -le 0 ]; then
    echo "== $name: not run, $LIMIT_S s are over"; failed+=("$name"); return 1
  fi
  echo "== $name (at most $most s): $*"
  if timeout --kill-after 10 "$most" "$@" >"$out/$name.log" 2>&1; then
    echo "== $name: succeeded in $((SECONDS - begun)) s"
  else
    tail -n 20 "$out/$name.log"
    echo "== $name: FAILED in $((SECONDS - begun)) s; see $out/$name.log"; failed+=("$name"); return 1
  fi
}

bench() { # bench PRESET: CPRJob against plain torch, both with the network on the device
  part "bench-$1" 110 "$bin/cprjob" bench train --preset "$1" --device "$device" \
    "${windows[@]}" --json && "$bin/python" - "$out/bench-$1.log" <<'P'
import json, sys
text = open(sys.argv[1], encoding="utf-8").read()
found = json.loads(text[text.index("\n{") + 1 :])
for name, system in found["contenders"].items():
    print(f"   {name}: {system['samples_per_s']:,.0f} samples/s, {system['share_of_bound']:.3f} of the bound")
P
}

train() { # train NAME [OPTION...]: run the job in a folder of its own, and export its model
  local name=$1; shift
  part "run-$name" 100 "$bin/cprjob" run examples/quickstart.yaml \
    --set "trainers.device=$device" --set data.samples=150000 \
    --set recovery.replay.mode=Required --set recovery.replay.memory=1Gi --set accuracyBudget.portionOfLostSamples=0 \
    --workdir "$out/$name" "$@" &&
    part "export-$name" 60 "$bin/cprjob" export --workdir "$out/$name" --to "$out/model-$name"
}

# An export has the values of the calm run's: each one on the CPU. On a GPU sums of many threads differ by rounding, so
# there the norm of the difference may be a thousandth of the norm of the values.
equal() { # equal NAME
  part "equal-$1" 30 "$bin/python" benchmarks/scripts/equal_exports.py "$out/model-calm" "$out/model-$1" \
    --ratio "$ratio" && cat "$out/equal-$1.log"
}

[ -x "$bin/cprjob" ] || die "$bin/cprjob is missing: run make env"
if [ "$device" = cuda ]; then
  "$bin/python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
    die "torch finds no GPU (torch.cuda.is_available() is false); DEVICE=cpu tries the script without one"
  "$bin/python" -c 'import torch; print("gpu:", torch.cuda.get_device_name(), "torch", torch.__version__)'
fi
rm -rf "$out"
mkdir -p "$out"

if [ "$device" = cuda ]; then
  part tests 150 "$bin/pytest" --quiet --run-report tests/soak/gpu
else
  echo "== tests: left out, the device is $device"
fi
for preset in kaggle mlperf; do bench "$preset"; done
if train calm; then
  train shard --kill shard/1@0.5:POD && equal shard
  train trainer --kill trainer/0@0.5:POD && equal trainer
fi

if [ ${#failed[@]} -gt 0 ]; then echo "gpu: failed in $SECONDS s: ${failed[*]}"; exit 1; fi
echo "gpu: all parts succeeded on $device in $SECONDS s"
