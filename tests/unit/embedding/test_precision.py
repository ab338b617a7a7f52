"""An arena with tables in bf16: updates in float32, rounded at random, the same on any number of shards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cpr_contract.choices import Precision
from cpr_contract.model import SparseOptimizerSpec, TableSpec
from cpr_contract.spec import JobSpec
from cpr_trainer.arrays import Floats
from cpr_trainer.embedding.arena import Arena
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.embedding.segments import Seeding, initial_rows
from support.row_dims import with_precisions
from support.row_optimizers import KINDS, Kind, of_kind
from support.shard_job import small_job

DIM = 6


def job_of(*precisions: Precision, kind: Kind = "SGD", shards: int = 1) -> JobSpec:
    job = small_job(Path("unused"), shards=shards, rows=(300, 80), dim=DIM)
    return of_kind(with_precisions(job, *precisions), kind)


def arenas(job: JobSpec) -> list[Arena]:
    placement = Placement.of(job.model, job.shards)
    found = [Arena.empty(job, *placement.sizes(index)) for index in range(job.shards)]
    for index, arena in enumerate(found):
        arena.seed(placement, index, Seeding.of(job.model, 7))
    return found


def push(  # noqa: PLR0913 -- a push, and its names
    job: JobSpec, to: list[Arena], numbers: np.ndarray, gradients: Floats, *, step: int, rank: int = 0
) -> None:
    placement = Placement.of(job.model, job.shards)
    shards, slots = placement.locate(numbers)
    for index, arena in enumerate(to):
        mine = np.flatnonzero(shards == index)
        mine = mine[np.argsort(slots[mine])]
        by_segment = arena.split(slots[mine], gradients[mine].ravel())
        assert arena.apply(slots[mine], numbers[mine], by_segment, step, rank=rank)


def values(job: JobSpec, of: list[Arena]) -> Floats:
    """Return all rows by their numbers, float32."""
    placement = Placement.of(job.model, job.shards)
    shards, slots = placement.locate(np.arange(placement.total))
    found = np.empty((placement.total, DIM), np.float32)
    for number, (shard, slot) in enumerate(zip(shards, slots, strict=True)):
        ((segment, inside),) = of[shard].parted(np.array([slot]))
        found[number] = segment.read(inside)[0]
    return found


def test_first_values_are_those_of_float32_to_nearest() -> None:
    mixed = values(job := job_of("fp32", "bf16"), arenas(job))
    exact = values(job := job_of("fp32"), arenas(job))
    assert np.array_equal(mixed[:300], exact[:300])
    assert (mixed[300:] != exact[300:]).any()
    np.testing.assert_allclose(mixed[300:], exact[300:], rtol=2**-8)
    assert np.array_equal(mixed[300:], initial_rows(job_of("fp32", "bf16").model, 7, 1, np.arange(80)))


@pytest.mark.parametrize("kind", KINDS)
def test_update_is_that_of_float32_rounded_to_a_neighbour(kind: Kind) -> None:
    job, exact = job_of("bf16", kind=kind), job_of("fp32", kind=kind)
    rng, (mine,), (theirs,) = np.random.default_rng(1), arenas(job), arenas(exact)
    theirs.segments[0].write(slice(None), mine.segments[0].read(slice(None)))
    for step in (1, 2):
        numbers = rng.permutation(380)[:200]
        gradients = rng.standard_normal((200, DIM), np.float32)
        push(job, [mine], numbers, gradients, step=step)
        push(exact, [theirs], numbers, gradients, step=step)
        found, expected = mine.segments[0].read(slice(None)), theirs.segments[0].read(slice(None))
        np.testing.assert_allclose(found, expected, rtol=2**-7)
        assert (found != expected).any()
        assert np.array_equal(mine.state, theirs.state), "the state is float32"
        theirs.segments[0].write(slice(None), found)


def test_small_updates_add_up() -> None:
    """Rounded to nearest, rows would not move: an update has a thousandth of the distance of two values."""
    job = job_of("bf16")
    sgd = SparseOptimizerSpec("SGD", 1.0)
    job = replace(job, model=replace(job.model, tables=(TableSpec("t", 380, precision="bf16"),), sparse_optimizer=sgd))
    (arena,) = arenas(job)
    arena.segments[0].write(slice(None), np.ones((380, DIM), np.float32))
    slots, update, steps = np.arange(380), np.full((380, DIM), -(2.0**-17), np.float32), 1000
    for step in range(1, steps + 1):
        assert arena.apply(slots, slots, update, step)
    moved = arena.segments[0].read(slice(None)).mean(dtype=np.float64) - 1
    assert moved == pytest.approx(steps * 2.0**-17, rel=0.1)


@pytest.mark.parametrize("precisions", [("bf16",), ("fp32", "bf16")])
def test_repeated_update_has_the_same_bits_on_any_number_of_shards_and_in_any_blocks(
    precisions: tuple[Precision, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for shards, block in ((1, 1 << 17), (1, 1 << 17), (3, 1 << 17), (1, 5 * DIM)):
        monkeypatch.setattr("cpr_trainer.embedding.arena._BLOCK_VALUES", block)
        job, rng = job_of(*precisions, kind="RowWiseAdagrad", shards=shards), np.random.default_rng(2)
        to = arenas(job)
        for step in range(1, 6):
            numbers = rng.permutation(380)[:150]
            push(job, to, numbers, rng.standard_normal((150, DIM), np.float32), step=step)
        found.append(values(job, to))
    assert all(np.array_equal(found[0], each) for each in found[1:])


def test_pushes_of_two_ranks_in_one_step_are_rounded_by_themselves() -> None:
    job, gradients = job_of("bf16"), np.full((380, DIM), 0.001, np.float32)
    found = []
    for rank in (0, 1):
        to = arenas(job)
        push(job, to, np.arange(380), gradients, step=1, rank=rank)
        found.append(values(job, to))
    assert (found[0] != found[1]).any()
    np.testing.assert_allclose(found[0], found[1], rtol=2**-6)
