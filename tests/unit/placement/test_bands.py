"""Places of rows where tables have several dims."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpr_trainer.placement import Placement, layout_hash
from support.row_dims import with_dims
from support.shard_job import small_job

ROWS, BANDS = (400, 30, 7, 211, 50), (0, 1, 0, 2, 1)
SIZES = (407, 80, 211)


@pytest.mark.parametrize("shards", [1, 2, 3, 8])
def test_every_row_has_a_place_of_its_own_and_bands_lie_together(shards: int) -> None:
    placement = Placement(ROWS, shards, BANDS)
    numbers = np.arange(sum(ROWS))
    places = placement.places(numbers)
    assert sorted(places.tolist()) == numbers.tolist()
    found, slots = placement.locate(numbers)
    bands = placement.band_of[placement.tables_of(numbers)[0]]
    for shard in range(shards):
        mine = found == shard
        assert np.array_equal(placement.slots_on(shard, numbers[mine]), slots[mine])
        ordered = bands[mine][np.argsort(slots[mine])]
        assert (np.diff(ordered) >= 0).all()
        assert np.bincount(ordered, minlength=3).tolist() == list(placement.sizes(shard))
        assert all(size - total // shards in {0, 1} for size, total in zip(placement.sizes(shard), SIZES, strict=True))


@pytest.mark.parametrize("shards", [1, 3])
def test_rows_are_told_in_the_order_of_their_slots_and_never_of_two_bands(shards: int) -> None:
    placement = Placement(ROWS, shards, BANDS)
    for shard in range(shards):
        next_slot = 0
        for chunk in placement.rows_of(shard, chunk=16):
            assert chunk.first_slot == next_slot
            assert len(set(placement.band_of[chunk.tables].tolist())) == 1
            shards_of, slots = placement.locate(placement.offsets[chunk.tables] + chunk.rows)
            assert (shards_of == shard).all()
            assert slots.tolist() == list(range(next_slot, next_slot + len(chunk.rows)))
            next_slot += len(chunk.rows)
        assert next_slot == placement.size(shard)


def test_spans_are_the_places_on_one_shard_alone_whatever_the_number_of_shards() -> None:
    numbers = np.arange(sum(ROWS))
    alone = Placement(ROWS, 1, BANDS).places(numbers)
    for shards in (1, 2, 5):
        placement = Placement(ROWS, shards, BANDS)
        found, slots = placement.locate(numbers)
        for shard in range(shards):
            wanted = np.concatenate([np.arange(*span) for span in placement.spans(shard)])
            assert np.array_equal(alone[found == shard][np.argsort(slots[found == shard])], wanted)


@pytest.mark.parametrize(("shards", "others"), [(1, 3), (3, 1), (2, 3), (3, 2), (4, 7)])
@pytest.mark.parametrize(("rows", "bands"), [(ROWS, BANDS), ((3, 400), (0, 1))])
def test_holders_hold_all_rows_of_a_shard(
    rows: tuple[int, ...], bands: tuple[int, ...], shards: int, others: int
) -> None:
    mine, theirs = Placement(rows, shards, bands), Placement(rows, others, bands)
    numbers = np.arange(sum(rows))
    for shard in range(shards):
        needed = set(theirs.locate(numbers[mine.locate(numbers)[0] == shard])[0].tolist())
        assert needed <= set(mine.holders(shard, others))


@settings(deadline=None)
@given(st.integers(2, 2**42), st.integers(2, 2**42), st.integers(1, 64), st.data())
def test_arithmetic_is_exact_for_any_number_of_rows(one: int, other: int, shards: int, data: st.DataObject) -> None:
    shards = min(shards, max(one, other))
    placement = Placement([one, other], shards, (0, 1))
    table = data.draw(st.integers(0, 1))
    rows = (one, other)[table]
    row = data.draw(st.integers(0, rows - 1))
    band = placement._bands[table]
    rank = (row * band.multiplier + band.shift) % rows
    shard = next(i for i in range(shards) if (i + 1) * rows // shards > rank)
    slot = rank - shard * rows // shards
    if table == 1:
        slot += (shard + 1) * one // shards - shard * one // shards
    found, slots = placement.locate(np.array([row + table * one]))
    assert (found.tolist(), slots.tolist()) == ([shard], [slot])


def test_one_band_is_placed_as_without_bands() -> None:
    numbers = np.arange(sum(ROWS))
    assert np.array_equal(Placement(ROWS, 3).places(numbers), Placement(ROWS, 3, (0,) * 5).places(numbers))


def test_no_shard_goes_without_rows() -> None:
    with pytest.raises(ValueError, match="6 rows of 2 dims cannot be split over 4 shards"):
        Placement((3, 3), 4, (0, 1))


def test_the_layout_tells_dims_apart_and_not_how_they_are_written() -> None:
    job = small_job(Path("unused"), dim=4)
    stated = {dims: layout_hash(with_dims(job, *dims).model) for dims in ((None,), (4, None), (8, 4), (4, 8), (8,))}
    assert stated[None,] == stated[4, None]
    assert len(set(stated.values())) == 4
    assert stated[8,] == layout_hash(replace(job.model, embedding_dim=8))


@pytest.mark.parametrize("rows", [(1,), (3, 1), (2**42 + 12_345, 2**30, 7)])
@pytest.mark.parametrize("bands", [None, (0, 1, 0)])
def test_places_on_one_shard_alone_lead_back_to_their_rows(
    rows: tuple[int, ...], bands: tuple[int, ...] | None
) -> None:
    placement = Placement(rows, 1, None if bands is None else bands[: len(rows)])
    numbers = np.unique(np.random.default_rng(3).integers(0, sum(rows), 2000))
    numbers = np.union1d(numbers, [0, sum(rows) - 1])
    tables, inside = placement.rows_at(placement.places(numbers))
    assert np.array_equal(placement.offsets[tables] + inside, numbers)
    assert (inside < np.array(rows)[tables]).all()
