"""Several transfers at once: one connection or file alone does not fill a network or a disk."""

from __future__ import annotations

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
#: Added to the niceness of background threads: a tenth of a core for them while training could use all of it.
_NICER = 10


def in_parallel(
    work: Callable[[Item], Result], items: Iterable[Item], *, threads: int = TRANSFERS, background: bool = False
) -> tuple[Result, ...]:
    """Return `work(item)` for every item, in their order.

    Each of `threads` threads takes the next item when it is done with the last, so that what items hold in memory is
    held `threads` times at most; `items` runs in these threads, for one at a time. After the first error no more items
    are taken, and it is raised once the work under way has ended. With `background`, training goes first wherever the
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
    """Lower the priority of the calling thread alone; Linux counts a thread as a process here."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _NICER)
