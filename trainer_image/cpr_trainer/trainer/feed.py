"""Batches with the rows they need, prepared one step ahead; and their vectors, asked for as early as is exact."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cpr_trainer.access import Access, UniqueRows, find_access
from cpr_trainer.data.batch import Batch
from cpr_trainer.data.loader import Loader
from cpr_trainer.exchange import Exchange, PendingLookup
from cpr_trainer.placement import Placement

#: Waits for a lookup's vectors in slices; raises ShardsAwayError.
Await = Callable[[PendingLookup], Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Slice:
    """This trainer's part of `step`, and the rows it needs."""

    step: int
    batch: Batch
    access: Access


class Feed:
    """Slices in the order of steps, each prepared while an earlier one trains. A context manager."""

    def __init__(self, loader: Loader, placement: Placement) -> None:
        self._loader = loader
        self._placement = placement
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="feed")
        self._ahead: Future[Slice | None] = self._thread.submit(self._prepare)

    def take(self) -> Slice | None:
        """Return the next slice, None after the last step. Raises what reading the data raises."""
        taken = self._ahead.result()
        if taken is not None:
            self._ahead = self._thread.submit(self._prepare)
        return taken

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._loader.close()

    def _prepare(self) -> Slice | None:
        step, batch = next(self._loader, (0, None))
        return None if batch is None else slice_of(step, batch, self._placement)


def slice_of(step: int, batch: Batch, placement: Placement) -> Slice:
    """Find the rows of a batch."""
    return Slice(step, batch, find_access(placement, batch.ids))


class Vectors:
    """The vectors of one slice, on their way in up to two lookups.

    Rows that the running step does not change are asked for while it computes, the others after its push: a shard
    answers after the pushes before. So a lone trainer reads what it would have read one step after the other.
    """

    def __init__(self, exchange: Exchange, wanted: Slice) -> None:
        self.slice = wanted
        self._exchange = exchange
        self._parts: list[tuple[NDArray[np.bool_], PendingLookup]] = []
        self._late: NDArray[np.bool_] = np.ones(len(wanted.access.unique), np.bool_)

    def ask_early(self, running: UniqueRows) -> None:
        """Ask for the rows that a step which changes `running` leaves alone."""
        self._late = self.slice.access.unique.shared_with(running)
        self._ask(~self._late)

    def ask_late(self) -> None:
        """Ask for all other rows."""
        self._ask(self._late)

    def ask_again(self) -> None:
        """Ask for everything anew: a shard was away."""
        self._parts = []
        self._ask(np.ones(len(self.slice.access.unique), np.bool_))

    def take(self, wait: Await) -> Tensor:
        """Return the vectors, float32 [u, D], in the order of the slice's unique rows. Raises what `wait` raises."""
        if len(self._parts) == 1:
            return wait(self._parts[0][1])
        parts = [(mask, wait(lookup)) for mask, lookup in self._parts]
        vectors = torch.empty(len(self.slice.access.unique), parts[0][1].shape[1])
        for mask, part in parts:
            vectors[torch.from_numpy(mask)] = part
        return vectors

    def _ask(self, mask: NDArray[np.bool_]) -> None:
        rows = self.slice.access.unique
        lookup = self._exchange.lookup(self.slice.step, rows if mask.all() else rows.select(mask))
        self._parts.append((mask, lookup))
