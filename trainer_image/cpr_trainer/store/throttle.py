"""A limit on the rate of saves, so that they leave the network and the disk to training."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: What may be sent at once after a quiet time, in seconds of the rate: long enough for whole slices, too short to hurt.
_BURST_S = 0.1
#: How long a thread waits before it looks again whether it still has to.
_LOOK_S = 0.01


class TokenBucket:
    """Bytes that may be sent, growing by `bytes_per_s` up to a tenth of a second's worth. Decides; does not wait.

    More may be taken than is there: the debt is what the taker waits for, so that takers of any size share the rate in
    the order they came.
    """

    def __init__(self, bytes_per_s: float, now_s: float) -> None:
        if not bytes_per_s > 0:
            raise ValueError(f"a rate of {bytes_per_s} bytes/s lets nothing through")
        self._rate = bytes_per_s
        self._tokens = bytes_per_s * _BURST_S
        self._now_s = now_s

    def take(self, size_bytes: int, now_s: float) -> float:
        """Take `size_bytes` and return how many seconds to wait before sending them."""
        self._tokens = min(self._rate * _BURST_S, self._tokens + self._rate * (now_s - self._now_s))
        self._now_s = now_s
        self._tokens -= size_bytes
        return max(0.0, -self._tokens / self._rate)


class Throttle:
    """Paces all threads that share it to `bytes_per_s` together, except while what they send is `urgent`.

    The limit is for the good of training. What training itself waits for, or would lose, is urgent.
    """

    def __init__(
        self, bytes_per_s: float, urgent: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._urgent = urgent
        self._clock = clock
        self._bucket = TokenBucket(bytes_per_s, clock())
        self._lock = threading.Lock()

    def wait(self, size_bytes: int) -> None:
        """Return once `size_bytes` more may be sent."""
        if self._urgent():
            return
        with self._lock:
            now_s = self._clock()
            due_s = now_s + self._bucket.take(size_bytes, now_s)
        while (left_s := due_s - self._clock()) > 0 and not self._urgent():
            time.sleep(min(left_s, _LOOK_S))
