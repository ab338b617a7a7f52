"""What optimizers keep of rows, through saves: exact in all of them, whatever the optimizers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from cpr_contract.choices import Bits
from cpr_contract.spec import JobSpec
from cpr_trainer.checkpoint.anchor.dense import DenseMeta, commit_anchor
from cpr_trainer.checkpoint.format.documents import LayoutError
from cpr_trainer.checkpoint.format.records import write_origin
from cpr_trainer.checkpoint.restore.lineage import candidates
from support.memory_store import MemoryStore
from support.row_optimizers import KINDS, mixed, of_kind
from support.saves import ShardBench, origin, same
from support.shard_job import shard_roster

DIM = 4
WIDTHS = {"SGD": 0, "RowWiseAdagrad": 1, "Adagrad": DIM, "Adam": 2 * DIM, "mixed": 2 * DIM}
ALTERED: dict[str, Callable[[JobSpec], JobSpec]] = {
    **{kind: lambda job, kind=kind: of_kind(job, kind) for kind in KINDS},
    "mixed": mixed,
}


def trained(store: MemoryStore, name: str, **which: Any) -> ShardBench:
    """A shard with tables of 50 and 30 rows; all rows have changed."""
    bench = ShardBench(store, dim=DIM, alter=ALTERED[name], **which)
    write_origin(store, origin(1))
    assert bench.arena.state.shape == (len(bench.arena.rows), WIDTHS[name])
    bench.change(*range(len(bench.arena.rows)), by=0.5)
    return bench


@pytest.mark.parametrize("bits", [32, 8, 2])
@pytest.mark.parametrize("name", ALTERED)
def test_states_come_back_exactly_from_a_chain_and_a_priority_save(name: str, bits: Bits) -> None:
    bench = trained(MemoryStore(), name)
    bench.save(10, bits=bits)
    bench.change(3, 7, 40, 79, by=2.0)
    bench.save(20, bench.links, bits=bits)
    bench.change(7, 8, by=3.0)
    bench.save_rows(25, 7, 8, bits=bits)
    _, home = bench.restore(bench.choices()[0])
    rows, state = bench.values()
    found, kept = bench.values(home)
    assert np.array_equal(kept.view(np.int32), state.view(np.int32))
    assert kept.any() == (name != "SGD")
    if bits == 32:
        assert np.array_equal(found.view(np.int32), rows.view(np.int32))
    else:
        np.testing.assert_allclose(found, rows, atol=float(np.ptp(rows, axis=1).max()))


@pytest.mark.parametrize("name", ALTERED)
def test_training_goes_on_from_a_save_as_if_nothing_had_happened(name: str) -> None:
    bench = trained(MemoryStore(), name)
    bench.save(10)
    restored, home = bench.restore(bench.choices()[0])
    bench.change(1, 2, 3, 77, by=-1.0)
    expected = bench.values()
    bench.go_on(restored, home)
    bench.change(1, 2, 3, 77, by=-1.0)
    assert same(bench.values(), expected)


@pytest.mark.parametrize("name", ALTERED)
def test_states_come_back_on_other_shards(name: str) -> None:
    store = MemoryStore()
    benches = [trained(store, name, shards=2, index=index) for index in range(2)]
    refs = tuple(bench.save(10).ref for bench in benches)
    meta = DenseMeta("uid", 1, 1, 10, 640, 6400, benches[0].layout, ())
    anchor = commit_anchor(store, meta, {"dense": torch.zeros(1)}, refs, ((), ()))
    found = []
    for index in range(3):
        bench = ShardBench(store, shards=3, index=index, dim=DIM, alter=ALTERED[name])
        _, home = bench.restore(bench.choices(1, 2, anchor)[0])
        found.append(bench.values(home))
    for array in range(2):
        expected = np.concatenate([bench.values()[array] for bench in benches])
        assert np.array_equal(np.concatenate([values[array] for values in found]), expected)


def test_a_save_of_other_kinds_of_optimizers_is_refused_by_name() -> None:
    store = MemoryStore()
    bench = trained(store, "Adagrad")
    meta = DenseMeta("uid", 1, 1, 10, 640, 6400, bench.layout, ())
    anchor = commit_anchor(store, meta, {"dense": torch.zeros(1)}, (bench.save(10).ref,), ((),))
    for name in ("Adam", "mixed", "SGD"):
        job = ShardBench(store, dim=DIM, alter=ALTERED[name]).job
        job = replace(job, job_uid="other", snapshots=replace(job.snapshots, restore_from=anchor.key))
        with pytest.raises(LayoutError, match="optimizers of other kinds"):
            candidates(store, job, shard_roster(), bench.placement)
    faster = replace(bench.job.model.sparse_optimizer, learning_rate=0.5)
    job = replace(bench.job, model=replace(bench.job.model, sparse_optimizer=faster))
    bench.job = replace(job, job_uid="other", snapshots=replace(job.snapshots, restore_from=anchor.key))
    _, home = bench.restore(bench.choices()[0])
    assert same(bench.values(home), bench.values()), "another learning rate is no other layout"
