"""Rides seeds: `python -m support.world FIRST END` in `tests`, or one alone. Prints those that fail, and sums."""

from __future__ import annotations

import sys
import traceback
from collections import Counter

from support.world.ride import ride_through, ride_to_the_end

WAYS = {"to the end": ride_to_the_end, "through": ride_through}


def main(first: int, end: int) -> int:
    """Return how many rides failed."""
    met, failed = Counter[str](), 0
    for seed in range(first, end):
        for name, way in WAYS.items():
            try:
                ride = way(seed)
            except Exception:  # noqa: BLE001 -- it is told, and the others go on
                failed += 1
                print(f"seed {seed}, {name}:\n{traceback.format_exc()}", flush=True)
            else:
                met += ride.met
                met["pushes lost, and told"] += sum(map(len, ride.missing.values()))
        if seed % 100 == 99:
            print(f"up to seed {seed}: {failed} failed", flush=True)
    for what, often in sorted(met.items()):
        print(f"{often:9,} {what}")
    print(f"seeds {first} to {end - 1}: {failed} of {len(WAYS) * (end - first)} rides failed")
    return failed


if __name__ == "__main__":
    bounds = [int(each) for each in sys.argv[1:3]]
    sys.exit(bool(main(bounds[0], bounds[-1] if len(bounds) > 1 else bounds[0] + 1)))
