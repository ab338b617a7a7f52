"""What happens to a push: applied once, in its generation, and not past a cut that is still open."""

from __future__ import annotations

import enum

from cpr_trainer.checkpoint.write.decisions import Cuts


class Standing(enum.Enum):
    """Whether frames of a generation are served."""

    SERVED = enum.auto()
    STALE = enum.auto()  # of an older generation: their sender has missed a rollback
    NOT_READY = enum.auto()  # of a newer generation, or of one that is not restored yet


class Fate(enum.Enum):
    """What a shard does with a push of the generation it serves."""

    APPLY = enum.auto()
    DROP = enum.auto()  # applied before: acknowledge it, change nothing
    HOLD = enum.auto()  # it lies behind a cut that other ranks have not reached


def standing_of(theirs: int, ours: int | None) -> Standing:
    """Decide about frames of generation `theirs`; `ours` is the one that is served, None for none."""
    if ours is None or theirs > ours:
        return Standing.NOT_READY
    return Standing.STALE if theirs < ours else Standing.SERVED


def fate_of(step: int, before: int, cuts: Cuts, *, begun: bool) -> Fate:
    """Decide about a rank's push of `step`, whose last applied step is `before`.

    Nobody is held unless all ranks have `begun` to push to this shard, and have sent again what they kept. One that
    does without the shard may be waiting for the one that would be held, and so may one whose push comes later in the
    order of the first time.
    """
    if step <= before:
        return Fate.DROP
    if begun and cuts.holds(step) and not cuts.passed_over(step, before):
        return Fate.HOLD
    return Fate.APPLY
