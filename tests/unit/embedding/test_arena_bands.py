"""An arena of several dims: each segment changes, is captured and is ranked as an arena of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cpr_contract.spec import JobSpec
from cpr_trainer.embedding.arena import Arena
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.embedding.priority import Strategy, make_tracker, population_of
from cpr_trainer.embedding.segments import Seeding, initial_rows
from support.row_dims import with_dims
from support.row_optimizers import mixed
from support.shard_job import small_job

ROWS, DIMS = (400, 30, 7, 90), (5, 2, 5, 16)


def job_of() -> JobSpec:
    """Bands of 407 rows of 5 values, 30 of 2 and 90 of 16."""
    return with_dims(small_job(Path("unused"), rows=ROWS), *DIMS)


def arena_of(job: JobSpec, placement: Placement, shard: int = 0) -> Arena:
    arena = Arena.empty(job, *placement.sizes(shard))
    arena.seed(placement, shard, Seeding.of(job.model, 7))
    return arena


@pytest.mark.parametrize("shards", [1, 3])
def test_each_row_has_the_first_values_of_its_table(shards: int) -> None:
    job = job_of()
    placement = Placement.of(job.model, shards)
    for shard in range(shards):
        arena = arena_of(job, placement, shard)
        assert not any(segment.state.any() for segment in arena.segments)
        assert [segment.dim for segment in arena.segments] == [5, 2, 16]
        for table, rows in enumerate(ROWS):
            numbers = placement.offsets[table] + np.arange(rows)
            mine = numbers[placement.locate(numbers)[0] == shard]
            found = arena.read(np.sort(placement.slots_on(shard, mine)))[placement.band_of[table]]
            expected = initial_rows(job.model, 7, table, mine - placement.offsets[table])
            assert np.array_equal(found, expected[np.argsort(placement.slots_on(shard, mine))])


def test_tables_change_bit_for_bit_as_in_a_job_of_their_dim_alone() -> None:
    job = mixed(job_of())
    placement, rng = Placement.of(job.model, 1), np.random.default_rng(3)
    arena = arena_of(job, placement)
    tables = []
    for table, spec in enumerate(job.model.tables):
        model = replace(job.model, tables=(spec,), embedding_dim=DIMS[table])
        single = Arena.empty(replace(job, model=model), spec.rows)
        single.rows[:] = initial_rows(job.model, 7, table, np.arange(spec.rows))
        tables.append(single)
    for step in range(1, 5):
        slots = np.sort(rng.permutation(len(arena))[:200])
        numbers = np.argsort(placement.places(np.arange(len(arena))))[slots]
        gradients = [rng.standard_normal(rows.shape).astype(np.float32) for rows in arena.read(slots)]
        assert arena.apply(slots, numbers, gradients, step)
        of_tables, rows = placement.tables_of(numbers)
        bands = placement.band_of[of_tables]
        for table, single in enumerate(tables):
            here = of_tables == table
            mine = gradients[placement.band_of[table]][here[bands == placement.band_of[table]]]
            assert single.apply(rows[here], rows[here], mine, step)
    for table, single in enumerate(tables):
        segment = arena.segments[placement.band_of[table]]
        at = segment.within(placement.places(placement.offsets[table] + np.arange(len(single))))
        assert np.array_equal(segment.rows[at], single.rows)
        width = single.state.shape[1]
        assert np.array_equal(segment.state[at, :width], single.state)


def change(arena: Arena, slots: np.ndarray, by: float = 1.0) -> bool:
    gradients = [np.full_like(rows, by, np.float32) for rows in arena.read(slots)]
    return arena.apply(slots, np.zeros_like(slots), gradients, 1)


@pytest.mark.parametrize("strategy", ["MFU", "SSU", "SCAR", "Growth"])
def test_the_rows_that_changed_most_are_chosen_in_every_segment(strategy: Strategy) -> None:
    job = with_dims(small_job(Path("unused"), rows=(400, 300, 200)), 5, 2, 16)
    placement = Placement.of(job.model, 1)
    arena = arena_of(job, placement)
    tracker = make_tracker(strategy, arena, population_of(placement, 0), 6, np.random.default_rng(1))
    hot, warm = np.array([3, 399, 400, 699, 700, 899]), np.arange(0, 900, 100) + 7
    for times, slots in ((1, warm), (8, hot)):
        for _ in range(times):
            change(arena, slots)
            tracker.note(slots)
    claim = tracker.choose(6)
    assert claim.slots is not None
    if strategy == "SSU":
        assert set(claim.slots.tolist()) <= {*hot.tolist(), *warm.tolist()}
        return
    assert claim.slots.tolist() == hot.tolist()
    tracker.mark(claim)
    for segment, at in arena.parted(claim.slots):
        tracker.wrote(at + segment.first, segment.rows[at], segment.state[at])
    tracker.forget(claim)
    again = tracker.choose(20).slots
    assert again is not None
    assert again.tolist() == warm.tolist(), "what was saved counts no more"
