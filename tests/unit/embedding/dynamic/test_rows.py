"""Rows of dynamic tables in an arena: first values, lookups of unknown keys, and a start from another job's entries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cpr_contract.model import DynamicSpec, FirstValue
from cpr_trainer.embedding.arena import LocalRows
from cpr_trainer.embedding.merged_rows import BandRows, KeyedRows, plan_changes
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.embedding.segments import initial_rows
from cprjob_serving.hashes import U64
from support.dynamic_shards import with_dynamic_tables
from support.shard_job import small_job

#: The band of table `b`, which counts keys.
BAND = 1


def local_rows(**rules: object) -> LocalRows:
    job = with_dynamic_tables(small_job(Path("unused")), DynamicSpec(**rules))  # type: ignore[arg-type]
    return LocalRows.of(job, Placement.of(job.model, 1), 0)


def push(local: LocalRows, step: int, keys: U64) -> None:
    """A step that adds 1 / 8 to each value, and nothing to other tables."""
    nothing = np.empty(0, np.int64)
    bands: list[BandRows | KeyedRows] = [
        BandRows(nothing, nothing, np.empty((0, segment.dim), np.float32))
        for segment in local.arena.segments
        if segment.dim
    ]
    bands[BAND] = KeyedRows(local.dynamic[0].keys_in(0, keys), np.full((len(keys), 3), -1 / 8, np.float32))
    changes = plan_changes(tuple(bands), local.dynamic, step)
    assert local.arena.apply(changes.slots, changes.numbers, changes.gradients, step, planned=changes.planned)


def read(local: LocalRows, step: int, keys: U64) -> list[list[float]]:
    band = local.dynamic[0]
    return np.asarray(band.read(band.keys_in(0, keys), step)).tolist()  # type: ignore[no-any-return]


KEYS = np.array([3, 2**63 + 5], np.uint64)


@pytest.mark.parametrize("default", ["Random", "Zero"])
def test_unknown_key_has_its_first_value_and_begins_with_it(default: FirstValue) -> None:
    local = local_rows(default=default)
    job = with_dynamic_tables(small_job(Path("unused")))
    first = initial_rows(job.model, job.data.seed, 1, KEYS.view(np.int64)) if default == "Random" else np.zeros((2, 3))
    assert read(local, 1, KEYS) == first.tolist()
    push(local, 1, KEYS[1:])
    changed = np.asarray(read(local, 2, KEYS))
    assert changed[0].tolist() == first[0].tolist()
    assert (changed[1] != first[1]).all()


def test_expired_row_begins_anew() -> None:
    local = local_rows(ttl_steps=2)
    push(local, 1, KEYS)
    once = read(local, 2, KEYS)
    push(local, 2, KEYS)
    assert read(local, 3, KEYS) != once
    assert read(local, 5, KEYS) == read(local_rows(), 1, KEYS)
    push(local, 5, KEYS)
    assert read(local, 6, KEYS) == once


def test_entries_of_another_job_count_from_the_first_step() -> None:
    """One key has expired, one was pushed twice, and one waits for its admission."""
    local = local_rows(min_steps=2, ttl_steps=4, score="Pushes", halving_steps=6)
    expired, renewed, waits = (np.array([key], np.uint64) for key in (1, 2, 2**60))
    for step, keys in ((1, [expired]), (2, [expired]), (3, [renewed]), (4, [renewed]), (5, [renewed]), (7, [waits])):
        push(local, step, np.concatenate(keys))
    before = read(local, 8, renewed)
    (table, *_) = local.dynamic
    table.start_over(7)
    columns = table.entries.entries
    assert [columns.keys[np.flatnonzero(columns.counts)].tolist()] == [renewed.tolist()]
    assert (columns.steps.sum(), columns.counts.sum(), columns.cells.any()) == (1, 1, False)
    assert read(local, 5, renewed) == before
    assert read(local, 6, renewed) != before, "it expires four steps after the first"
    assert read(local, 1, expired) == read(local_rows(), 1, expired)
