"""Which rows the next priority save is to hold: asked when it is due, answered by a thread aside.

Ranking all rows of a shard takes longer than a push may wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from cpr_trainer.checkpoint.write.save import Position
from cpr_trainer.tables.priority import Claim, Tracker


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """The rows that a priority save is to hold, or what went wrong. `generation` is that in which it was asked."""

    claim: Claim | BaseException
    generation: int


class Chooser:
    """Asks `tracker` for at most `quota` rows of large tables; `tell` is told on another thread."""

    def __init__(self, tracker: Tracker, quota: int, tell: Callable[[Chosen], None]) -> None:
        self.tracker = tracker
        self._quota = quota
        self._tell = tell
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
        self._tell(Chosen(claim, generation))
