"""When a shard saves all its rows, and which rows the next priority save is to hold."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

from cpr_trainer.checkpoint.write.save import Position
from cpr_trainer.embedding.priority import Claim, Tracker

# When a shard saves all its rows: at a cut step, once every rank has reached it.
#
# In lockstep before any rank has passed it, too: the save is exactly of that step. Without lockstep cuts are `loose`:
# faster ranks are not held, and what they pushed beyond the step is in the save as well.


@dataclass(frozen=True, slots=True)
class Cuts:
    """`pending` is the cut step that was announced and is not reached, 0 if none; `taken` the last one copied.

    Both are of this incarnation in this generation: a cut that another incarnation saved must be taken again, because
    the anchor names saves of the incarnations in its roster. `at_barrier`: all ranks stood at the pending one when it
    was announced, because the job stops there; what is saved then is exact.
    """

    pending: int = 0
    taken: int = 0
    at_barrier: bool = False
    loose: bool = False

    def announced(self, step: int, applied: tuple[int, ...]) -> Self:
        """Return the cuts after a trainer named `step` as the next cut (0: none).

        The newest announcement counts: a new leader voids the cut of its predecessor. An earlier one is that of a slow
        trainer, unless all ranks stand at it: then the job stops there. A cut that some rank has passed already can no
        longer be exact, and is not taken. Of loose cuts the leader alone speaks, so the newest always counts.
        """
        if step in {0, self.pending} or step <= self.taken:
            return self
        if self.loose:
            return replace(self, pending=step, at_barrier=set(applied) == {step})
        earlier = step < self.pending and step > min(applied)
        if earlier or step < max(applied):
            return self
        return replace(self, pending=step, at_barrier=step == min(applied))

    def holds(self, step: int) -> bool:
        """Return whether a push of `step` must wait for the cut."""
        return 0 < self.pending < step and not self.loose

    def passed_over(self, step: int, before: int) -> bool:
        """Return whether a rank's push of `step`, after `before`, skips the cut: it can never be reached exactly.

        Then this shard was replaced after its predecessor had acknowledged the cut step: the cut is void.
        """
        return before < self.pending < step and not self.loose

    def void(self) -> Self:
        """Return the cuts without the pending one."""
        return replace(self, pending=0, at_barrier=False)

    def due(self, applied: tuple[int, ...]) -> bool:
        """Return whether every rank has reached the cut: it is to be taken now."""
        return 0 < self.pending <= min(applied)

    def take(self) -> Self:
        """Return the cuts after the pending one was taken."""
        return replace(self, pending=0, taken=self.pending, at_barrier=False)


# Which rows the next priority save is to hold: asked when it is due, answered by a thread aside.
#
# Ranking all rows of a shard takes longer than a push may wait.


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """The rows that a priority save is to hold, or what went wrong. `generation` is that in which it was asked."""

    claim: Claim | BaseException
    generation: int


class Chooser:
    """Asks `tracker` for at most `quota` rows of large tables; `report` is told on another thread."""

    def __init__(self, tracker: Tracker, quota: int, report: Callable[[Chosen], None]) -> None:
        self.tracker = tracker
        self._quota = quota
        self._report = report
        self._asked = False
        self._asked_s = 0.0
        self._taken_step = 0

    def start(self, now_s: float) -> None:
        """Begin anew after a restore: the rows as they are now are what is saved."""
        self.tracker.reset()
        self._asked_s, self._taken_step = now_s, 0

    def ask_if_due(self, now_s: float, interval_s: float, position: Position) -> None:
        """Ask if the last time is `interval_s` ago, and every rank has been further since the last answer was taken."""
        if not self._asked and now_s - self._asked_s >= interval_s and min(position.applied) > self._taken_step:
            self._asked, self._asked_s = True, now_s
            threading.Thread(target=self._choose, args=(position.generation,), name="choose", daemon=True).start()

    def take(self, chosen: Chosen, position: Position | None) -> Claim | None:
        """Return the claim, None if it is of no use any more. Raises what went wrong."""
        self._asked = False
        if isinstance(chosen.claim, BaseException):
            raise chosen.claim
        if position is None or position.generation != chosen.generation:
            return None
        self._taken_step = min(position.applied)
        return chosen.claim

    def _choose(self, generation: int) -> None:
        try:
            claim: Claim | BaseException = self.tracker.choose(self._quota)
        except BaseException as error:  # noqa: BLE001 -- the main thread raises it
            claim = error
        self._report(Chosen(claim, generation))
