"""Loads batches in the order of steps: the next one is prepared while the current one trains."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from cpr_trainer.data.dataset import Batch, Dataset
from cpr_trainer.data.order import Order, WindowPlace


class Loader(Iterator[tuple[int, Batch]]):
    """Yields (step, the slice of trainer `rank` of `trainers`) from `first_step` to the last step.

    One thread stays exactly one step ahead; another has the dataset prefetch the current window and the next. A batch
    that failed is prepared again when it is requested, and an error is raised if that fails too. Call `close` at the
    end.
    """

    def __init__(self, dataset: Dataset, order: Order, *, rank: int, trainers: int, first_step: int) -> None:
        self._dataset = dataset
        self._order = order
        self._rank = rank
        self._trainers = trainers
        self._next_step = first_step
        self._window: WindowPlace | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="loader")
        self._prefetcher = ThreadPoolExecutor(max_workers=1, thread_name_prefix="loader-prefetch")
        self._next_batch = self._prepare()

    def __next__(self) -> tuple[int, Batch]:
        if self._next_batch is None:
            raise StopIteration
        if failed(self._next_batch):
            self._next_batch = self._thread.submit(self.batch, self._next_step)
        batch = self._next_batch.result()
        step = self._next_step
        self._next_step += 1
        self._next_batch = self._prepare()
        return step, batch

    def close(self) -> None:
        """End the iteration, and the threads once their current reads end."""
        self._next_batch = None
        self._prefetcher.shutdown(wait=True, cancel_futures=True)
        self._dataset.prefetch(np.empty(0, np.int64))
        self._thread.shutdown(wait=False)

    def batch(self, step: int) -> Batch:
        """Return this trainer's slice of any step: a trainer that came back computes earlier steps again."""
        return self._dataset.take(self._order.indices_of(self._slice(step)))

    def _prepare(self) -> Future[Batch] | None:
        if self._next_step > self._order.steps:
            return None
        window = self._order.window_at(self._slice(self._next_step).start)
        if window is not None and window != self._window:
            self._window = window
            self._prefetcher.submit(self._prefetch, window)
        return self._thread.submit(self.batch, self._next_step)

    def _prefetch(self, window: WindowPlace) -> None:
        self._dataset.prefetch(window.blocks_to_prefetch(self._rank, self._trainers))

    def _slice(self, step: int) -> range:
        return self._order.slice_of(step, self._rank, self._trainers)


def failed(future: Future[Any]) -> bool:
    """Return True if a future ended in an error."""
    return future.done() and not future.cancelled() and future.exception() is not None
