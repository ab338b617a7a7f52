"""Pods that do not answer in time: how long to leave each of them alone.

Only silence counts here. A refused connection costs nothing, and a pod that starts refuses until it is ready.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

#: The pause after the first silence in a row, in seconds; it doubles up to the last.
FIRST_PAUSE_S, LAST_PAUSE_S = 1.0, 8.0
#: So many silent pods of one job are being asked on average, however many there are.
SILENT_POLLS = 12
#: A pod that was not asked for so many seconds is forgotten; most likely it is gone.
FORGET_S = 600.0


def pause_s(in_a_row: int, poll_s: float, silent_pods: int) -> float:
    """How long to leave a pod alone that was silent `in_a_row` times, for `poll_s` seconds each.

    It grows with the number of silent pods of the job, so that each of them has its turn.
    """
    doubling = min(FIRST_PAUSE_S * 2.0 ** (in_a_row - 1), LAST_PAUSE_S)
    return max(doubling, silent_pods * poll_s / SILENT_POLLS)


@dataclass(frozen=True, slots=True)
class _Silence:
    in_a_row: int
    poll_s: float
    until: float


class Silences:
    """Which pods did not answer the last time. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._jobs: dict[str, dict[str, _Silence]] = {}
        self._swept = clock()

    def __contains__(self, pod: tuple[str, str]) -> bool:
        """Whether the pod (job uid, pod uid) did not answer the last time."""
        job, uid = pod
        return uid in self._jobs.get(job, ())

    def is_due(self, job: str, uid: str) -> bool:
        """Whether to ask the pod now. Always true of a pod that answered the last time."""
        silent = self._jobs.get(job, {})
        silence = silent.get(uid)
        if silence is None:
            return True
        return self._clock() >= silence.until + pause_s(silence.in_a_row, silence.poll_s, len(silent))

    def was_silent(self, job: str, uid: str, poll_s: float) -> None:
        """The pod was asked and did not answer within `poll_s` seconds."""
        now = self._clock()
        if now >= self._swept + FORGET_S:
            self._sweep(now)
        before = self._jobs.get(job, {}).get(uid)
        count = 1 if before is None else before.in_a_row + 1
        self._jobs.setdefault(job, {})[uid] = _Silence(count, poll_s, now)

    def answered(self, job: str, uid: str) -> None:
        """The pod was asked and did answer, be it with a refusal."""
        silent = self._jobs.get(job)
        if silent is not None and silent.pop(uid, None) is not None and not silent:
            del self._jobs[job]

    def _sweep(self, now: float) -> None:
        self._swept = now
        for job, silent in list(self._jobs.items()):
            self._jobs[job] = {uid: each for uid, each in silent.items() if now < each.until + FORGET_S}
        self._jobs = {job: silent for job, silent in self._jobs.items() if silent}
