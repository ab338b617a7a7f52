"""When a member that ended for want of the store is tried again."""

from __future__ import annotations

#: Two attempts begin at least so long after each other. That doubles up to the last.
FIRST_PAUSE_S, LAST_PAUSE_S = 5.0, 60.0


def next_attempt(started_at: float, lost_at: float | None) -> float:
    """The earliest time of the next attempt, in seconds since the epoch.

    `started_at` is when the last attempt was decided, and `lost_at` when the member was lost that
    it is to replace; None: it has worked since. The pause grows with the time that attempts have
    taken so far, so a process that ran for a while is replaced at once.
    """
    tried_for = 0.0 if lost_at is None else started_at - lost_at
    return started_at + min(max(tried_for, FIRST_PAUSE_S), LAST_PAUSE_S)
