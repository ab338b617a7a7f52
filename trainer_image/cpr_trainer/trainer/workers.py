"""How many workers a trainer computes with: the decision, from what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from statistics import median

from cpr_contract.limits import MAX_WORKERS
from cpr_trainer.trainer.crew import LEAST_SAMPLES

#: More workers are taken only where they save more than this part of the time: a smaller gain is within the noise.
_TIE = 0.03


@dataclass(frozen=True, slots=True)
class Workers:
    """How many workers each trainer of a job has, and why."""

    count: int
    reason: str


def candidates(processors: int, samples: int) -> tuple[int, ...]:
    """Return the numbers of workers to measure for a slice of `samples`: 1, 2, 4, ..., and the most that there can be.

    Each worker needs a processor, and samples enough for a part.
    """
    most = max(1, min(processors, samples // LEAST_SAMPLES, MAX_WORKERS))
    doubled = takewhile(lambda count: count < most, (1 << power for power in range(most.bit_length())))
    return (*doubled, most)


def choose(times_s: Mapping[int, Sequence[float]]) -> Workers:
    """Return the fewest workers that are as fast as any, from how long each number of them took for the same batch.

    times_s: for each number, its time in each round; at least one round. Numbers are compared by their time divided by
    that of the fewest workers in the same round, median over rounds: a machine that is slow in one round is slow for
    all of them.
    """
    fewest = times_s[min(times_s)]
    ratios = {
        count: median(time_s / base_s for time_s, base_s in zip(times, fewest, strict=True))
        for count, times in times_s.items()
    }
    least = min(ratios.values())
    chosen = min(count for count, ratio in ratios.items() if ratio <= least * (1 + _TIE))
    listed = ", ".join(f"{1000 * median(times_s[count]):.2f} ms with {count}" for count in sorted(times_s))
    return Workers(chosen, f"measured for the first batch: {listed}")
