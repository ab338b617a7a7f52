"""Copies the rows of tables, and their state, into the arena of a shard.

A row of a static table has its place by its number. One of a dynamic table becomes an entry, with a last push in step
1; entries take slots as they do in a table of another capacity.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from cpr_trainer.arrays import Floats, Ints
from cpr_trainer.embedding.arena import LocalRows
from cpr_trainer.embedding.dynamic.rows import DynamicRows
from cpr_trainer.embedding.segments import Segment
from cpr_trainer.importing.matching import TableSource
from cpr_trainer.importing.row_keys import RowKeys
from cpr_trainer.importing.tensors import SourceError, StoredTensor

#: The bytes of a table that are read at a time.
_CHUNK_BYTES = 32 << 20
_FIRST_STEP = 1
DIVERGED = "Import a save from before that model diverged."


@dataclass(frozen=True, slots=True)
class Filled:
    """The rows of a table that a shard took, and those `dropped` because both of their buckets were full."""

    rows: int
    dropped: int = 0


def fill(local: LocalRows, table: int, source: TableSource) -> Filled:
    """Copy the rows of a table that are on a shard, and note them as changed.

    Raises SourceError for invalid values.
    """
    if source.keys is None:
        return Filled(sum(_fill_static(local, table, source, *chunk) for chunk in _chunks(source.weight)))
    (band,) = (each for each in local.dynamic if table in each.tables)
    return _fill_dynamic(local, band, band.place_of(table), source, source.keys)


def _fill_static(local: LocalRows, table: int, source: TableSource, first: int, last: int) -> int:
    """Copy those of the rows [first, last) that are on a shard; return their number."""
    placement = local.placement
    shards, slots = placement.locate(placement.offsets[table] + np.arange(first, last))
    here = np.flatnonzero(shards == local.index)
    if len(here):
        here = here[np.argsort(slots[here])]  # several segments need them ascending
        ((segment, inside),) = local.arena.parted(slots[here])
        _copy(segment, inside, source, (first, last), here)
        local.arena.epochs.note(slots[here])
    return len(here)


def _fill_dynamic(local: LocalRows, band: DynamicRows, table: int, source: TableSource, keys: RowKeys) -> Filled:
    segment = local.arena.segments[band.band]
    found = keys.within(band.pages, table)
    steps = np.full(len(found.keys), _FIRST_STEP, np.uint32)
    slots = band.insert(table, found.keys, steps, found.counts, _FIRST_STEP)
    taken = found.select(np.flatnonzero(slots >= 0))
    slots = slots[slots >= 0]
    for first, last in _chunks(source.weight):
        part = slice(*np.searchsorted(taken.rows, (first, last)).tolist())
        if part.start < part.stop:
            _copy(segment, slots[part], source, (first, last), taken.rows[part] - first)
    local.arena.epochs.note(segment.first + slots)
    return Filled(len(slots), len(found.keys) - len(slots))


def _chunks(weight: StoredTensor) -> Iterator[tuple[int, int]]:
    """Yield the bounds of runs of rows that are read together."""
    rows, dim = weight.shape
    return pairwise((*range(0, rows, max(1, _CHUNK_BYTES // (4 * dim))), rows))


def _copy(segment: Segment, to: Ints, source: TableSource, bounds: tuple[int, int], rows: Ints) -> None:
    """Copy some of the rows between two bounds to places of a segment. to, rows: int64 [k]; rows from the first on."""
    first, last = bounds
    segment.write(to, _numbers(source.weight, first, last)[rows])
    if source.sums is not None:
        values = _numbers(source.sums, first, last).reshape(-1)
        if (values < 0).any():
            raise SourceError(
                f"{source.sums.name} has negative values in its rows {first} to {last - 1}, and row-wise Adagrad has "
                "sums of squares.",
                f"Leave --map {source.sums.name} out, or name the tensor of the sums (momentum1 of TorchRec).",
            )
        segment.state[to, 0] = values[rows]


def _numbers(tensor: StoredTensor, first: int, last: int) -> Floats:
    """Return rows of a tensor as float32. Raises SourceError if a value is infinite or no number."""
    values: Floats = tensor.read(first, last).float().numpy()
    if not np.isfinite(values).all():
        raise SourceError(
            f"{tensor.name} has values in its rows {first} to {last - 1} that are infinite or no numbers.", DIVERGED
        )
    return values
