"""When a simulated job fails: gaps in seconds of training, and how many shards each failure takes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from cprjob_bench.simulation.job import HOUR_S, Job

#: Below 1 failures cluster, with long quiet times between: a heavy tail. At 1 it is the exponential distribution.
GAMMA_SHAPE = 0.5
#: A storm: so many failures in a row, so many seconds of training apart.
STORM_FAILURES = 4
STORM_GAP_S = 300.0


class Failure(NamedTuple):
    """A failure after `gap_s` seconds of training since the last one, which takes `lost` shards."""

    gap_s: float
    lost: int


#: All failures of one job, for a given source of randomness; they may end.
Failures = Callable[[Job, random.Random], Iterator[Failure]]


def exponential(job: Job, rng: random.Random) -> Iterator[Failure]:
    """Failures at a constant rate."""
    rate = 1 / job.mtbf_s
    while True:
        yield Failure(rng.expovariate(rate), job.lost)


def gamma(job: Job, rng: random.Random) -> Iterator[Failure]:
    """Gaps of a gamma distribution with the same mean and a heavy tail."""
    scale = job.mtbf_s / GAMMA_SHAPE
    while True:
        yield Failure(rng.gammavariate(GAMMA_SHAPE, scale), job.lost)


def storms(job: Job, rng: random.Random) -> Iterator[Failure]:
    """As many failures as ever, but in storms: a power supply, a bad roll-out, a full disk."""
    between = job.mtbf_s * STORM_FAILURES - STORM_GAP_S * (STORM_FAILURES - 1)
    rate = 1 / max(between, STORM_GAP_S)
    while True:
        yield Failure(rng.expovariate(rate), job.lost)
        for _ in range(STORM_FAILURES - 1):
            yield Failure(STORM_GAP_S, job.lost)


#: Distributions by name.
DISTRIBUTIONS: Mapping[str, Failures] = {"exponential": exponential, "gamma": gamma, "storms": storms}


def recorded(times: Sequence[tuple[float, int | None]]) -> Failures:
    """Failures as they were: seconds of training since the start, in order, and the shards lost (None: the job's)."""

    def replay(job: Job, _: random.Random) -> Iterator[Failure]:
        last = 0.0
        for at, lost in times:
            yield Failure(at - last, lost or job.lost)
            last = at

    return replay


def parse_trace(text: str) -> tuple[tuple[float, int | None], ...]:
    """A trace: in each line the hours of training until a failure and, if need be, the shards that it took.

    What follows a # is a comment. Raises ValueError with the number of the line.
    """
    times: list[tuple[float, int | None]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            hours, *rest = words
            at, lost = float(hours) * HOUR_S, [int(word) for word in rest]
        except ValueError:
            raise ValueError(f"line {number}: {line.strip()!r} is not HOURS or HOURS SHARDS, as in 12.5 4") from None
        if len(lost) > 1 or min(lost, default=1) < 1 or not at >= (times[-1][0] if times else 0.0):
            raise ValueError(f"line {number}: {line.strip()!r} wants hours in order and at most one count of shards")
        times.append((at, lost[0] if lost else None))
    return tuple(times)
