"""The group of all trainers: they meet, agree step by step, and meet again when one is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from simulation.data_plane.clock import Scheduler

T = TypeVar("T")
#: The most between two looks for the others, which may be gone for many seconds.
_LONGEST_WAIT_S = 0.05


class GroupBrokenError(Exception):
    """A member is gone: all meet again."""


class Group:
    """All ranks of a job. `epoch` counts how often they fell apart.

    `pin` is the number of the pin that the leader named last, 0 before it did in this epoch.
    """

    def __init__(self, scheduler: Scheduler, trainers: int) -> None:
        self.epoch = 0
        self.pin = 0
        self._scheduler = scheduler
        self._trainers = trainers
        self._values: dict[tuple[int, str], dict[int, Any]] = {}

    def break_up(self) -> None:
        """Let all meet again."""
        self.epoch += 1
        self.pin = 0
        self._values.clear()

    def gather(
        self, epoch: int, subject: str, rank: int, value: T, poll_interrupts: Callable[[], None]
    ) -> tuple[T, ...]:
        """Return the values of all ranks, in their order, once each has sent its own. Raises GroupBrokenError."""
        wait_s = self._scheduler.rng.uniform(0.0005, 0.003)
        while True:
            if self.epoch != epoch:
                raise GroupBrokenError
            values: dict[int, T] = self._values.setdefault((epoch, subject), {})
            values[rank] = value
            if len(values) == self._trainers:
                return tuple(values[each] for each in range(self._trainers))
            poll_interrupts()
            self._scheduler.sleep(wait_s)
            wait_s = min(1.2 * wait_s, _LONGEST_WAIT_S)
