"""The vectors that an evaluation reads: each row of its batches once, from the shard that has it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpr_contract.model import DynamicSpec, TableSpec
from cpr_trainer import evaluate
from cpr_trainer.embedding.access import find_access
from cpr_trainer.embedding.arena import LocalRows
from cpr_trainer.embedding.bfloat16 import as_floats
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.evaluate import NeededRows
from support.dynamic_shards import DynamicShard
from support.shard_job import small_job

_KEY = st.sampled_from([0, 1, 5, 2**40, 2**62, -1, -(2**63)])
_BATCHES = st.lists(st.lists(st.tuples(st.integers(0, 39), _KEY, _KEY), min_size=1), min_size=1, max_size=3)


@given(_BATCHES, st.integers(1, 4))
def test_rows_of_several_batches_are_found(batches: list[list[tuple[int, int, int]]], shards: int) -> None:
    placement = Placement([40, 3 * 4096, 4096], shards, [0, 1, 1], dynamic=(1, 2))
    accesses = [find_access(placement, np.array(ids, np.int64)).unique for ids in batches]
    for band in range(2):
        needed = NeededRows.of(accesses, band, 1)
        named = [*zip(needed.places.tolist(), needed.names.tolist(), strict=True)]
        assert len({*named}) == len(named)
        for rows in accesses:
            found = needed.find(rows)
            assert needed.places[found].tolist() == rows.of_band(rows.places, band).tolist()
            assert needed.names[found].tolist() == rows.of_band(rows.numbers, band).view(np.uint64).tolist()


@pytest.mark.parametrize("shards", [1, 3])
def test_vectors_are_those_of_the_shards(shards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = DynamicSpec(ttl_steps=2)
    tables = (
        TableSpec("site", 40, dim=3),
        TableSpec("user", 3 * 4096, dim=3, ids="Dynamic", dynamic=rules, precision="bf16"),
        TableSpec("shop", 4096, dim=3, ids="Dynamic", dynamic=rules, precision="bf16"),
    )
    job = small_job(Path("unused"))
    job = replace(job, shards=shards, model=replace(job.model, tables=tables), sparse_updates="PerStep")
    placement = Placement.of(job.model, shards)
    locals_ = [LocalRows.of(job, placement, index) for index in range(shards)]
    keys = np.random.default_rng(0).integers(-(2**63), 2**63, 30)
    samples = np.stack((np.arange(30), keys, keys), axis=1)
    for local in locals_:
        local.arena.seed(placement, local.index, local.seeding)
        for step in (1, 2, 3, 4):  # by step 5 the first ones have expired
            DynamicShard(job, local).take_step(step, [samples[5 * step : 5 * step + 10]], seed=step)

    rows = find_access(placement, samples).unique
    needed = [NeededRows.of([rows], band, 3) for band in range(2)]
    monkeypatch.setattr(evaluate, "load_anchor", lambda *arguments: locals_[arguments[-1]])
    evaluate._read(job, cast(Any, None), cast(Any, SimpleNamespace(step=5)), placement, needed)

    of_static, of_keys = (each.vectors[each.find(rows)] for each in needed)
    shard_of, slots = placement.locate(rows.of_band(rows.numbers, 0))
    expected = [locals_[shard].arena.segments[0].rows[slot] for shard, slot in zip(shard_of, slots, strict=True)]
    assert of_static.tolist() == np.array(expected).tolist()
    names, of_tables = rows.of_band(rows.numbers, 1).view(np.uint64), rows.tables_of_keys(placement, 1)
    for key, table, vector in zip(names, of_tables, of_keys, strict=True):
        (band,) = (each for local in locals_ for each in local.dynamic if each.pages.hold(table, key[np.newaxis])[0])
        assert vector.tolist() == as_floats(band.read(band.keys_in(table, key[np.newaxis]), 5))[0].tolist()
    assert len({*map(tuple, of_keys.tolist())}) == len(of_keys)
