"""When the leader cuts: a pure schedule over steps and trained seconds."""

from __future__ import annotations

#: Steps between the announcement of a cut and the cut: more than are prefetched, so that every push carries it.
LEAD_STEPS = 3


class CutSchedule:
    """Announces cuts up to the last step `last_step`, which is always one.

    `trained_s` everywhere: seconds of training since the process started, pauses left out.
    """

    def __init__(self, last_step: int) -> None:
        self._last_step = last_step
        self._since_s: float | None = None
        self._due_now = False
        self.announced = 0

    def announce(self, step: int, trained_s: float, interval_s: float, *, uncommitted: bool) -> int:
        """Return the cut that all pushes of `step` carry, 0 if there is none.

        A cut is announced once and stays so until the next; none is while one is `uncommitted`, except the last step.
        """
        if self._since_s is None:
            self._since_s = trained_s
        if step <= self.announced:
            return self.announced
        if step + 2 * LEAD_STEPS > self._last_step:
            self.announced = self._last_step
        elif not uncommitted and (self._due_now or trained_s - self._since_s >= interval_s):
            self.announced = step + LEAD_STEPS
            self._since_s = trained_s
            self._due_now = False
        return self.announced

    def hasten(self) -> None:
        """Let the next cut be due at once."""
        self._due_now = True

    def void(self) -> None:
        """Forget a cut that a shard did not survive: the next is due at once."""
        self.hasten()
        self.announced = 0
