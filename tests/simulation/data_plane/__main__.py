"""Run seeds, from `tests`: `python -m simulation.data_plane FIRST END`, or one seed alone."""

from __future__ import annotations

import gc
import sys
import traceback
from collections import Counter

from simulation.data_plane.run import run_to_completion, run_under_faults

WAYS = {"to the end": run_to_completion, "through": run_under_faults}


def main(first: int, end: int) -> int:
    """Return how many runs failed."""
    probes, failed = Counter[str](), 0
    gc.freeze()  # a tenth of the time of a run: the modules are never garbage, and a run makes few cycles
    gc.set_threshold(20_000, 20, 20)
    for seed in range(first, end):
        for name, way in WAYS.items():
            try:
                result = way(seed)
            except Exception:  # noqa: BLE001 -- it is printed, and the others run
                failed += 1
                print(f"seed {seed}, {name}:\n{traceback.format_exc()}", flush=True)
            else:
                probes += result.probes
                probes["pushes lost and reported"] += sum(map(len, result.missing.values()))
        if seed % 100 == 99:
            print(f"up to seed {seed}: {failed} failed", flush=True)
    for what, often in sorted(probes.items()):
        print(f"{often:9,} {what}")
    print(f"seeds {first} to {end - 1}: {failed} of {len(WAYS) * (end - first)} runs failed")
    return failed


if __name__ == "__main__":
    bounds = [int(each) for each in sys.argv[1:3]]
    sys.exit(bool(main(bounds[0], bounds[-1] if len(bounds) > 1 else bounds[0] + 1)))
