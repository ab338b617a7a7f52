"""Batches with the rows they need, prepared a step ahead; and their vectors, asked for as early as the job allows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cpr_trainer.data.dataset import Batch
from cpr_trainer.data.loader import Loader, failed
from cpr_trainer.embedding.access import AnyAccess, Rows, as_rows, find_access
from cpr_trainer.embedding.placement import Placement, UniqueRows
from cpr_trainer.exchange import Exchange, PendingLookup
from cpr_trainer.exchange.encoding import Values
from cpr_trainer.trainer.values import as_tensor

#: Waits for a lookup's vectors in slices; raises ShardsAwayError.
Await = Callable[[PendingLookup], Values]

T = TypeVar("T")


class Wait(Protocol):
    """How to wait for what other threads prepare."""

    def __call__(self, begin: Callable[[], Future[T]]) -> T:
        """Return the result of the future that `begin` returns; it may be called again after a failure."""


def wait_once(begin: Callable[[], Future[T]]) -> T:
    """Wait without patience: the first failure is raised."""
    return begin().result()


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """The rows of a slice by when they may be read: `early` are those that the step before leaves alone.

    places: of each band int32 [u_b], where each row is among all early ones with all late ones after them.
    """

    early: UniqueRows
    late: UniqueRows
    places: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Slice:
    """This trainer's part of `step`, and the rows it needs. `split` is against the step before; None if unknown."""

    step: int
    batch: Batch
    access: AnyAccess
    split: Split | None = None


class Feed:
    """Slices in the order of steps, each prepared while an earlier one trains. A context manager.

    With `split` each but the first is split against the one before it. `wait` waits for each.
    """

    def __init__(self, loader: Loader, placement: Placement, wait: Wait = wait_once, *, split: bool) -> None:
        self._loader = loader
        self._wait = wait
        self._placement = placement
        self._is_split = split
        self._before: UniqueRows | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="feed")
        self._ahead: Future[Slice | None] = self._thread.submit(self._prepare)

    def take(self) -> Slice | None:
        """Return the next slice, None after the last step. Raises what reading the data raises."""
        taken = self._wait(self._following)
        if taken is not None:
            self._ahead = self._thread.submit(self._prepare)
        return taken

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)  # A read may hang for as long as the store does.
        self._loader.close()

    def _following(self) -> Future[Slice | None]:
        if failed(self._ahead):
            self._ahead = self._thread.submit(self._prepare)
        return self._ahead

    def _prepare(self) -> Slice | None:
        step, batch = next(self._loader, (0, None))
        if batch is None:
            return None
        prepared = slice_of(step, batch, self._placement, self._before)
        if self._is_split:
            self._before = prepared.access.unique
        return prepared


def slice_of(step: int, batch: Batch, placement: Placement, before: UniqueRows | None = None) -> Slice:
    """Find the rows of a batch; `before` are those of the step before, if they are known."""
    access = find_access(placement, batch.ids)
    return Slice(step, batch, access, None if before is None else _split(access.unique, before))


def _split(rows: UniqueRows, before: UniqueRows) -> Split:
    late = rows.shared_with(before)
    places = tuple(_places(rows.of_band(late, band)) for band in range(rows.bands))
    return Split(rows.select(~late), rows.select(late), places)


def _places(late: NDArray[np.bool_]) -> Tensor:
    """Return where each row is once all late ones stand after the others, int32 [u]. late: bool [u]."""
    place = np.empty(len(late), np.int32)
    first_late = len(late) - int(np.count_nonzero(late))
    place[~late] = np.arange(first_late, dtype=np.int32)
    place[late] = np.arange(first_late, len(late), dtype=np.int32)
    return torch.from_numpy(place)


class Vectors:
    """The vectors of one slice, on their way in up to two lookups.

    Rows that the running step does not change are asked for while it computes, the others after its push: a shard
    answers after the pushes before. So a lone trainer reads what it would have read one step after the other.
    """

    def __init__(self, exchange: Exchange, wanted: Slice) -> None:
        self.slice = wanted
        self._exchange = exchange
        self._lookups: list[PendingLookup] = []
        self._block: Values | None = None

    def ask_early(self) -> None:
        """Ask for the rows that the step before leaves alone."""
        if self.slice.split is not None:
            self._ask(self.slice.split.early, 0)

    def ask_late(self) -> None:
        """Ask for all other rows."""
        split = self.slice.split
        if split is None:
            self.ask_again()
        else:
            self._ask(split.late, len(split.early))

    def ask_again(self) -> None:
        """Ask for everything anew: a shard was away."""
        self.slice, self._lookups, self._block = replace(self.slice, split=None), [], None
        self._ask(self.slice.access.unique, 0)

    def take(self, wait: Await) -> Rows:
        """Return the vectors in the order of the slice's unique rows. Raises what `wait` raises."""
        arrived = [wait(lookup) for lookup in self._lookups]
        if self._block is not None:  # all came into it
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

    def _ask(self, rows: UniqueRows, first: int) -> None:
        """Ask for rows whose vectors belong at `first` and after."""
        if rows.bands == 1 and self._block is None:
            self._block = self._exchange.room(self.slice.access.unique)
        inside = None if self._block is None else self._block[first : first + len(rows)]
        self._lookups.append(self._exchange.lookup(self.slice.step, rows, inside))


class Prefetch:
    """The vectors of the next `depth` slices of a feed, on their way.

    With depth 1 a slice is asked for in two parts: the rows that the running step leaves alone, and after its push the
    others. So a lone trainer reads what it would have read one step after the other. With more, all rows are asked for
    at once, and miss the pushes of the `depth` steps before them: the staleness is bounded.
    """

    def __init__(self, feed: Feed, exchange: Exchange, depth: int) -> None:
        self._feed = feed
        self._exchange = exchange
        self._exact = depth == 1
        self._asked: deque[Vectors] = deque()
        for _ in range(depth):
            if (vectors := self._following()) is not None:
                vectors.ask_again()

    def take(self) -> Vectors | None:
        """Return the vectors of the next slice, None after the last one."""
        return self._asked.popleft() if self._asked else None

    def ask(self) -> None:
        """A step begins: ask for one more slice. Raises what reading the data raises."""
        vectors = self._following()
        if vectors is not None and self._exact:
            vectors.ask_early()
        elif vectors is not None:
            vectors.ask_again()

    def pushed(self) -> None:
        """The step is pushed: ask for what it changed."""
        if self._exact and self._asked:
            self._asked[0].ask_late()

    def _following(self) -> Vectors | None:
        wanted = self._feed.take()
        if wanted is None:
            return None
        self._asked.append(Vectors(self._exchange, wanted))
        return self._asked[-1]
