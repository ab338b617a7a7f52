"""Which runs the bench makes: for each seed one without failures, and one for each contender with the same failures.

Pure. Contenders are the strategies, each of which writes as many rows, and as their measure the saves of everything
that all but Full share, without any in between. Failures follow the emulation of CPR (Maeng et al., MLSys 2021): each
takes half of the shards, at a random time.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Literal, get_args

from cpr_contract.spec import Strategy
from cprjob_bench.documents.priority import Failure, Saving, SavingExperiment, SavingTrial

Contender = Strategy | Literal["Anchors"]

FULL: Strategy = "Full"
#: Everything is saved as seldom as by a strategy, and nothing in between: it writes least, and loses the same samples.
ANCHORS: Contender = "Anchors"
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)


@dataclass(frozen=True, slots=True)
class Design:
    """Runs in their order. runs[i] is the (seed, contender) of trial i; None is the run without failures."""

    runs: tuple[tuple[int, Contender | None], ...]
    experiment: SavingExperiment

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each run."""
        return tuple(f"seed {seed}, {contender or 'no failures'}" for seed, contender in self.runs)


def design(saving: Saving, failures: int, seeds: range, shards: int) -> Design:
    """The runs over all seeds, with saves as `saving` says. Equal arguments give equal failures."""
    contenders: dict[Contender, Saving] = {name: replace(saving, strategy=name) for name in STRATEGIES}
    contenders[ANCHORS] = replace(saving, strategy=FULL, interval=saving.interval * saving.anchors)
    runs: list[tuple[int, Contender | None]] = []
    trials: list[SavingTrial] = []
    for seed in seeds:
        drawn = draw_failures(failures, shards, random.Random(seed))
        runs.append((seed, None))
        trials.append(SavingTrial(seed))
        for contender, saves in contenders.items():
            runs.append((seed, contender))
            trials.append(SavingTrial(seed, replace(saves, failures=drawn)))
    return Design(tuple(runs), SavingExperiment(shards, tuple(trials)))


def draw_failures(count: int, shards: int, rng: random.Random) -> tuple[Failure, ...]:
    """Failures at random times, uniform over the run, each of half of the shards."""
    hit = -(-shards // 2)
    times = sorted(1 - rng.random() for _ in range(count))  # in (0, 1]
    return tuple(Failure(tuple(sorted(rng.sample(range(shards), hit))), time) for time in times)
