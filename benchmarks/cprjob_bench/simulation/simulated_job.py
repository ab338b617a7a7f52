"""A simulated job: its size, its costs, its failures, and presets. All times are seconds of training."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from cpr_operator.policy.inputs import REPLAY_GUESS, Costs

HOUR_S = 3600.0
MINUTE_S = 60.0
#: The stall of training by an asynchronous save, which copies rows during training.
ASYNC_STALL_S = 3.0
#: The mean age of parity when a shard is lost: two flushes a second, and the duration of a flush.
FLUSH_AGE_S = 0.5
#: Assumed. 640 000 samples/s at dim 64 on 18 shards with 3.8 million row updates/s per core give 0.084.
_REPLAY = 0.1
#: Measured by `cprjob bench redundancy` (docs/redundancy.md): CPU time of a job with all members on two cores.
_PARITY_COST = 0.05
#: Shards of the jobs of the preset `scale`.
SCALES = tuple(2**power for power in range(3, 13))
#: Below 1 failures cluster, with long gaps between clusters: a heavy tail. At 1 it is the exponential distribution.
GAMMA_SHAPE = 0.5
#: The number of failures of a storm, and the seconds of training between them.
STORM_FAILURES = 4
STORM_GAP_S = 300.0


@dataclass(frozen=True, slots=True)
class Job:
    """A job of `total_s` seconds of useful training on `shards` shards; each failure takes `lost` of them.

    Failures come every `mtbf_s` of training on average. `limit` is the accuracy budget, as a portion of all samples.
    `assumed_mtbf_s` and `assumed_lost` are the strategies' assumptions about failures, right or wrong. `replay` is rho,
    the seconds to repeat the pushes of one second of training to lost shards. `data_shards` is k, the number of shards
    with a common parity. `parity_cost` is the portion of the training time that flushes to parity take.
    """

    total_s: float
    shards: int
    lost: int
    mtbf_s: float
    limit: float
    costs: Costs
    assumed_mtbf_s: float
    assumed_lost: float
    replay: float = REPLAY_GUESS
    data_shards: int = 1
    parity_cost: float = 0.0

    @property
    def budget_s(self) -> float:
        """The budget in shard-seconds; the whole job has `total_s * shards`."""
        return self.limit * self.total_s * self.shards

    @property
    def asynchronous(self) -> Job:
        """The same job with asynchronous saves: a short stall at the cut, and a commit after the write."""
        costs = self.costs
        saves = replace(costs, save_stall_s=ASYNC_STALL_S, commit_s=costs.commit_s + costs.save_stall_s)
        return replace(self, costs=saves)


class Failure(NamedTuple):
    """A failure after `gap_s` seconds of training since the last one, which takes `lost` shards."""

    gap_s: float
    lost: int


#: Yields all failures of one job by a source of randomness; may be finite.
Failures = Callable[[Job, random.Random], Iterator[Failure]]


def exponential(job: Job, rng: random.Random) -> Iterator[Failure]:
    """Yield failures at a constant rate."""
    rate = 1 / job.mtbf_s
    while True:
        yield Failure(rng.expovariate(rate), job.lost)


def gamma(job: Job, rng: random.Random) -> Iterator[Failure]:
    """Yield failures with gaps of a gamma distribution with the same mean and a heavy tail."""
    scale = job.mtbf_s / GAMMA_SHAPE
    while True:
        yield Failure(rng.gammavariate(GAMMA_SHAPE, scale), job.lost)


def storms(job: Job, rng: random.Random) -> Iterator[Failure]:
    """Yield failures at the same mean rate, but in storms, as by a power supply, a bad roll-out or a full disk."""
    between = job.mtbf_s * STORM_FAILURES - STORM_GAP_S * (STORM_FAILURES - 1)
    rate = 1 / max(between, STORM_GAP_S)
    while True:
        yield Failure(rng.expovariate(rate), job.lost)
        for _ in range(STORM_FAILURES - 1):
            yield Failure(STORM_GAP_S, job.lost)


def _costs(save_min: float, recover_min: float) -> Costs:
    """Return the costs of synchronous saves. Load and reschedule are half of a recovery each, by assumption."""
    half_s = recover_min * MINUTE_S / 2
    return Costs(save_stall_s=save_min * MINUTE_S, commit_s=0.0, load_s=half_s, reschedule_s=half_s)


#: CPR's emulation of a production cluster; costs calibrated to the published 8.5 % and 0.68 %.
PAPER = Job(
    total_s=56 * HOUR_S,
    shards=8,
    lost=4,
    mtbf_s=28 * HOUR_S,
    limit=0.1,
    costs=_costs(save_min=5.4, recover_min=8.0),
    assumed_mtbf_s=28 * HOUR_S,
    assumed_lost=4.0,
    replay=_REPLAY,
    parity_cost=_PARITY_COST,
)


#: CPR's run on a production cluster: 5 failures in 50 h, each of 4 random shards; costs assumed.
PRODUCTION = Job(
    total_s=50 * HOUR_S,
    shards=18,
    lost=4,
    mtbf_s=10 * HOUR_S,
    limit=0.1,
    costs=_costs(save_min=4.3, recover_min=3.0),
    assumed_mtbf_s=10 * HOUR_S,
    assumed_lost=4.0,
    replay=_REPLAY,
    parity_cost=_PARITY_COST,
)


#: Jobs by preset; `scale` simulates its job at all sizes of `SCALES`.
PRESETS = {"paper": PAPER, "production": PRODUCTION, "scale": PAPER}


#: Distributions by name.
DISTRIBUTIONS: Mapping[str, Failures] = {"exponential": exponential, "gamma": gamma, "storms": storms}


def at_scale(job: Job, shards: int) -> Job:
    """Return the job on more shards: the same work per shard and losses per failure, and failures in proportion."""
    fewer = job.shards / shards
    return replace(job, shards=shards, mtbf_s=job.mtbf_s * fewer, assumed_mtbf_s=job.assumed_mtbf_s * fewer)


def recorded(times: Sequence[tuple[float, int | None]]) -> Failures:
    """Return recorded failures: ascending seconds of training, and the lost shards (None: the job's)."""

    def replay(job: Job, _: random.Random) -> Iterator[Failure]:
        last = 0.0
        for at, lost in times:
            yield Failure(at - last, lost or job.lost)
            last = at

    return replay


def parse_trace(text: str) -> tuple[tuple[float, int | None], ...]:
    """Parse a trace: a line has the hours of training until a failure and, optionally, its number of shards.

    A comment begins with #. Raises ValueError with the number of the line.
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
            raise ValueError(
                f"line {number}: {line.strip()!r} must have ascending hours and at most one number of shards"
            )
        times.append((at, lost[0] if lost else None))
    return tuple(times)
