"""What happens to a push: applied once, in its generation, and not past a cut that is still open."""

from __future__ import annotations

import enum

from cpr_trainer.exchange.frames import Header
from cpr_trainer.shard.cuts import Cuts


class Fate(enum.Enum):
    """What a shard does with a push."""

    APPLY = enum.auto()
    DROP = enum.auto()  # applied before: acknowledge it, change nothing
    HOLD = enum.auto()  # it lies behind a cut that other ranks have not reached
    STALE = enum.auto()  # of an older generation: its sender has missed a rollback
    NOT_READY = enum.auto()  # of a newer generation: this shard has missed a rollback


def generation_fate(theirs: int, ours: int | None) -> Fate | None:
    """Return why a frame of generation `theirs` cannot be served; None if it can. `ours` None: nothing is served."""
    if ours is None or theirs > ours:
        return Fate.NOT_READY
    return Fate.STALE if theirs < ours else None


def fate_of(push: Header, generation: int | None, applied: tuple[int, ...], cuts: Cuts) -> Fate:
    """Decide about one push; applied[r] is the last step applied of rank r."""
    wrong = generation_fate(push.generation, generation)
    if wrong is not None:
        return wrong
    if push.step <= applied[push.rank]:
        return Fate.DROP
    if cuts.holds(push.step) and not cuts.passed_over(push.step, applied[push.rank]):
        return Fate.HOLD
    return Fate.APPLY
