"""The keys of rows that a dynamic table takes: hashed from the ids that another system stored with the rows.

TorchRec's MPZCH has the id of each slot in `_hash_zch_identities`, -1 in an empty one. Elsewhere every number is an id.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from cpr_contract.model import TableSpec
from cpr_trainer.arrays import Ints
from cpr_trainer.embedding.dynamic.entries import MAX_COUNT
from cpr_trainer.embedding.dynamic.pages import U32, Pages, first_of_runs
from cpr_trainer.importing.tensors import SourceError, StoredTensor
from cprjob_serving.hashes import U64, Cells, hashes

#: The name of the buffer of MPZCH (`HashZchManagedCollisionModule`) with the id of each slot, behind the table's.
IDENTITIES = "_hash_zch_identities"
_EMPTY = -1
_TEXTS = "Save it as int64; for texts, save the XXH64 of each with the seed {} as uint64, under the name {}.keys."
_INTEGERS = {torch.int64, torch.int32, torch.uint64}
_ROWS_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class RowEntries:
    """Entries of a table. rows: int64 [k] ascending, in the source. keys: uint64 [k]. counts: uint32 [k]."""

    rows: Ints
    keys: U64
    counts: U32

    def select(self, places: Ints) -> RowEntries:
        """Return some of them."""
        return RowEntries(self.rows[places], self.keys[places], self.counts[places])


@dataclass(frozen=True, slots=True, eq=False)
class RowKeys:
    """The ids of `rows` rows of a dynamic table.

    stored: their ids, integers [n] or [n, 1]; with `are_keys` their keys, uint64; None: row r has the id r. counts:
    integers [n] or [n, 1], for the counts of the entries; None: 1.
    """

    rows: int
    seed: int
    stored: StoredTensor | None
    are_keys: bool
    counts: StoredTensor | None

    @classmethod
    def of(
        cls,
        table: TableSpec,
        weight: StoredTensor,
        ids: StoredTensor | None,
        keys: StoredTensor | None,
        counts: StoredTensor | None,
    ) -> RowKeys:
        """Return those of the rows of `weight`. Raises SourceError for tensors that do not fit."""
        if ids is not None and keys is not None:
            raise SourceError(
                f"Table {table.name} has ids in {ids.name} and keys in {keys.name}.", "Import one of them."
            )
        of_table = f"of table {table.name} are"
        _check(ids, f"the ids {of_table} integers", weight, _INTEGERS, _TEXTS.format(table.hash_seed, table.name))
        _check(keys, f"the keys {of_table} uint64", weight, {torch.uint64}, "Save it as uint64.")
        _check(counts, f"the counts {of_table} integers", weight, _INTEGERS, "Save it as int64.")
        stored = ids if keys is None else keys
        return cls(weight.shape[0], table.hash_seed, stored, keys is not None, counts)

    @property
    def names(self) -> tuple[str | None, str | None]:
        """The name of the tensor of ids, and that of the keys."""
        name = None if self.stored is None else self.stored.name
        return (None, name) if self.are_keys else (name, None)

    def within(self, pages: Pages, table: int) -> RowEntries:
        """Return the entries of a table of a band in some pages.

        Raises SourceError if two rows have one id, or a count is negative.
        """
        parts = [RowEntries(np.empty(0, np.int64), np.empty(0, np.uint64), np.empty(0, np.uint32))]
        parts += [each.select(np.flatnonzero(pages.hold(table, each.keys))) for each in self._chunks()]
        entries = RowEntries(
            np.concatenate([part.rows for part in parts]),
            np.concatenate([part.keys for part in parts]),
            np.concatenate([part.counts for part in parts]),
        )
        order = np.argsort(entries.keys, kind="stable")
        twice = np.flatnonzero(~first_of_runs(entries.keys[order]))
        if len(twice):
            one, other = entries.rows[order[twice[0] - 1 : twice[0] + 1]].tolist()
            name = "The table" if self.stored is None else self.stored.name
            raise SourceError(f"{name} has one id in its rows {one} and {other}.", "Leave one of them out.")
        return entries

    def _chunks(self) -> Iterator[RowEntries]:
        """Yield the entries of all rows with an id, some rows at a time."""
        for first in range(0, self.rows, _ROWS_AT_ONCE):
            last = min(first + _ROWS_AT_ONCE, self.rows)
            stored = self.stored
            ids = np.arange(first, last) if stored is None else stored.read(first, last).reshape(-1).numpy()
            has_slots = stored is not None and stored.name.endswith(IDENTITIES)
            used = np.flatnonzero(ids != _EMPTY) if has_slots else np.arange(len(ids))
            keys = ids[used].astype(np.uint64) if self.are_keys else keys_of(ids[used], self.seed)
            yield RowEntries(first + used, keys, self._counts(first, last)[used])

    def _counts(self, first: int, last: int) -> U32:
        if self.counts is None:
            return np.ones(last - first, np.uint32)
        counts = self.counts.read(first, last).reshape(-1).numpy()
        if (counts < 0).any():
            raise SourceError(
                f"{self.counts.name} has negative values in its rows {first} to {last - 1}, and an entry counts steps.",
                f"Leave --map {self.counts.name} out.",
            )
        clipped: U32 = np.clip(counts, 1, MAX_COUNT).astype(np.uint32)
        return clipped


def _check(
    tensor: StoredTensor | None, are: str, weight: StoredTensor, dtypes: AbstractSet[torch.dtype], remedy: str
) -> None:
    """Raise SourceError if a tensor does not have a number of one of some types for each row of `weight`."""
    if tensor is None:
        return
    if tensor.dtype not in dtypes:
        raise SourceError(f"{tensor.name} is of {tensor.dtype}, and {are}.", remedy)
    rows = weight.shape[0]
    if tensor.shape not in {(rows,), (rows, 1)}:
        raise SourceError(
            f"{tensor.description} has no number for each of the {rows} rows of {weight.name}.",
            "Save one number for each row, or leave it out.",
        )


def keys_of(ids: NDArray[np.integer[Any]], seed: int) -> U64:
    """Return the key of each id, uint64 [n]: that which the id has in data, in any format. ids: integers [n]."""
    return hashes(Cells.of_arrow(pa.array(ids).cast(pa.string())), "Dynamic", seed)
