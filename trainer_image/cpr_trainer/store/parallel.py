"""Several transfers at once: one connection or file alone does not fill a network or a disk."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

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
