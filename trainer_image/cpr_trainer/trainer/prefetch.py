"""Batches and the rows they need, prepared a step in advance, and lookups, sent as early as the job allows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cpr_trainer.arrays import Values
from cpr_trainer.data.dataset import Batch
from cpr_trainer.data.loader import Loader, failed
from cpr_trainer.embedding.access import AnyAccess, Rows, as_rows, find_access
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.embedding.unique_rows import UniqueRows
from cpr_trainer.exchange import Exchange, PendingLookup

#: Waits for a lookup's vectors; raises ShardsUnavailableError.
Await = Callable[[PendingLookup], Values]


#: Returns the result of the future that its argument returns, which it may call again after a failure.
Wait = Callable[[Callable[[], "Future[Slice | None]"]], "Slice | None"]


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """The rows of a slice by when they may be read: the step before does not change the `early` ones.

    places: of each band int32 [u_b], the place of each row among all early rows followed by all late ones.
    """

    early: UniqueRows
    late: UniqueRows
    places: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Slice:
    """This trainer's part of `step`, and the rows it needs. `split` compares with the step before; None if unknown."""

    step: int
    batch: Batch
    access: AnyAccess
    split: Split | None = None


class Feed:
    """Slices in the order of steps, each prepared while an earlier one trains. A context manager.

    With `split` each slice but the first is split by the one before it. `wait` waits for each.
    """

    def __init__(
        self, loader: Loader, placement: Placement, wait: Wait = lambda begin: begin().result(), *, split: bool
    ) -> None:
        self._loader = loader
        self._wait = wait
        self._placement = placement
        self._is_split = split
        self._before: UniqueRows | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="feed")
        self._next: Future[Slice | None] = self._thread.submit(self._prepare)

    def take(self) -> Slice | None:
        """Return the next slice, None after the last step. Raises what reading the data raises."""
        taken = self._wait(self._pending)
        if taken is not None:
            self._next = self._thread.submit(self._prepare)
        return taken

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)  # A read may hang until the store answers.
        self._loader.close()

    def _pending(self) -> Future[Slice | None]:
        if failed(self._next):
            self._next = self._thread.submit(self._prepare)
        return self._next

    def _prepare(self) -> Slice | None:
        step, batch = next(self._loader, (0, None))
        if batch is None:
            return None
        prepared = slice_of(step, batch, self._placement, self._before)
        if self._is_split:
            self._before = prepared.access.unique
        return prepared


def slice_of(step: int, batch: Batch, placement: Placement, before: UniqueRows | None = None) -> Slice:
    """Find the rows of a batch; `before` are those of the step before, if known."""
    access = find_access(placement, batch.ids)
    return Slice(step, batch, access, None if before is None else _split(access.unique, before))


class Vectors:
    """The vectors of one slice, requested in up to two lookups.

    Rows that the running step does not change are requested while it computes, the others after its push: a shard
    answers a lookup after the pushes before it. A single trainer therefore reads the same values as without prefetch.
    as_of: see `Exchange.lookup`.
    """

    def __init__(self, exchange: Exchange, batch_slice: Slice, as_of: int | None = None) -> None:
        self.slice = batch_slice
        self._as_of = as_of
        self._exchange = exchange
        self._lookups: list[PendingLookup] = []
        self._block: Values | None = None

    def request_early(self) -> None:
        """Request the rows that the step before does not change."""
        if self.slice.split is not None:
            self._request(self.slice.split.early, 0)

    def request_late(self) -> None:
        """Request all other rows."""
        split = self.slice.split
        if split is None:
            self.request_all()
        else:
            self._request(split.late, len(split.early))

    def request_all(self) -> None:
        """Request all rows, in place of earlier requests: a shard may have been unavailable."""
        self.slice, self._lookups, self._block = replace(self.slice, split=None), [], None
        self._request(self.slice.access.unique, 0)

    def take(self, wait: Await) -> Rows:
        """Return the vectors in the order of the slice's unique rows. Raises what `wait` raises."""
        arrived = [wait(lookup) for lookup in self._lookups]
        if self._block is not None:  # all lookups have filled it
            bands = [as_tensor(self._block)]
        else:
            parts = (
                self._exchange.by_band(each.rows, values) for each, values in zip(self._lookups, arrived, strict=True)
            )
            bands = [torch.cat([*map(as_tensor, of_band)]) for of_band in zip(*parts, strict=True)]
        split = self.slice.split
        if split is not None:
            bands = [vectors.index_select(0, place) for vectors, place in zip(bands, split.places, strict=True)]
        return as_rows(tuple(bands))

    def _request(self, rows: UniqueRows, first: int) -> None:
        """Request rows; their vectors go to the places from `first` on."""
        if rows.bands == 1 and self._block is None:
            self._block = self._exchange.empty_vectors(self.slice.access.unique)
        inside = None if self._block is None else self._block[first : first + len(rows)]
        self._lookups.append(self._exchange.lookup(self.slice.step, rows, inside, self._as_of))


class Prefetch:
    """The vectors of the next `depth` slices of a feed, requested in advance.

    With depth 1 a slice is requested in two parts, see `Vectors`. With more, all rows are requested at once, and miss
    the pushes of the `depth` steps before them: the staleness is bounded. If shards merge steps, they answer after the
    step before: with depth 1 a slice is then requested once that is committed. `done` is the last step trained.
    """

    def __init__(self, feed: Feed, exchange: Exchange, depth: int, done: int, *, merges: bool) -> None:
        self._feed = feed
        self._exchange = exchange
        self._exact = depth == 1
        self._merges = merges
        self._requested: deque[Vectors] = deque()
        for _ in range(depth):
            if (vectors := self._next(done)) is not None:
                vectors.request_all()

    def take(self) -> Vectors | None:
        """Return the vectors of the next slice, None after the last one."""
        return self._requested.popleft() if self._requested else None

    def request(self, step: int) -> None:
        """Request one more slice as `step` begins. Raises what reading the data raises."""
        vectors = self._next(step - 1)
        if vectors is None or (self._exact and self._merges):
            return
        if self._exact:
            vectors.request_early()
        else:
            vectors.request_all()

    def after_step(self) -> None:
        """Request the rows that the step, which is now pushed and committed, has changed."""
        if self._exact and self._requested:
            self._requested[0].request_late()

    def _next(self, done: int) -> Vectors | None:
        """Take the next slice. Its vectors are, if shards merge steps and depth is above 1, those after step `done`."""
        batch_slice = self._feed.take()
        if batch_slice is None:
            return None
        self._requested.append(Vectors(self._exchange, batch_slice, None if self._exact else done))
        return self._requested[-1]


def as_array(values: Tensor) -> Values:
    """Return values, float32 or bfloat16, as an array, C-ordered, of the same memory if it is in this order.

    bfloat16 is represented by its bits, uint16.
    """
    values = values.detach().contiguous()
    return (values.view(torch.uint16) if values.dtype is torch.bfloat16 else values).numpy()


def as_tensor(values: Values) -> Tensor:
    """Return an array of `as_array` as a tensor of its type, of the same memory."""
    tensor = torch.from_numpy(values)
    return tensor.view(torch.bfloat16) if tensor.dtype is torch.uint16 else tensor


def _split(rows: UniqueRows, before: UniqueRows) -> Split:
    late = rows.shared_with(before)
    places = tuple(_places(rows.of_band(late, band)) for band in range(rows.bands))
    return Split(rows.select(~late), rows.select(late), places)


def _places(late: NDArray[np.bool_]) -> Tensor:
    """Return the place of each row once all late ones follow the others, int32 [u]. late: bool [u]."""
    place = np.empty(len(late), np.int32)
    first_late = len(late) - int(np.count_nonzero(late))
    place[~late] = np.arange(first_late, dtype=np.int32)
    place[late] = np.arange(first_late, len(late), dtype=np.int32)
    return torch.from_numpy(place)
