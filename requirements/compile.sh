#!/usr/bin/env bash
# Compile the pinned requirement files from pyproject.toml: compile.sh UV. No index host is recorded; hashes pin what is installed.
# torch stands apart: with its CUDA libraries in torch.txt (from the package index), or the CPU build in torch-cpu.txt (from a folder of wheels).
set -euo pipefail
uv=$1; cd "$(dirname "$0")/.."
torch=torch==2.13.0
pin() { "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header --constraint <(echo "$torch") "$@"; }
# botocore, which moto needs, requires an older python-dateutil than kubernetes. The tests keep what the operator's
# image has.
dev() { pin --all-extras --group dev --override <(echo "python-dateutil>=4") "$@"; }
dev pyproject.toml -o requirements/.all.txt
heavy=$(grep -oE '^(torch|triton|nvidia-[a-z0-9-]+|cuda-[a-z0-9-]+)==' requirements/.all.txt | tr -d '=' | sort -u)
without=(); for name in $heavy; do without+=(--no-emit-package "$name"); done
dev "${without[@]}" pyproject.toml -o requirements/dev.txt
# The site's, on top of those.
pin --group docs --constraint requirements/dev.txt -o requirements/docs.txt
pin --extra operator --extra traces "${without[@]}" pyproject.toml -o requirements/operator.txt
pin --extra onnx --extra delta --extra iceberg --extra kafka "${without[@]}" pyproject.toml -o requirements/trainer.txt
# The baselines of `cprjob bench train`, on the trainer's own versions; fbgemm-gpu-cpu replaces the fbgemm-gpu that
# torchrec requires.
pin --extra trainer "${without[@]}" --constraint requirements/trainer.txt --override <(echo "fbgemm-gpu ; sys_platform == 'never'") \
  --no-emit-package fbgemm-gpu pyproject.toml benchmarks/baselines/requirements.in -o benchmarks/baselines/requirements.txt
pin tests/soak/formats/writers.in -o tests/soak/formats/writers.txt
"$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header - -o requirements/uv.txt <<<"uv==0.13.9"
awk -v heavy="$heavy" 'BEGIN {n = split(heavy, h); for (i = 1; i <= n; i++) want[h[i]] = 1} /^[a-z]/ {split($1, p, "=="); keep = p[1] in want} keep' requirements/.all.txt >requirements/torch.txt
rm requirements/.all.txt
