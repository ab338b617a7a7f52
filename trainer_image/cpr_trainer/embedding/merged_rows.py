"""The gradients that the ranks of a job push in a step, their sum, and what it changes in the arena of a shard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from cpr_trainer.arrays import Floats, Ints
from cpr_trainer.embedding.dynamic.pages import BandKeys, digits_of, first_of_runs, settle
from cpr_trainer.embedding.dynamic.rows import DynamicRows, PlannedRows


@dataclass(frozen=True, slots=True, eq=False)
class NamedRows:
    """The rows that a frame names. numbers, slots: int64 [m], of static tables. keys: of each band of dynamic tables.

    values: float32 [v], those of a push, band after band.
    """

    numbers: Ints
    slots: Ints
    keys: tuple[BandKeys, ...]
    values: Floats


@dataclass(frozen=True, slots=True, eq=False)
class BandRows:
    """Gradients of different rows of a band, float32 [k, D]. slots, numbers: int64 [k], ascending in static tables."""

    slots: Ints
    numbers: Ints
    gradients: Floats


@dataclass(frozen=True, slots=True, eq=False)
class KeyedRows:
    """Gradients of the rows of different keys of a band of dynamic tables, float32 [k, D]."""

    keys: BandKeys
    gradients: Floats


#: The gradients of a rank, or of several, in a step, by band.
Contribution = tuple[BandRows | KeyedRows, ...]


def merge(parts: Sequence[Contribution]) -> Contribution:
    """Return the sum of contributions. Each row is summed in their order, so the bits depend on nothing else."""
    return parts[0] if len(parts) == 1 else tuple(map(_merge_band, zip(*parts, strict=True)))


def _merge_band(parts: Sequence[BandRows | KeyedRows]) -> BandRows | KeyedRows:
    keyed = [part for part in parts if isinstance(part, KeyedRows)]
    return _merge_keys(keyed) if keyed else _merge_rows([part for part in parts if isinstance(part, BandRows)])


def _merge_rows(parts: Sequence[BandRows]) -> BandRows:
    # `np.unique` builds a hash table, in twenty times the time of this sort of few ascending runs.
    every = np.sort(np.concatenate([part.slots for part in parts]), kind="stable")
    merged = every[first_of_runs(every)]
    numbers = np.empty(len(merged), np.int64)
    total = np.zeros((len(merged), parts[0].gradients.shape[1]), parts[0].gradients.dtype)
    for part in parts:
        places = np.searchsorted(merged, part.slots)
        numbers[places] = part.numbers
        total[places] += part.gradients
    return BandRows(merged, numbers, total)


def _merge_keys(parts: Sequence[KeyedRows]) -> KeyedRows:
    every = BandKeys(*(np.concatenate([getattr(part.keys, name) for part in parts]) for name in BandKeys.__slots__))
    digits = digits_of(every.keys, every.tables, 63)
    order = np.argsort(digits, kind="stable")  # fast for few ascending runs
    order, starts = settle(order, digits[order], every.keys)
    places = np.empty(len(order), np.int64)
    places[order] = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(order))))
    total = np.zeros((len(starts), parts[0].gradients.shape[1]), parts[0].gradients.dtype)
    ends = accumulate((len(part.keys) for part in parts), initial=0)
    for part, (start, end) in zip(parts, pairwise(ends), strict=True):
        total[places[start:end]] += part.gradients
    return KeyedRows(every.select(order[starts]), total)


@dataclass(frozen=True, slots=True, eq=False)
class RowChanges:
    """The arguments of `Arena.apply` for a merged step."""

    slots: Ints
    numbers: Ints
    gradients: tuple[Floats, ...]
    planned: tuple[PlannedRows, ...]


def plan_changes(merged: Contribution, bands: Sequence[DynamicRows], step: int) -> RowChanges:
    """Return what a step changes. A key without a row drops its gradient; cells come after the rows of all bands."""
    of_band, rows, planned = {each.band: each for each in bands}, list[BandRows](), list[PlannedRows]()
    for band, each in enumerate(merged):
        if isinstance(each, BandRows):
            rows.append(each)
            continue
        update = of_band[band].plan(each.keys, step)
        places = update.places
        slots, names = update.slots[places], each.keys.keys[places].view(np.int64)
        rows.append(BandRows(slots + of_band[band].first_slot, names, each.gradients[places]))
        planned.append(PlannedRows(of_band[band], update, places))
    cells = (each.update.cells + each.band.first_cell for each in planned)
    return RowChanges(
        np.concatenate([*(each.slots for each in rows), *cells]),
        np.concatenate([each.numbers for each in rows]),
        tuple(each.gradients for each in rows),
        tuple(planned),
    )
