from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cpr_contract.model import SparseOptimizerSpec
from cpr_contract.spec import JobSpec
from cpr_trainer.embedding.arena import Arena
from support.row_optimizers import KINDS, Kind, mixed
from support.shard_job import small_job


def job_with(kind: Kind, dim: int = 16) -> JobSpec:
    job = small_job(Path("unused"), rows=(400, 30, 7), dim=dim)
    return replace(job, model=replace(job.model, sparse_optimizer=SparseOptimizerSpec(kind, 0.05)))


def mixed_job() -> JobSpec:
    """Three tables: Adam, the model's RowWiseAdagrad, Adagrad."""
    return mixed(job_with("RowWiseAdagrad"))


@pytest.mark.parametrize("dim", [1, 3, 16, 64])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_split_over_arenas_change_bit_for_bit_as_in_one(kind: Kind, dim: int) -> None:
    job = job_with(kind, dim)
    rng = np.random.default_rng(3)
    whole = Arena.empty(job, 400)
    whole.rows[:] = rng.standard_normal((400, dim))
    halves = [Arena.empty(job, 200), Arena.empty(job, 200)]
    for half, rows in zip(halves, np.split(whole.rows, 2), strict=True):
        half.rows[:] = rows
    for step in range(1, 4):
        slots = rng.permutation(400)[:150]
        gradients = rng.standard_normal((150, dim), np.float32)
        whole.apply(slots, slots, gradients, step)
        for number, half in enumerate(halves):
            mine = slots // 200 == number
            half.apply(slots[mine] % 200, slots[mine], gradients[mine], step)
    assert np.array_equal(whole.rows, np.concatenate([half.rows for half in halves]))
    assert np.array_equal(whole.state, np.concatenate([half.state for half in halves]))


def test_a_row_takes_as_much_as_its_optimizer_keeps() -> None:
    sizes = {kind: Arena.empty(job_with(kind), 10).segments[0].row_bytes for kind in KINDS}
    assert sizes == {"SGD": 64, "RowWiseAdagrad": 68, "Adagrad": 128, "Adam": 192}
    assert Arena.empty(mixed_job(), 10).segments[0].row_bytes == 192


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_only_read_and_rows_stay_float32(kind: Kind) -> None:
    """Gradients lie in the buffer of a connection, which may not be written."""
    arena = Arena.empty(job_with(kind), 50)
    gradients = np.frombuffer(np.ones((3, 16), np.float32).tobytes(), np.float32).reshape(3, 16)
    assert not gradients.flags.writeable
    arena.apply(np.array([1, 2, 4]), np.array([1, 2, 4]), gradients, 1)
    assert np.flatnonzero(arena.rows[:, 0]).tolist() == [1, 2, 4]
    arrays = [arena.rows, *arena.read(np.arange(5)), arena.state]
    assert {array.dtype for array in arrays} == {np.dtype(np.float32)}
    assert all(array.flags.c_contiguous for array in arrays)
