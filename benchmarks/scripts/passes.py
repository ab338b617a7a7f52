"""Measure a pass of the operator: .venv/bin/python benchmarks/scripts/passes.py [--repeats N] [--json].

Measures the decision of one pass over a job that has lost a shard while all other members report: CPU time of one
core, without the API server and the polls. Prints the median of the repeats for each size, shards x trainers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from cpr_operator.reconcile import reconcile
from support.large_job import a_shard_is_lost

#: Shards and trainers; the last is the most that the API admits.
SIZES = ((18, 20), (256, 64), (1024, 256))


def pass_ms(shards: int, trainers: int, repeats: int) -> list[float]:
    """Return the CPU milliseconds of each repeat, after one more as a warm-up."""
    observed, taken = a_shard_is_lost(shards, trainers), []
    for _ in range(repeats + 1):
        began = time.process_time()
        reconcile(observed)
        taken.append((time.process_time() - began) * 1000)
    return taken[1:]


def main() -> None:
    """Measure all sizes and print them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    found = {f"{shards}x{trainers}": pass_ms(shards, trainers, options.repeats) for shards, trainers in SIZES}
    medians = {size: statistics.median(taken) for size, taken in found.items()}
    if options.json:
        times = {
            size: {"pass_ms": round(medians[size], 2), "repeats_ms": [round(ms, 2) for ms in taken]}
            for size, taken in found.items()
        }
        sys.stdout.write(json.dumps(times) + "\n")
        return
    table = Table("shards x trainers", "pass, ms", "range, ms")
    for size, taken in found.items():
        table.add_row(size, f"{medians[size]:.1f}", f"{min(taken):.1f} to {max(taken):.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
