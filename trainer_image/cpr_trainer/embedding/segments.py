"""The rows of one band in an arena: their slots, their first values, and the epoch of their last change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cpr_contract.choices import Precision
from cpr_contract.model import ModelSpec
from cpr_trainer.arrays import Floats, Ints, Values
from cpr_trainer.embedding.bfloat16 import as_floats, converted, narrow, widen
from cpr_trainer.embedding.memory import Memory, OwnMemory
from cprjob_serving.keyed_rows import random_vectors, scale_of, table_hashes

#: Seven bits count epochs; the eighth is set while a priority save has not read a row that it chose.
_CHOSEN = np.uint8(0x80)
_LAST = 0x7F
#: numpy stores shorter rows as one element each in up to a third of the time, and longer ones in more.
_WHOLE_BYTES = 32


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Slots from `first` on. rows: [n, D], of one element type. state: float32 [n, W], the optimizers'; W may be 0."""

    first: int
    rows: Values
    state: Floats

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def end(self) -> int:
        """The slot after the last."""
        return self.first + len(self.rows)

    @property
    def dim(self) -> int:
        """Values of a row."""
        return int(self.rows.shape[1])

    @property
    def row_bytes(self) -> int:
        """Bytes of a row with its state."""
        return self.dim * self.rows.itemsize + int(self.state.shape[1]) * self.state.itemsize

    @property
    def precision(self) -> Precision:
        """The type of the rows."""
        return "bf16" if self.rows.dtype == np.uint16 else "fp32"

    def within(self, slots: Ints) -> Ints:
        """Return the places in `rows` of these slots of the arena."""
        return slots - self.first if self.first else slots

    def read(self, at: Ints | slice) -> Floats:
        """Return the rows at these places as float32, [k, D]; a view only for a slice of rows of that type."""
        return as_floats(self.rows[at])

    def write(self, at: Ints | slice, values: Floats) -> None:
        """Replace the rows at these places by values, float32 [k, D], rounded to nearest."""
        self.rows[at] = converted(values, self.rows.dtype)


def take_rows(values: NDArray[Any], at: Ints, to: NDArray[Any]) -> None:
    """Copy the rows of values, [n, W], at places that are valid, int64 [k], to an array, [k, W]. All are C-ordered."""
    values.take(at, axis=0, out=to, mode="clip")  # the mode `raise` would copy twice


def put_rows(values: NDArray[Any], at: Ints, rows: NDArray[Any]) -> None:
    """Copy rows, [k, W], to different places of values, [n, W], int64 [k]. All are C-ordered."""
    row_bytes = values.shape[1] * values.itemsize
    if 0 < row_bytes <= _WHOLE_BYTES:
        whole = np.dtype((np.void, row_bytes))
        values.view(whole)[:, 0][at] = rows.view(whole)[:, 0]
    elif row_bytes:
        values[at] = rows


class Seeding:
    """First values of tables' rows, as DLRM has them (see `random_vectors`).

    A row without pushes is never saved. Table t has `rows`[t] rows of `dims`[t] values. First values in bf16 are
    rounded to nearest.
    """

    def __init__(self, rows: Sequence[int], dims: Sequence[int], seed: int, precisions: Sequence[Precision]) -> None:
        self.rows, self.dims, self.seed, self.precisions = tuple(rows), tuple(dims), seed, tuple(precisions)
        self._rounded: NDArray[np.bool_] = np.array([each == "bf16" for each in self.precisions])
        self._hashes = table_hashes(seed, np.arange(len(rows)))
        self._scales: Floats = np.array([scale_of(each) for each in rows])

    @classmethod
    def of(cls, model: ModelSpec, seed: int) -> Self:
        """Return that of a model's tables."""
        return cls([table.rows for table in model.tables], model.table_dims, seed, model.table_precisions)

    def values(self, tables: Ints, rows: Ints) -> NDArray[np.float32]:
        """Return the first values of rows, float32 [k, D]. tables, rows: int64 [k], of tables of one dim."""
        dim = self.dims[int(tables[0]) if len(tables) else 0]
        found = random_vectors(self._hashes[tables], rows.astype(np.uint64), self._scales[tables], dim)
        if (rounded := self._rounded[tables]).any():
            found[rounded] = widen(narrow(found[rounded]))
        return found


def initial_rows(model: ModelSpec, seed: int, table: int, rows: Ints) -> NDArray[np.float32]:
    """Return the first values of some rows (int64 [k]) of one table, float32 [k, D]."""
    return Seeding.of(model, seed).values(np.full(len(rows), table), rows)


class Epochs:
    """The epoch of each row's last change, one byte a row, from which follow the rows of the next save.

    `of`: uint8 [n]; 0 for a row that still has its first value. `now` is the current epoch. The rows changed since an
    earlier save are those of a later epoch. A failed save loses nothing: the next one uses an earlier epoch.
    """

    def __init__(self, size: int, memory: Memory | None = None) -> None:
        self.of: NDArray[np.uint8] = (memory or OwnMemory()).array((size,), np.uint8)
        self.now = 1

    def note(self, slots: Ints | slice) -> None:
        """Note that these rows change now."""
        self.of[slots] = self.now

    def end(self) -> int:
        """End the current epoch, in constant time, and return it. Raises OverflowError after the last: `fold`."""
        if self.now == _LAST:
            raise OverflowError(f"{_LAST} epochs are over")
        self.now += 1
        return self.now - 1

    @property
    def used_up(self) -> bool:
        """True if the present epoch is the last."""
        return self.now == _LAST

    def fold(self) -> None:
        """Count from the start: only whether a row ever changed is known afterwards."""
        np.minimum(self.of, 1, out=self.of)
        self.now = 2

    def clear(self) -> None:
        """Note that no row has changed: all have their first values, or are about to be loaded."""
        self.of[:] = 0
        self.now = 1

    @property
    def changed_rows(self) -> int:
        """The number of rows ever changed."""
        return int(np.count_nonzero(self.of))

    def ever_changed(self, slots: Ints | slice) -> NDArray[np.bool_]:
        """Return whether each of these rows ever changed."""
        changed: NDArray[np.bool_] = (self.of[slots] & _LAST) != 0
        return changed

    def changed(self, since: int, until: int, first: int, last: int) -> Ints:
        """Return the slots in [first, last) of rows that changed after epoch `since` and not after `until`."""
        epochs = self.of[first:last]
        return np.flatnonzero((epochs > since) & (epochs <= until)) + first

    def choose(self, slots: Ints) -> None:
        """Mark these rows: a priority save has to read them."""
        self.of[slots] |= _CHOSEN

    def chosen(self, slots: Ints) -> NDArray[np.bool_]:
        """Return whether each of these rows waits to be read, and has not changed since."""
        return self.of[slots] >= _CHOSEN

    def release(self, slots: Ints) -> None:
        """Unmark these rows: they are read, or need not be read any more."""
        self.of[slots] &= ~_CHOSEN

    def release_all(self) -> None:
        """Unmark all rows."""
        self.of &= ~_CHOSEN
