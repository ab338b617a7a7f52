"""Blocks read ahead of their use: one thread reads, as many as there are processors decode, and a bound on memory."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from threading import BoundedSemaphore, Lock
from typing import Any

from cpr_trainer.data.blocks import Block
from cpr_trainer.data.rows import Rows

#: Makes rows of a block by its number and what was fetched of it. Raises DataError.
Decode = Callable[[int, Any], Rows]


class Ahead:
    """The rows of blocks, by their numbers. Keeps those used last, up to `most_rows` rows; safe to use from threads."""

    def __init__(self, blocks: Sequence[Block], fetch: Callable[[Block], Any], decode: Decode, most_rows: int) -> None:
        self._blocks = blocks
        self._fetch = fetch
        self._make_rows = decode
        self._most_rows = most_rows
        self._lock = Lock()
        self._kept: OrderedDict[int, Future[Rows]] = OrderedDict()
        self._kept_rows = 0
        decoders = len(os.sched_getaffinity(0))
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="data-read")
        self._decoders = ThreadPoolExecutor(max_workers=decoders, thread_name_prefix="data-decode")
        self._fetched = BoundedSemaphore(decoders + 1)  # Bytes that wait for a decoder are memory too.

    def expect(self, numbers: Sequence[int]) -> None:
        """Read these blocks, in this order; forget those that were expected before and are not begun."""
        with self._lock:
            for number in self._kept.keys() - set(numbers):
                if self._kept[number].cancel():
                    self._drop(number)
            for number in numbers:
                self._want(number)

    def get(self, numbers: Iterable[int]) -> list[Rows]:
        """Return the rows of blocks, once they are there. Raises what `fetch` and `decode` raise."""
        numbers = list(numbers)
        with self._lock:
            futures = [self._want(number) for number in numbers]
        return [self._await(number, future) for number, future in zip(numbers, futures, strict=True)]

    def _await(self, number: int, future: Future[Rows]) -> Rows:
        while True:
            try:
                return future.result()
            except CancelledError:  # Others are expected now, and yet this one is needed.
                with self._lock:
                    future = self._want(number)

    def _want(self, number: int) -> Future[Rows]:
        if number in self._kept:
            self._kept.move_to_end(number)
            return self._kept[number]
        future: Future[Rows] = Future()
        self._kept[number] = future
        self._kept_rows += self._blocks[number].rows
        while self._kept_rows > self._most_rows and len(self._kept) > 1:
            self._drop(next(iter(self._kept)))
        self._reader.submit(self._read, number, future)
        return future

    def _drop(self, number: int) -> None:
        del self._kept[number]
        self._kept_rows -= self._blocks[number].rows

    def _read(self, number: int, future: Future[Rows]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        self._fetched.acquire()
        try:
            fetched = self._fetch(self._blocks[number])
        except BaseException as error:  # noqa: BLE001 -- raised again where the rows are wanted
            self._fetched.release()
            self._fail(number, future, error)
            return
        self._decoders.submit(self._decode, number, fetched, future)

    def _decode(self, number: int, fetched: Any, future: Future[Rows]) -> None:
        try:
            future.set_result(self._make_rows(number, fetched))
        except BaseException as error:  # noqa: BLE001 -- raised again where the rows are wanted
            self._fail(number, future, error)
        finally:
            self._fetched.release()

    def _fail(self, number: int, future: Future[Rows], error: BaseException) -> None:
        """Tell those who wait. Who wants the block after them has it read again: the store may be back by then."""
        with self._lock:
            if self._kept.get(number) is future:
                self._drop(number)
        future.set_exception(error)
