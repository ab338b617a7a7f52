"""The decisions about a shard's saves: the cuts at which it saves all rows, and the rows of a priority save."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

from cpr_trainer.checkpoint.write.save import Position
from cpr_trainer.embedding.priority import Claim, Tracker


@dataclass(frozen=True, slots=True)
class Cuts:
    """The cuts of a shard, at which it saves all rows once every rank has reached the step.

    In lockstep no rank has passed it then, so the save is exactly of that step. Without lockstep cuts are `loose`:
    faster ranks are not held, and their later pushes are in the save too.

    `pending` is the announced cut step that is not reached, 0 if none; `taken` the last one saved. Both are of this
    incarnation in this generation: a cut that another incarnation saved must be taken again, because the anchor names
    saves of the incarnations in its roster. `at_barrier`: all ranks stood at the pending one when it
    was announced, because the job stops there; what is saved then is exact.
    """

    pending: int = 0
    taken: int = 0
    at_barrier: bool = False
    loose: bool = False

    def announced(self, step: int, applied: tuple[int, ...]) -> Self:
        """Return the cuts after a trainer named `step` as the next cut (0: none).

        The newest announcement counts: a new leader voids the cut of its predecessor. An earlier step is from a slow
        trainer, unless all ranks stand at it: then the job stops there. A cut that some rank has passed can no longer
        be exact, and is ignored. Only the leader announces loose cuts, so the newest always counts.
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

        This shard has replaced one that had acknowledged the cut step: the cut is void.
        """
        return before < self.pending < step and not self.loose

    def void(self) -> Self:
        """Return the cuts without the pending one."""
        return replace(self, pending=0, at_barrier=False)

    def due(self, applied: tuple[int, ...]) -> bool:
        """Return whether every rank has reached the cut, so that it is taken now."""
        return 0 < self.pending <= min(applied)

    def take(self) -> Self:
        """Return the cuts after the pending one was taken."""
        return replace(self, pending=0, taken=self.pending, at_barrier=False)


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """The rows for a priority save, or the error of the choice, which was started in `generation`."""

    claim: Claim | BaseException
    generation: int


class Chooser:
    """Chooses at most `quota` rows of large tables by `tracker`, on a thread that calls `report`.

    Ranking all rows of a shard takes longer than a push may wait.
    """

    def __init__(self, tracker: Tracker, quota: int, report: Callable[[Chosen], None]) -> None:
        self.tracker = tracker
        self._quota = quota
        self._report = report
        self._choosing = False
        self._started_s = 0.0
        self._taken_step = 0

    def start(self, now_s: float) -> None:
        """Start after a restore, with all rows saved."""
        self.tracker.reset()
        self._started_s, self._taken_step = now_s, 0

    def choose_if_due(self, now_s: float, interval_s: float, position: Position) -> None:
        """Start a choice, `interval_s` after the last one, if every rank has advanced since that was taken."""
        if not self._choosing and now_s - self._started_s >= interval_s and min(position.applied) > self._taken_step:
            self._choosing, self._started_s = True, now_s
            threading.Thread(target=self._choose, args=(position.generation,), name="choose", daemon=True).start()

    def take(self, chosen: Chosen, position: Position | None) -> Claim | None:
        """Return the claim, None if it is obsolete. Raises the error of the choice."""
        self._choosing = False
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
