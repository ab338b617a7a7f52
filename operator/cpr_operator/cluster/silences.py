"""Decides how long to pause polls of pods that did not answer in time.

Only timeouts count. A refused connection costs nothing, and a starting pod refuses connections until it is ready.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

#: Seconds to pause after the first timeout in a row, doubling up to the maximum.
FIRST_PAUSE_S, LAST_PAUSE_S = 1.0, 8.0
#: The mean number of silent pods of one job that are polled at a time, however many there are.
SILENT_POLLS = 12
#: Forget a pod after this many seconds without a poll, because it is probably gone.
FORGET_S = 600.0


def pause_s(in_a_row: int, poll_s: float, silent_pods: int) -> float:
    """Seconds to pause after `in_a_row` timeouts of `poll_s` seconds each.

    The pause grows with the number of silent pods of the job, so that each of them gets its turn.
    """
    doubling = min(FIRST_PAUSE_S * 2.0 ** (in_a_row - 1), LAST_PAUSE_S)
    return max(doubling, silent_pods * poll_s / SILENT_POLLS)


@dataclass(frozen=True, slots=True)
class _Silence:
    in_a_row: int
    poll_s: float
    until: float


class Silences:
    """The pods that did not answer their last poll. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._jobs: dict[str, dict[str, _Silence]] = {}
        self._swept = clock()

    def __contains__(self, pod: tuple[str, str]) -> bool:
        """Whether the pod (job uid, pod uid) did not answer its last poll."""
        job, uid = pod
        return uid in self._jobs.get(job, ())

    def is_due(self, job: str, uid: str) -> bool:
        """Whether to poll the pod now. Always true for a pod that answered its last poll."""
        silent = self._jobs.get(job, {})
        silence = silent.get(uid)
        if silence is None:
            return True
        return self._clock() >= silence.until + pause_s(silence.in_a_row, silence.poll_s, len(silent))

    def was_silent(self, job: str, uid: str, poll_s: float) -> None:
        """Record that the pod did not answer within `poll_s` seconds."""
        now = self._clock()
        if now >= self._swept + FORGET_S:
            self._sweep(now)
        before = self._jobs.get(job, {}).get(uid)
        count = 1 if before is None else before.in_a_row + 1
        self._jobs.setdefault(job, {})[uid] = _Silence(count, poll_s, now)

    def answered(self, job: str, uid: str) -> None:
        """Record that the pod answered, or refused the connection."""
        silent = self._jobs.get(job)
        if silent is not None and silent.pop(uid, None) is not None and not silent:
            del self._jobs[job]

    def _sweep(self, now: float) -> None:
        self._swept = now
        for job, silent in list(self._jobs.items()):
            self._jobs[job] = {uid: each for uid, each in silent.items() if now < each.until + FORGET_S}
        self._jobs = {job: silent for job, silent in self._jobs.items() if silent}
