"""When the leader cuts: a pure schedule over steps and trained seconds."""

from __future__ import annotations

from collections.abc import Callable

#: Steps between the announcement of a cut and the cut: more than are prefetched, so that every push carries it.
LEAD_STEPS = 3


class CutSchedule:
    """Announces cuts. Each step that `next_stop` returns is one: the first after a step at which all trainers stand.

    `trained_s` everywhere: seconds of training since the process started, pauses left out.
    """

    def __init__(self, next_stop: Callable[[int], int]) -> None:
        self._next_stop = next_stop
        self._since_s: float | None = None
        self._due_now = False
        self.announced = 0

    def announce(
        self, step: int, trained_s: float, interval_s: float, *, uncommitted: bool, urgent: bool = False
    ) -> int:
        """Return the cut that all pushes of `step` carry, 0 if there is none.

        A cut is announced once and stays so until the next; none is while one is `uncommitted`, except where all stand.
        While it is `urgent` the interval is not waited for.
        """
        if self._since_s is None:
            self._since_s = trained_s
        if step <= self.announced:
            return self.announced
        stop = self._next_stop(step - 1)
        if step + 2 * LEAD_STEPS > stop:
            self.announced = stop
            self._begin_interval(trained_s)
        elif not uncommitted and (urgent or self._due_now or trained_s - self._since_s >= interval_s):
            self.announced = step + LEAD_STEPS
            self._begin_interval(trained_s)
        return self.announced

    def _begin_interval(self, trained_s: float) -> None:
        self._since_s, self._due_now = trained_s, False

    def hasten(self) -> None:
        """Let the next cut be due at once."""
        self._due_now = True

    def void(self) -> None:
        """Forget a cut that a shard did not survive: the next is due at once."""
        self.hasten()
        self.announced = 0
