"""Transfers to and from a store: memory as bytes, several transfers at once, and a limit on their rate."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from awscrt.checksums import crc32c

# Memory as bytes: flattened, sliced and checksummed without a copy.


#: Any C-contiguous memory; what is not bytes is taken as its bytes.
Buffer = bytes | bytearray | memoryview

#: Memory is sent, received, written and checksummed in slices of this size: few enough to cost nothing, and short
#: enough that a slice is still in the cache when it is looked at again and the interpreter is never held for long.
SLICE_BYTES = 1 << 20


def flat(data: Buffer | Sequence[Buffer]) -> tuple[memoryview, ...]:
    """Return the buffers as one-dimensional views of bytes; empty ones are left out."""
    buffers = (data,) if isinstance(data, bytes | bytearray | memoryview) else data
    views = (memoryview(buffer) for buffer in buffers)
    return tuple(view.cast("B") for view in views if view.nbytes)


def size_of(views: Sequence[memoryview]) -> int:
    """Bytes in all views together."""
    return sum(view.nbytes for view in views)


def slices(views: Sequence[memoryview]) -> Iterator[memoryview]:
    """Cut flat views into slices of at most SLICE_BYTES."""
    for view in views:
        for first in range(0, len(view), SLICE_BYTES):
            yield view[first : first + SLICE_BYTES]


def checksum(data: Buffer | Sequence[Buffer]) -> int:
    """CRC-32C of the buffers' bytes, one after another, as manifests carry it."""
    crc = 0
    for piece in slices(flat(data)):
        crc = extended(crc, piece)
    return crc


def extended(crc: int, piece: memoryview) -> int:
    """CRC-32C of what `crc` is that of and the bytes of `piece` after it."""
    return int(crc32c(piece, crc))  # other threads run meanwhile


# Several transfers at once: one connection or file alone does not fill a network or a disk.


Item = TypeVar("Item")
Result = TypeVar("Result")

#: Transfers at once.
TRANSFERS = 4


def in_parallel(
    work: Callable[[Item], Result], items: Iterable[Item], *, threads: int = TRANSFERS, background: bool = False
) -> tuple[Result, ...]:
    """Return `work(item)` for every item, in their order.

    Each of `threads` threads takes the next item when it is done with the last, so that what items hold in memory is
    held `threads` times at most; `items` runs in these threads, for one at a time. After the first error no more items
    are taken, and it is raised once the work under way has ended. With `background`, they interrupt nobody where the
    system can tell threads apart.
    """
    numbered = enumerate(items)
    turn = threading.Lock()
    failed = threading.Event()
    results: dict[int, Result] = {}

    def drain() -> None:
        while not failed.is_set():
            try:
                with turn:
                    taken = next(numbered, None)
                if taken is None:
                    return
                number, item = taken
                results[number] = work(item)
            except BaseException:
                failed.set()
                raise

    with ThreadPoolExecutor(threads, "transfer", _yield_to_training if background else None) as pool:
        drains = [pool.submit(drain) for _ in range(threads)]
    for finished in drains:
        finished.result()
    return tuple(results[number] for number in sorted(results))


def _yield_to_training() -> None:
    """Have the calling thread alone interrupt nobody; pid 0 is that thread on Linux.

    It must not be nicer. A nice thread waits long for a processor on a busy machine, and meanwhile it may hold what
    training waits for: the interpreter, or the lock of the rows.
    """
    if sys.platform == "linux":
        with contextlib.suppress(PermissionError):  # a sandbox may not let us
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


# A limit on the rate of saves, so that they leave the network and the disk to training.


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
