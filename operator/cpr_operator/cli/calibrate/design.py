"""Which runs a calibration makes: for each seed one without losses, and one for each level with losses drawn at random.

Pure. A level is a portion of lost samples (PLS). Losses follow the emulation of CPR (Maeng et al., MLSys 2021): two
failures a run, each of half of the shards. Each sends its shards back by the same age, so that together they lose
exactly the level; when they happen, and to which shards, is random, but no shard loses a sample twice.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from cpr_contract.requests import Experiment, ShardLoss, Trial
from cpr_operator.api.rules.job import MOST_PORTION
from cpr_operator.cli.options import OptionError

FAILURES = 2


@dataclass(frozen=True, slots=True)
class Design:
    """Runs in their order. runs[i] is the (seed, level) of trial i; a level of 0 is the run without losses."""

    runs: tuple[tuple[int, float], ...]
    experiment: Experiment

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each run."""
        return tuple(f"seed {seed}, {f'PLS {level:g}' if level else 'no losses'}" for seed, level in self.runs)


def parse_levels(text: str) -> tuple[float, ...]:
    """Parse `0.05,0.1,0.2`; returned in ascending order. Raises OptionError."""
    try:
        levels = sorted({float(part) for part in text.split(",")})
    except ValueError:
        raise OptionError(f"--levels {text!r} is not a list of numbers such as 0.05,0.1,0.2") from None
    if not all(0 < level <= MOST_PORTION for level in levels):
        raise OptionError(f"--levels {text!r}: each must be above 0 and at most {MOST_PORTION}")
    return tuple(levels)


def design(levels: tuple[float, ...], seeds: range, shards: int) -> Design:
    """The runs over all seeds; the same arguments give the same losses."""
    runs: list[tuple[int, float]] = []
    trials: list[Trial] = []
    for seed in seeds:
        rng = random.Random(seed)
        for level in (0.0, *levels):
            runs.append((seed, level))
            trials.append(Trial(seed, draw_losses(level, shards, rng) if level else ()))
    return Design(tuple(runs), Experiment(shards, tuple(trials)))


def draw_losses(level: float, shards: int, rng: random.Random) -> tuple[ShardLoss, ...]:
    """Losses that add up to `level`, uniform among all that do not overlap in time; 0 < level <= 0.5."""
    hit = -(-shards // 2)
    age = level * shards / (FAILURES * hit)
    # Points drawn on what the ages leave of the run, and moved apart by the ages before them.
    points = sorted(rng.uniform(0, 1 - FAILURES * age) for _ in range(FAILURES))
    return tuple(
        ShardLoss(tuple(sorted(rng.sample(range(shards), hit))), point + n * age, min(point + (n + 1) * age, 1.0))
        for n, point in enumerate(points)
    )
