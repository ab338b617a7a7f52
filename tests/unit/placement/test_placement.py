from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpr_contract.model import ModelSpec, OptimizerSpec, SparseOptimizerSpec, TableSpec
from cpr_trainer.placement import Placement, layout_hash
from support.row_optimizers import Kind

tables = st.lists(st.integers(1, 300), min_size=1, max_size=6)


@settings(deadline=None)
@given(tables, st.integers(1, 9), st.integers(1, 70))
def test_every_row_has_one_slot_and_slots_lead_back(rows: list[int], shards: int, chunk: int) -> None:
    placement = Placement(rows, min(shards, sum(rows)))
    for shard in range(placement.shards):
        next_slot = 0
        for part in placement.rows_of(shard, chunk):
            assert part.first_slot == next_slot
            next_slot += len(part.rows)
            assert (part.rows >= 0).all()
            assert (part.rows < np.array(rows)[part.tables]).all()
            numbers = part.rows + placement.offsets[part.tables]
            found, slots = placement.locate(numbers)
            assert (found == shard).all()
            assert slots.tolist() == list(range(part.first_slot, next_slot))
            assert placement.slots_on(shard, numbers).tolist() == slots.tolist()
        assert next_slot == placement.size(shard)
    # Each slot has a row, slots lead back to it, and there are as many as rows: a bijection.
    assert sum(placement.size(shard) for shard in range(placement.shards)) == sum(rows)


@settings(deadline=None)
@given(st.integers(2, 2**43), st.integers(1, 1024), st.data())
def test_arithmetic_is_exact_for_any_number_of_rows(rows: int, shards: int, data: st.DataObject) -> None:
    placement = Placement([rows], min(shards, rows))
    number = data.draw(st.integers(0, rows - 1))
    (band,) = placement._bands
    place = (number * band.multiplier + band.shift) % rows
    numbers = np.array([number])
    assert placement.places(numbers).tolist() == [place]
    shard = next(i for i in range(placement.shards) if (i + 1) * rows // placement.shards > place)
    assert placement.locate(numbers)[0].tolist() == [shard]
    first = next(iter(placement.rows_of(shard, 4)))
    assert placement.places(first.rows)[0] == placement.starts[shard]


@pytest.mark.parametrize("shards", [2, 3, 4, 8, 18, 64])
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


def test_more_shards_than_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="3 rows cannot be split over 4 shards"):
        Placement([1, 2], 4)


def test_places_are_those_of_all_saves_ever_written() -> None:
    placement = Placement([1000, 24], 4)
    assert placement.places(np.array([0, 1, 2, 1023])).tolist() == [341, 972, 579, 734]


def test_the_layout_hash_depends_on_all_that_moves_values() -> None:
    def model(rows: int = 9, dim: int = 4, kind: Kind = "SGD", rate: float = 0.1) -> ModelSpec:
        sparse = SparseOptimizerSpec(kind, rate)
        return ModelSpec(dim, (dim,), (1,), (TableSpec("a", rows),), OptimizerSpec("SGD", 0.1), sparse)

    base = layout_hash(model())
    others = (model(rows=8), model(dim=8), model(kind="RowWiseAdagrad"))
    assert len({base, *(layout_hash(other) for other in others)}) == 4
    assert layout_hash(model(rate=0.2)) == base


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


@given(rows=st.integers(1, 120), data=st.data())
def test_the_holders_of_a_shards_places_under_another_count(rows: int, data: st.DataObject) -> None:
    shards, others = data.draw(st.integers(1, rows)), data.draw(st.integers(1, rows))
    mine, theirs = Placement([rows], shards), Placement([rows], others)
    for shard in range(shards):
        places = set(range(int(mine.starts[shard]), int(mine.starts[shard + 1])))
        overlaps = [i for i in range(others) if places & set(range(int(theirs.starts[i]), int(theirs.starts[i + 1])))]
        assert list(mine.holders(shard, others)) == overlaps
