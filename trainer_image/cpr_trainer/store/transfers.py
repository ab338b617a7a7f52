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

#: Any C-contiguous memory, taken as bytes.
Buffer = bytes | bytearray | memoryview

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Memory is sent, received, written and checksummed in slices of this size. A slice stays in the cache between two
#: uses, and holds the interpreter's lock for a short time only.
SLICE_BYTES = 1 << 20
#: Simultaneous transfers. One connection or file does not saturate a network or a disk.
TRANSFERS = 4
#: Size of a burst after an idle time, in seconds of the rate: long enough for whole slices.
_BURST_S = 0.1
#: Interval at which a waiting thread checks whether it still has to wait.
_CHECK_S = 0.01


def flat(data: Buffer | Sequence[Buffer]) -> tuple[memoryview, ...]:
    """Return the buffers as one-dimensional views of bytes; empty ones are left out."""
    buffers = (data,) if isinstance(data, bytes | bytearray | memoryview) else data
    views = (memoryview(buffer) for buffer in buffers)
    return tuple(view.cast("B") for view in views if view.nbytes)


def size_of(views: Sequence[memoryview]) -> int:
    """Return the number of bytes in all views."""
    return sum(view.nbytes for view in views)


def slices(views: Sequence[memoryview]) -> Iterator[memoryview]:
    """Cut flat views into slices of at most SLICE_BYTES."""
    for view in views:
        for first in range(0, len(view), SLICE_BYTES):
            yield view[first : first + SLICE_BYTES]


def checksum(data: Buffer | Sequence[Buffer]) -> int:
    """Return the CRC-32C of the buffers' bytes, one after another, as manifests have it."""
    crc = 0
    for piece in slices(flat(data)):
        crc = extended(crc, piece)
    return crc


def extended(crc: int, piece: memoryview) -> int:
    """Return the CRC-32C of bytes with the CRC-32C `crc`, followed by `piece`."""
    return int(crc32c(piece, crc))  # without the interpreter's lock


def in_parallel(
    work: Callable[[Item], Result], items: Iterable[Item], *, threads: int = TRANSFERS, background: bool = False
) -> tuple[Result, ...]:
    """Return `work(item)` for every item, in their order.

    Each of `threads` threads takes the next item when it has finished one, so at most `threads` items are in memory.
    One thread at a time advances `items`. The first error ends the transfers, and is raised once the running ones have
    ended. With `background`, the threads preempt no other thread (on Linux).
    """
    numbered = enumerate(items)
    lock = threading.Lock()
    failed = threading.Event()
    results: dict[int, Result] = {}

    def drain() -> None:
        while not failed.is_set():
            try:
                with lock:
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
    """Make the calling thread preempt no other thread; pid 0 is the calling thread on Linux.

    A higher nice value would harm training: a nice thread waits long for a processor on a busy machine, and meanwhile
    may hold the interpreter's lock, or the lock of the rows.
    """
    if sys.platform == "linux":
        with contextlib.suppress(PermissionError):  # a sandbox may forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


class TokenBucket:
    """A token bucket in bytes, which grows by `bytes_per_s` up to `_BURST_S` of the rate. Does not wait itself.

    A caller may take more tokens than there are, and waits until the debt is paid. Therefore requests of any size share
    the rate in their order.
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
    """Limits the threads that share it to `bytes_per_s` together, except while their transfers are `urgent`.

    The limit leaves the network and the disk to training. Transfers are urgent if training waits for them, or would
    lose them.
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
            time.sleep(min(left_s, _CHECK_S))
