"""The gradients that the ranks of a job push in a step, their sum, and what it changes in the arena of a shard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cpr_trainer.arrays import Floats, Ints
from cpr_trainer.embedding.dynamic.pages import first_of_runs
from cpr_trainer.embedding.dynamic.rows import DynamicRows, PlannedRows
from cprjob_serving.hashes import U64


@dataclass(frozen=True, slots=True, eq=False)
class BandRows:
    """Gradients of different rows of a band. at: [k], ascending: int64 slots, or uint64 keys of a dynamic table.

    numbers: int64 [k], of the rows, or the bits of the keys. gradients: float32 [k, D].
    """

    at: Ints | U64
    numbers: Ints
    gradients: Floats


#: The gradients of a rank, or of several, in a step, by band.
Contribution = tuple[BandRows, ...]


def merge(parts: Sequence[Contribution]) -> Contribution:
    """Return the sum of contributions. Each row is summed in their order, so the bits depend on nothing else."""
    return parts[0] if len(parts) == 1 else tuple(map(_merge_band, zip(*parts, strict=True)))


def _merge_band(parts: Sequence[BandRows]) -> BandRows:
    # `np.unique` builds a hash table, in twenty times the time of this sort of few ascending runs.
    every = np.sort(np.concatenate([part.at for part in parts]), kind="stable")
    merged = every[first_of_runs(every)]
    numbers = np.empty(len(merged), np.int64)
    total = np.zeros((len(merged), parts[0].gradients.shape[1]), parts[0].gradients.dtype)
    for part in parts:
        places = np.searchsorted(merged, part.at)
        numbers[places] = part.numbers
        total[places] += part.gradients
    return BandRows(merged, numbers, total)


@dataclass(frozen=True, slots=True, eq=False)
class RowChanges:
    """The arguments of `Arena.apply` for a merged step."""

    slots: Ints
    numbers: Ints
    gradients: tuple[Floats, ...]
    planned: tuple[PlannedRows, ...]


def plan_changes(merged: Contribution, tables: Sequence[DynamicRows], step: int) -> RowChanges:
    """Return what a step changes. A key without a row drops its gradient; cells come after the rows of all bands."""
    rows, planned = [*merged], list[PlannedRows]()
    for table in tables:
        of_keys = merged[table.band]
        update = table.plan(of_keys.numbers.view(np.uint64), step)
        slots, places = update.changed()
        numbers, gradients = of_keys.numbers[places], of_keys.gradients[places]
        rows[table.band] = BandRows(slots + table.first_slot, numbers, gradients)
        planned.append(PlannedRows(table, update, places))
    cells = (each.update.cells + each.table.first_cell for each in planned)
    return RowChanges(
        np.concatenate([*(each.at.view(np.int64) for each in rows), *cells]),
        np.concatenate([each.numbers for each in rows]),
        tuple(each.gradients for each in rows),
        tuple(planned),
    )
