"""A push killed at any line: the next process has it whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from cpr_contract.choices import Precision
from cpr_contract.model import SparseOptimizerSpec, TableSpec
from cpr_contract.spec import JobSpec
from cpr_trainer.arrays import Floats, Ints, Values
from cpr_trainer.embedding.arena import Arena
from cpr_trainer.embedding.memory import SharedMemory, SizeOf
from cpr_trainer.embedding.placement import Placement
from support.killed_lines import killed_at
from support.shard_job import small_job

FILES = ("embedding/arena.py", "embedding/buffer.py", "embedding/segments.py", "embedding/optimizers.py")
OPTIMIZERS: dict[str, tuple[SparseOptimizerSpec, ...]] = {
    "SGD": (SparseOptimizerSpec("SGD", 0.1),) * 2,
    "Adam": (SparseOptimizerSpec("Adam", 0.1),) * 2,
    "two kinds": (SparseOptimizerSpec("Adagrad", 0.1), SparseOptimizerSpec("RowWiseAdagrad", 0.1)),
}


#: The dim and the precision of both tables, which are one band or two. An odd number of values of two bytes is padded.
BANDS: dict[str, tuple[tuple[int, Precision], ...]] = {
    "one band": ((4, "fp32"), (4, "fp32")),
    "one band in bf16": ((4, "bf16"), (4, "bf16")),
    "two dims": ((4, "fp32"), (8, "fp32")),
    "two precisions": ((3, "bf16"), (3, "fp32")),
}


def a_job(optimizers: Sequence[SparseOptimizerSpec], bands: Sequence[tuple[int, Precision]]) -> JobSpec:
    job = small_job(Path("unused"))
    tables = tuple(
        TableSpec(f"t{i}", rows, dim=dim, precision=precision, optimizer=optimizer)
        for i, (rows, optimizer, (dim, precision)) in enumerate(zip((50, 30), optimizers, bands, strict=True))
    )
    return replace(job, model=replace(job.model, tables=tables))


def everything(arena: Arena) -> tuple[tuple[Values, Floats], ...]:
    return tuple((segment.rows.copy(), segment.state.copy()) for segment in arena.segments)


def assert_equal(found: tuple[tuple[Values, Floats], ...], expected: tuple[tuple[Values, Floats], ...]) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine[0], theirs[0])
        np.testing.assert_array_equal(mine[1], theirs[1])


def push(arena: Arena, slots: Ints, step: int) -> None:
    gradients = [np.full_like(rows, step / 3, np.float32) for rows in arena.read(slots)]
    assert arena.apply(slots, slots, gradients, step, b"the note of %d" % step)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("bands", BANDS)
def test_a_push_killed_at_any_line_is_whole_or_was_never_there(kind: str, bands: str) -> None:
    job = a_job(OPTIMIZERS[kind], BANDS[bands])
    sizes = Placement.of(job.model, 1).sizes(0)
    size = SizeOf()
    Arena.empty(job, *sizes, memory=size)
    first, second = np.array([3, 7, 49, 60]), np.array([1, 7, 20, 60, 79])
    whole = Arena.empty(job, *sizes)
    push(whole, first, 1)
    before = everything(whole)
    push(whole, second, 2)
    after = everything(whole)
    redone = 0
    for line in count(1):
        shared = SharedMemory(size.bytes)
        killed = Arena.empty(job, *sizes, memory=shared.view())
        push(killed, first, 1)
        died = killed_at(line, lambda arena=killed: push(arena, second, 2), *FILES)
        next_arena = Arena.empty(job, *sizes, memory=shared.view())
        if next_arena.redo.number == 1:
            assert_equal(everything(next_arena), before)
        else:
            redone += 1
            next_arena.epochs.now = killed.epochs.now
            next_arena.reapply_last_push()
            assert next_arena.redo.note == b"the note of 2"
            assert_equal(everything(next_arena), after)
            assert (next_arena.epochs.of[second] == 1).all()
        if not died:
            break
    assert line > redone > 5, "it was killed before and after the record was whole"


def test_shared_memory_gives_out_no_more_than_it_has() -> None:
    with pytest.raises((TypeError, ValueError)):
        SharedMemory(64).array((65,), np.uint8)
