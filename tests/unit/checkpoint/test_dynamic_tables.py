"""Dynamic tables in saves: they come back bit for bit on any number of shards, and take the same steps from there."""

from __future__ import annotations

import pytest
import torch

from cpr_contract import CONTRACT_VERSION
from cpr_contract.choices import Bits
from cpr_contract.manifests import DenseManifest
from cpr_contract.roster import AnchorRef
from cpr_trainer.checkpoint.anchor.committer import commit_anchor
from cpr_trainer.checkpoint.format.records import write_restore_record
from cpr_trainer.checkpoint.restore_points import read_inventory, verify
from support.dynamic_shards import DynamicShard, draw_ids, with_dynamic_tables
from support.dynamic_steps import universe
from support.memory_store import MemoryStore
from support.saves import ShardBench, restore_record

Contents = dict[tuple[int, int], tuple[bytes, bytes]]


def bench_of(store: MemoryStore, shards: int, index: int) -> ShardBench:
    return ShardBench(store, shards=shards, index=index, alter=with_dynamic_tables)


def take_steps(benches: list[ShardBench], first: int, end: int) -> Contents:
    """Take steps of two ranks with all shards of a job; return what they hold."""
    found = Contents()
    for bench in benches:
        shard = DynamicShard(bench.job, bench.local)
        for step in range(first, end):
            shard.take_step(step, [draw_ids(10 * step + rank, universe()) for rank in range(2)], 10 * step)
        found |= shard.contents()
    return found


def anchor_at(store: MemoryStore, benches: list[ShardBench], step: int) -> AnchorRef:
    refs = tuple(bench.save(step, bench.links).ref for bench in benches)
    meta = DenseManifest(CONTRACT_VERSION, "uid", 1, 1, step, 64 * step, 6400, benches[0].layout, ())
    return commit_anchor(store, meta, {"dense": torch.zeros(1)}, refs, ((),) * len(benches))


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 2), (1, 3), (3, 2), (2, 5)])
def test_tables_take_the_same_steps_on_other_shards(before: int, after: int) -> None:
    """Five shards of four pages: one has no page of a table."""
    store = MemoryStore()
    calm = [bench_of(store, before, index) for index in range(before)]
    take_steps(calm, 1, 9)
    anchor_at(store, calm, 8)
    take_steps(calm, 9, 13)
    anchor = anchor_at(store, calm, 12)
    resumed = [bench_of(store, after, index) for index in range(after)]
    for bench in resumed:
        (only,) = bench.choices(1, 2, anchor)
        bench.go_on(*bench.restore(only))
    assert not verify(store, read_inventory(store, "uid"), "uid", resumed[0].job.model).damaged
    expected = take_steps(calm, 13, 21)
    assert take_steps(resumed, 13, 21) == expected
    assert {band for band, _ in expected} == {0, 1, 2, 3, 4}, "rows of each table, and cells"


@pytest.mark.parametrize("bits", [32, 8, 4])
def test_entries_are_exact_in_quantised_saves(bits: Bits) -> None:
    store = MemoryStore()
    bench = bench_of(store, 1, 0)
    write_restore_record(store, restore_record(1))
    take_steps([bench], 1, 9)
    bench.save(8, bits=bits)
    restored, local = bench.restore(bench.choices()[0])
    assert not restored.damaged
    for before, after in zip(bench.arena.segments, local.arena.segments, strict=True):
        assert before.state.tobytes() == after.state.tobytes()
        assert (before.rows.tobytes() == after.rows.tobytes()) == (bits == 32 or not before.dim)
