"""Batches in the order of steps, each prepared while the one before it trains."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from cpr_trainer.data.batch import Batch, Dataset
from cpr_trainer.data.order import BatchOrder


class Loader(Iterator[tuple[int, Batch]]):
    """Yields (step, the slice of trainer `rank` of `trainers`) from `first_step` to the last step.

    One thread stays exactly one step ahead. An error while a batch is prepared is raised where that batch would be
    returned. Use as a context manager, or call `close`.
    """

    def __init__(self, dataset: Dataset, order: BatchOrder, *, rank: int, trainers: int, first_step: int) -> None:
        self._dataset = dataset
        self._order = order
        self._rank = rank
        self._trainers = trainers
        self._next_step = first_step
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="loader")
        self._ahead = self._prepare()

    def __next__(self) -> tuple[int, Batch]:
        if self._ahead is None:
            raise StopIteration
        batch = self._ahead.result()
        step = self._next_step
        self._next_step += 1
        self._ahead = self._prepare()
        return step, batch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the thread; iteration is over."""
        self._ahead = None
        self._thread.shutdown(wait=True)

    def _prepare(self) -> Future[Batch] | None:
        if self._next_step > self._order.steps:
            return None
        return self._thread.submit(self.batch, self._next_step)

    def batch(self, step: int) -> Batch:
        """Return this trainer's slice of any step, out of turn: what a trainer that came back has to compute again."""
        return self._dataset.take(self._order.indices_of(self._order.slice_of(step, self._rank, self._trainers)))
