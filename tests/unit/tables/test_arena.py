from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cpr_contract.spec import JobSpec, OptimizerSpec
from cpr_trainer.placement import Placement
from cpr_trainer.tables.arena import Arena
from cpr_trainer.tables.seeding import Seeding, initial_rows
from support.oracle import update_rows
from support.shard_job import small_job


def job_with(kind: str, dim: int = 16) -> JobSpec:
    job = small_job(Path("unused"), rows=(400, 30, 7), dim=dim)
    return replace(job, model=replace(job.model, sparse_optimizer=OptimizerSpec(kind, 0.05)))  # type: ignore[arg-type]


@pytest.mark.parametrize("shards", [1, 3])
def test_a_seeded_arena_holds_the_first_values_of_its_rows(shards: int) -> None:
    job = job_with("RowWiseAdagrad")
    placement = Placement.of(job.model, shards)
    for shard in range(shards):
        arena = Arena.empty(job, placement.size(shard))
        arena.rows.fill(9.0)
        assert arena.accumulator is not None
        arena.accumulator.fill(9.0)
        arena.seed(placement, shard, Seeding(job.model, 7))
        for table, spec in enumerate(job.model.tables):
            rows = np.arange(spec.rows)
            numbers = rows + placement.offsets[table]
            mine = placement.shards_of(numbers) == shard
            found = arena.gather(placement.slots_on(shard, numbers[mine]))
            assert np.array_equal(found, initial_rows(job.model, 7, table, rows[mine]))
        assert not arena.accumulator.any()


@pytest.mark.parametrize("dim", [1, 3, 16, 64])
@pytest.mark.parametrize("kind", ["RowWiseAdagrad", "SGD"])
def test_rows_split_over_arenas_change_bit_for_bit_as_in_one(kind: str, dim: int) -> None:
    job = job_with(kind, dim)
    rng = np.random.default_rng(3)
    whole = Arena.empty(job, 400)
    whole.rows[:] = rng.standard_normal((400, dim))
    halves = [Arena.empty(job, 200), Arena.empty(job, 200)]
    for half, rows in zip(halves, np.split(whole.rows, 2), strict=True):
        half.rows[:] = rows
    for _ in range(3):
        slots = rng.permutation(400)[:150]
        gradients = rng.standard_normal((150, dim), np.float32)
        whole.apply(slots, gradients)
        for number, half in enumerate(halves):
            mine = slots // 200 == number
            half.apply(slots[mine] % 200, gradients[mine])
    assert np.array_equal(whole.rows, np.concatenate([half.rows for half in halves]))
    if whole.accumulator is not None:
        sums = [half.accumulator for half in halves if half.accumulator is not None]
        assert np.array_equal(whole.accumulator, np.concatenate(sums))


@pytest.mark.parametrize("kind", ["RowWiseAdagrad", "SGD"])
def test_optimizers_agree_with_the_oracle(kind: str) -> None:
    job = job_with(kind)
    rng = np.random.default_rng(4)
    arena = Arena.empty(job, 50)
    table, accumulator = torch.zeros(50, 16), torch.zeros(50)
    for _ in range(5):
        slots = rng.permutation(50)[:20]
        gradients = rng.standard_normal((20, 16), np.float32)
        arena.apply(slots, gradients)
        update_rows(job.model, table, accumulator, torch.from_numpy(slots), torch.from_numpy(gradients))
    torch.testing.assert_close(torch.from_numpy(arena.rows), table)
    if arena.accumulator is not None:
        torch.testing.assert_close(torch.from_numpy(arena.accumulator), accumulator)
    assert arena.rows.any()


@pytest.mark.parametrize("kind", ["RowWiseAdagrad", "SGD"])
def test_gradients_are_only_read(kind: str) -> None:
    """They lie in the buffer of a connection, which may not be written."""
    arena = Arena.empty(job_with(kind), 50)
    gradients = np.frombuffer(np.ones((3, 16), np.float32).tobytes(), np.float32).reshape(3, 16)
    assert not gradients.flags.writeable
    arena.apply(np.array([1, 2, 4]), gradients)
    assert np.flatnonzero(arena.rows[:, 0]).tolist() == [1, 2, 4]


@pytest.mark.parametrize("kind", ["RowWiseAdagrad", "SGD"])
def test_rows_and_their_state_stay_float32(kind: str) -> None:
    arena = Arena.empty(job_with(kind), 50)
    arena.apply(np.arange(3), np.ones((3, 16), np.float32))
    arrays = [arena.rows, arena.gather(np.arange(5)), *([] if arena.accumulator is None else [arena.accumulator])]
    assert {array.dtype for array in arrays} == {np.dtype(np.float32)}
    assert all(array.flags.c_contiguous for array in arrays)


def test_only_rows_that_never_changed_get_their_first_values() -> None:
    job = job_with("RowWiseAdagrad")
    placement = Placement.of(job.model, 1)
    arena, fresh = Arena.empty(job, placement.size(0)), Arena.empty(job, placement.size(0))
    fresh.seed(placement, 0, Seeding(job.model, 7))
    assert arena.accumulator is not None
    arena.rows.fill(9.0)
    arena.accumulator.fill(9.0)
    changed = np.array([0, 5, 436])
    arena.epochs.note(changed)
    arena.seed(placement, 0, Seeding(job.model, 7))
    assert (arena.rows[changed] == 9.0).all()
    assert (arena.accumulator[changed] == 9.0).all()
    rest = np.setdiff1d(np.arange(437), changed)
    assert np.array_equal(arena.rows[rest], fresh.rows[rest])
    assert not arena.accumulator[rest].any()


def test_an_optimizer_for_dense_parameters_is_refused() -> None:
    arena = Arena.empty(job_with("Adagrad"), 10)
    with pytest.raises(ValueError, match="dense"):
        arena.apply(np.arange(10), np.ones((10, 16), np.float32))
