"""Places of rows: a bijection between rows and slots, even over shards, the same in all saves ever written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpr_contract.model import ModelSpec, OptimizerSpec, SparseOptimizerSpec, TableSpec
from cpr_trainer.embedding.placement import Placement, _Band, layout_hash
from support.row_dims import with_dims
from support.row_optimizers import Kind
from support.shard_job import small_job

ROWS, BANDS = (400, 30, 7, 211, 50), (0, 1, 0, 2, 1)

#: Rows of each table, and the band of each; bands are numbered in the order of their first tables.
TABLES = st.lists(st.tuples(st.integers(1, 300), st.integers(0, 2)), min_size=1, max_size=6).map(
    lambda drawn: (
        tuple(rows for rows, _ in drawn),
        tuple(list(dict.fromkeys(band for _, band in drawn)).index(band) for _, band in drawn),
    )
)


def band_sizes(rows: tuple[int, ...], bands: tuple[int, ...]) -> list[int]:
    return [sum(n for n, of in zip(rows, bands, strict=True) if of == band) for band in range(max(bands) + 1)]


@settings(deadline=None)
@given(TABLES, st.integers(1, 9), st.integers(1, 70))
def test_every_row_has_one_slot_in_its_band_and_slots_lead_back(
    tables: tuple[tuple[int, ...], tuple[int, ...]], shards: int, chunk: int
) -> None:
    rows, bands = tables
    sizes = band_sizes(rows, bands)
    shards = min(shards, max(sizes))
    placement = Placement(rows, shards, bands)
    for shard in range(shards):
        next_slot, held = 0, [0] * len(sizes)
        for part in placement.rows_of(shard, chunk):
            assert part.first_slot == next_slot
            next_slot += len(part.rows)
            assert (part.rows >= 0).all()
            assert (part.rows < np.array(rows)[part.tables]).all()
            (band,) = set(placement.band_of[part.tables].tolist())
            assert not any(held[band + 1 :]), "bands lie together, one after the other"
            held[band] += len(part.rows)
            numbers = part.rows + placement.offsets[part.tables]
            found, slots = placement.locate(numbers)
            assert (found == shard).all()
            assert slots.tolist() == list(range(part.first_slot, next_slot))
            assert placement.slots_on(shard, numbers).tolist() == slots.tolist()
        assert next_slot == placement.size(shard)
        assert held == list(placement.sizes(shard))
        assert all(size - total // shards in {0, 1} for size, total in zip(held, sizes, strict=True))
    # Each slot has a row, slots lead back to it, and there are as many as rows: a bijection.
    assert sum(placement.size(shard) for shard in range(shards)) == sum(rows)


def test_spans_are_the_places_on_one_shard_alone_for_any_number_of_shards() -> None:
    numbers = np.arange(sum(ROWS))
    alone = Placement(ROWS, 1, BANDS).places(numbers)
    for shards in (1, 2, 5):
        placement = Placement(ROWS, shards, BANDS)
        found, slots = placement.locate(numbers)
        for shard in range(shards):
            expected = np.concatenate([np.arange(*span) for span in placement.spans(shard)])
            assert np.array_equal(alone[found == shard][np.argsort(slots[found == shard])], expected)


@settings(deadline=None)
@given(st.integers(2, 2**42), st.integers(2, 2**42), st.integers(1, 1024), st.data())
def test_arithmetic_is_exact_for_any_number_of_rows(one: int, other: int, shards: int, data: st.DataObject) -> None:
    shards = min(shards, max(one, other))
    placement = Placement([one, other], shards, (0, 1))
    table = data.draw(st.integers(0, 1))
    rows = (one, other)[table]
    row = data.draw(st.integers(0, rows - 1))
    band = placement._bands[table]
    assert isinstance(band, _Band)
    rank = (row * band.multiplier + band.shift) % rows
    shard = next(i for i in range(shards) if (i + 1) * rows // shards > rank)
    slot = rank - shard * rows // shards
    if table == 1:
        slot += (shard + 1) * one // shards - shard * one // shards
    found, slots = placement.locate(np.array([row + table * one]))
    assert (found.tolist(), slots.tolist()) == ([shard], [slot])


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


@given(rows=st.integers(1, 120), data=st.data())
def test_the_holders_of_a_shards_places_under_another_count(rows: int, data: st.DataObject) -> None:
    shards, others = data.draw(st.integers(1, rows)), data.draw(st.integers(1, rows))
    mine, theirs = Placement([rows], shards), Placement([rows], others)
    for shard in range(shards):
        places = set(range(int(mine.starts[shard]), int(mine.starts[shard + 1])))
        overlaps = [i for i in range(others) if places & set(range(int(theirs.starts[i]), int(theirs.starts[i + 1])))]
        assert list(mine.holders(shard, others)) == overlaps


@pytest.mark.parametrize(("shards", "others"), [(1, 3), (3, 1), (2, 3), (4, 7)])
@pytest.mark.parametrize(("rows", "bands"), [(ROWS, BANDS), ((3, 400), (0, 1))])
def test_holders_hold_all_rows_of_a_shard(
    rows: tuple[int, ...], bands: tuple[int, ...], shards: int, others: int
) -> None:
    mine, theirs = Placement(rows, shards, bands), Placement(rows, others, bands)
    numbers = np.arange(sum(rows))
    for shard in range(shards):
        needed = set(theirs.locate(numbers[mine.locate(numbers)[0] == shard])[0].tolist())
        assert needed <= set(mine.holders(shard, others))


@pytest.mark.parametrize("shards", [2, 8, 64])
def test_the_hot_head_of_a_table_is_spread_evenly(shards: int) -> None:
    placement = Placement([1460, 583, 1_000_000, 220_260, 305], shards)
    for table in (0, 2, 3):
        head = 100 * shards
        counts = np.bincount(placement.locate(placement.offsets[table] + np.arange(head))[0], minlength=shards)
        assert counts.min() >= 90
        assert counts.max() <= 110


def test_rows_of_other_shards_and_of_no_shard_are_refused() -> None:
    placement = Placement([10], 2)
    other = np.flatnonzero(placement.locate(np.arange(10))[0] == 1)
    with pytest.raises(ValueError, match="does not lie on shard 0"):
        placement.slots_on(0, other)
    for number in (-1, 10):
        with pytest.raises(ValueError, match="outside"):
            placement.slots_on(0, np.array([number]))


@pytest.mark.parametrize(
    ("rows", "bands", "message"),
    [((1, 2), None, "3 rows cannot be split"), ((3, 3), (0, 1), "6 rows in 2 bands cannot be split")],
)
def test_more_shards_than_rows_are_refused(rows: tuple[int, ...], bands: tuple[int, ...] | None, message: str) -> None:
    with pytest.raises(ValueError, match=f"{message} over 4 shards"):
        Placement(rows, 4, bands)


def test_places_are_those_of_all_saves_ever_written() -> None:
    for bands in (None, (0, 0)):
        placement = Placement([1000, 24], 4, bands)
        assert placement.places(np.array([0, 1, 2, 1023])).tolist() == [341, 972, 579, 734]


def test_the_layout_hash_depends_on_all_that_moves_values() -> None:
    def model(rows: int = 9, dim: int = 4, kind: Kind = "SGD", rate: float = 0.1) -> ModelSpec:
        sparse = SparseOptimizerSpec(kind, rate)
        return ModelSpec(dim, (dim,), (1,), (TableSpec("a", rows),), OptimizerSpec("SGD", 0.1), sparse)

    base = layout_hash(model())
    others = (model(rows=8), model(dim=8), model(kind="RowWiseAdagrad"))
    assert len({base, *(layout_hash(other) for other in others)}) == 4
    assert layout_hash(model(rate=0.2)) == base


def test_layout_differs_by_dims_but_not_by_their_spelling() -> None:
    job = small_job(Path("unused"), dim=4)
    stated = {dims: layout_hash(with_dims(job, *dims).model) for dims in ((None,), (4, None), (8, 4), (4, 8), (8,))}
    assert stated[None,] == stated[4, None]
    assert len(set(stated.values())) == 4
    assert stated[8,] == layout_hash(replace(job.model, embedding_dim=8))


def test_the_layout_hash_depends_on_each_tables_kind_of_optimizer() -> None:
    sgd, adam = SparseOptimizerSpec("SGD", 0.1), SparseOptimizerSpec("Adam", 0.1)

    def of(*own: SparseOptimizerSpec | None) -> str:
        tables = tuple(TableSpec(f"t{t}", 9, optimizer=one) for t, one in enumerate(own))
        return layout_hash(ModelSpec(4, (4,), (1,), tables, OptimizerSpec("SGD", 0.1), sgd))

    assert len({of(None, None), of(adam, None), of(None, adam), of(adam, adam)}) == 4
    assert of(None, replace(sgd, learning_rate=0.7)) == of(None, None), "one kind, stated or not"


def test_the_layout_hash_of_one_kind_is_that_of_all_saves_ever_written() -> None:
    tables = (TableSpec("user", 1000), TableSpec("item", 24))
    model = ModelSpec(4, (4,), (1,), tables, OptimizerSpec("SGD", 0.1), SparseOptimizerSpec("RowWiseAdagrad", 0.1))
    assert layout_hash(model) == "d719b49379bc792593e8373ae42755f7e86e062c08f72a50b11946b7226f3caf"
