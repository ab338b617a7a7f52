"""An anchor read by another number of shards than wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from cpr_contract.roster import AnchorRef
from cpr_trainer.checkpoint.anchor.dense import DenseMeta, commit_anchor
from cpr_trainer.store import Received
from support.memory_store import MemoryStore
from support.saves import ShardBench, Values

ROWS, DIM = (9000, 3000), 64


def bench_of(store: MemoryStore, index: int, shards: int) -> ShardBench:
    return ShardBench(store, shards=shards, index=index, rows=ROWS, dim=DIM)


def anchor_of(store: MemoryStore, shards: int) -> tuple[AnchorRef, Values]:
    """An anchor of chains of two saves, and the values of all places."""
    benches = [bench_of(store, index, shards) for index in range(shards)]
    for bench in benches:
        bench.change(*range(len(bench.arena.rows) // 2), by=1.0 + bench.index)
        bench.save(10)
        bench.change(*range(0, len(bench.arena.rows), 7), by=2.0)
    refs = tuple(bench.save(20, bench.links).ref for bench in benches)
    meta = DenseMeta("uid", 1, 1, 20, 1280, 6400, benches[0].layout, ())
    anchor = commit_anchor(store, meta, {"dense": torch.zeros(1)}, refs, ((),) * shards)
    rows, states = zip(*(bench.values() for bench in benches), strict=True)
    return anchor, (np.concatenate(rows), np.concatenate(states))


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2)])
def test_another_job_starts_from_the_rows_of_other_shards(before: int, after: int) -> None:
    store = MemoryStore()
    anchor, expected = anchor_of(store, before)
    found = []
    for index in range(after):
        bench = bench_of(store, index, after)
        bench.job = replace(bench.job, job_uid="other", snapshots=replace(bench.job.snapshots, restore_from=anchor.key))
        (only,) = bench.choices(1)
        restored, home = bench.restore(only)
        assert (only.kind, restored.step, restored.samples, restored.chain) == ("RestoreFrom", 0, 0, ())
        found.append(bench.values(home))
    rows, states = zip(*found, strict=True)
    assert np.array_equal(np.concatenate(rows), expected[0])
    assert np.array_equal(np.concatenate(states), expected[1])


def test_a_shard_reads_only_the_parts_that_hold_its_places() -> None:
    read: list[str] = []

    class Recorder(MemoryStore):
        def get_into(self, key: str, buffers: Sequence[memoryview]) -> Received:
            read.append(key)
            return super().get_into(key, buffers)

    store = Recorder()
    anchor, _ = anchor_of(store, 1)
    parts = [entry for entry in store.list("uid/") if "part-" in entry.key]
    sizes = {entry.key: entry.size_bytes for entry in parts}
    bench = bench_of(store, 3, 4)
    bench.restore(bench.choices(1, 2, anchor)[0])
    assert set(read) < set(sizes)
    assert sum(sizes[key] for key in read) < 0.5 * sum(sizes.values())
