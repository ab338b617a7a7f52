"""Where the trainers of a world meet and agree on steps: what their control channel and their collectives do.

In one place, and without a network: the data plane is what a world is about.
"""

from __future__ import annotations

from collections.abc import Callable

from support.world.scheduler import Scheduler

NO_STATE = -1


class BrokenError(Exception):
    """A member is gone: all meet again."""


class Group:
    """All ranks of a job. `epoch` counts how often they fell apart."""

    def __init__(self, scheduler: Scheduler, trainers: int) -> None:
        self.epoch = 0
        self._scheduler = scheduler
        self._trainers = trainers
        self._said: dict[tuple[int, str], dict[int, int]] = {}

    def break_up(self) -> None:
        """Let all meet again."""
        self.epoch += 1
        self._said.clear()

    def agree(self, epoch: int, subject: str, rank: int, value: int, attend: Callable[[], None]) -> int:
        """Return the highest value that any rank has on a subject, once all have said theirs. Raises BrokenError."""
        while True:
            if self.epoch != epoch:
                raise BrokenError
            said = self._said.setdefault((epoch, subject), {})
            said[rank] = value
            if len(said) == self._trainers:
                return max(said.values())
            attend()
            self._scheduler.sleep(self._scheduler.rng.uniform(0.0005, 0.003))
