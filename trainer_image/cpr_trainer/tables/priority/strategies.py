"""The strategies by name."""

from __future__ import annotations

from typing import Literal, assert_never

import numpy as np

from cpr_trainer.tables.arena import Arena
from cpr_trainer.tables.priority.growth import GrowthTracker
from cpr_trainer.tables.priority.mfu import MfuTracker
from cpr_trainer.tables.priority.population import Population
from cpr_trainer.tables.priority.scar import ScarTracker
from cpr_trainer.tables.priority.ssu import SsuTracker
from cpr_trainer.tables.priority.tracker import Tracker

Strategy = Literal["MFU", "SSU", "SCAR", "Growth"]


def make_tracker(
    strategy: Strategy, arena: Arena, population: Population, quota: int, rng: np.random.Generator
) -> Tracker:
    """Return a new tracker for an arena whose rows, as they are now, are what is saved.

    quota: the most rows of large tables that a save will claim (`Population.quota`). Raises ValueError if the strategy
    does not go with the arena.
    """
    match strategy:
        case "MFU":
            return MfuTracker(population, rng)
        case "SSU":
            return SsuTracker(population, quota, rng)
        case "SCAR":
            return ScarTracker(population, arena, rng)
        case "Growth":
            others = {optimizer.kind for optimizer in arena.optimizers.distinct} - {"RowWiseAdagrad"}
            if others:
                raise ValueError(
                    "snapshots.strategy Growth ranks rows by the accumulator of RowWiseAdagrad, which "
                    f"{', '.join(sorted(others))} does not keep: choose MFU, or RowWiseAdagrad for all tables."
                )
            return GrowthTracker(population, arena, rng)
        case _:
            assert_never(strategy)
