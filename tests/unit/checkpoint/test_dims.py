"""Saves of tables of several dims and precisions: bit for bit, of every kind, by any number of shards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cpr_contract import CONTRACT_VERSION
from cpr_contract.choices import Bits
from cpr_contract.manifests import DenseManifest
from cpr_contract.roster import AnchorRef
from cpr_contract.spec import JobSpec
from cpr_trainer.arrays import Values
from cpr_trainer.checkpoint.anchor.committer import commit_anchor
from cpr_trainer.checkpoint.format.documents import DamagedError, LayoutError
from cpr_trainer.checkpoint.format.quantise import decode_rows, encode_rows, value_bits
from cpr_trainer.checkpoint.format.records import write_restore_record
from cpr_trainer.checkpoint.restore.lineage import candidates
from cpr_trainer.checkpoint.restore_points import read_inventory, verify
from cpr_trainer.embedding.bfloat16 import converted
from support.memory_store import MemoryStore
from support.row_dims import with_dims, with_precisions
from support.row_optimizers import mixed, of_kind
from support.saves import ShardBench, restore_record
from support.shard_job import shard_roster, small_job

ROWS = (2300, 900, 40, 700)


def alter(job: JobSpec) -> JobSpec:
    """Dims 4, 16 and 3, the last one in bf16; another optimizer for each table."""
    return with_precisions(mixed(with_dims(job, None, 16, 4, 3)), "fp32", "fp32", "fp32", "bf16")


def bench_of(store: MemoryStore, shards: int = 1, index: int = 0) -> ShardBench:
    return ShardBench(store, shards=shards, index=index, rows=ROWS, dim=4, alter=alter)


def trained(store: MemoryStore, **which: int) -> ShardBench:
    bench = bench_of(store, **which)
    write_restore_record(store, restore_record(1))
    bench.change(*range(0, len(bench.arena), 3), by=0.5)
    return bench


@pytest.mark.parametrize("bits", [32, 8, 4, 3, 2])
def test_a_chain_and_a_priority_save_come_back(bits: Bits) -> None:
    """Rows of `bits` come back as those bits decode: each by itself, out of the last save that has it."""
    bench = trained(MemoryStore())
    arena = bench.arena
    saved = [segment.rows.copy() for segment in arena.segments]  # first values without a save of the row
    slots = np.arange(len(arena))
    edges = (7, 2339, 2340, 3239, 3240, len(arena) - 1)  # the bands begin and end there
    changes = (tuple(range(0, len(arena), 3)), tuple(range(1, len(arena), 50)), edges)
    for number, changed in enumerate(changes):
        if number:
            bench.change(*changed, by=1.0 + number)
        if number == 2:
            bench.save_rows(25, *changed, bits=bits)
        else:
            bench.save(10 * (number + 1), bench.links, bits=bits)
        for segment, rows in zip(arena.segments, saved, strict=True):
            written = np.isin(slots[segment.first : segment.end], changed)
            rows[written] = _rounded(segment.rows[written], bits)
    restored, local = bench.restore(bench.choices()[0])
    assert not restored.damaged
    for segment, rows, live in zip(local.arena.segments, saved, arena.segments, strict=True):
        assert np.array_equal(segment.rows, rows)
        assert np.array_equal(segment.state, live.state), "what optimizers keep is exact"


def _rounded(rows: np.ndarray, bits: Bits) -> Values:
    of_values = value_bits(bits, "bf16" if rows.dtype == np.uint16 else "fp32")
    return converted(decode_rows(encode_rows(rows, of_values), rows.shape[1], of_values).copy(), rows.dtype)


def anchor_of(store: MemoryStore, shards: int) -> tuple[AnchorRef, dict[int, tuple[bytes, bytes]]]:
    """An anchor of chains of two saves, and each row with its state, by number."""
    benches = [bench_of(store, shards, index) for index in range(shards)]
    for bench in benches:
        bench.change(*range(len(bench.arena) // 2), by=1.0 + bench.index)
        bench.save(10)
        bench.change(*range(0, len(bench.arena), 7), by=2.0)
    refs = tuple(bench.save(20, bench.links).ref for bench in benches)
    meta = DenseManifest(CONTRACT_VERSION, "uid", 1, 1, 20, 1280, 6400, benches[0].layout, ())
    anchor = commit_anchor(store, meta, {"dense": torch.zeros(1)}, refs, ((),) * shards)
    return anchor, {number: row for bench in benches for number, row in by_number(bench).items()}


def by_number(bench: ShardBench) -> dict[int, tuple[bytes, bytes]]:
    rows = [row.tobytes() for segment in bench.arena.segments for row in segment.rows]
    states = [state.tobytes() for segment in bench.arena.segments for state in segment.state]
    return dict(zip(bench.numbers.tolist(), zip(rows, states, strict=True), strict=True))


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 3), (3, 2), (4, 4), (50, 41)])
def test_all_rows_come_back_on_other_shards(before: int, after: int) -> None:
    """Some of 50 shards have no row of the small band. Saves of other shards are no base for the next save."""
    store = MemoryStore()
    anchor, expected = anchor_of(store, before)
    found = dict[int, tuple[bytes, bytes]]()
    for index in range(after):
        bench = bench_of(store, after, index)
        (only,) = bench.choices(1, 2, anchor)
        restored, local = bench.restore(only)
        assert (restored.step, restored.samples, restored.applied) == (20, 1280, (20, 20))
        assert bool(restored.chain) == (before == after)
        bench.go_on(restored, local)
        found |= by_number(bench)
        if before != after:
            full = bench.save(30, bench.links, generation=2).manifest
            assert (full.chain, full.rows) == ((), bench.arena.epochs.changed_rows)
    assert found == expected
    assert not verify(store, read_inventory(store, "uid"), "uid", bench.job.model).damaged


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda job: with_dims(alter(job), None, 16, 4, 2), "another dimension"),
        (lambda job: with_precisions(alter(job), "fp32"), "another dimension or precision"),
        (lambda job: of_kind(with_dims(job, None, 16, 4, 3), "Adam"), "optimizers of other kinds"),
    ],
    ids=["dims", "precisions", "optimizers"],
)
def test_anchor_of_other_widths_is_refused(change: Callable[[JobSpec], JobSpec], message: str) -> None:
    store = MemoryStore()
    bench = trained(store)
    meta = DenseManifest(CONTRACT_VERSION, "uid", 1, 1, 10, 640, 6400, bench.layout, ())
    anchor = commit_anchor(store, meta, {"dense": torch.zeros(1)}, (bench.save(10).ref,), ((),))
    job = change(small_job(Path("unused"), rows=ROWS, dim=4))
    job = replace(job, job_uid="other", snapshots=replace(job.snapshots, restore_from=anchor.key))
    with pytest.raises(LayoutError, match=message):
        candidates(store, job, shard_roster(), bench.placement)


def test_a_gap_in_one_band_is_noticed() -> None:
    store = MemoryStore()
    anchor, _ = anchor_of(store, 3)
    bench = bench_of(store, 1, 0)
    (only,) = bench.choices(1, 2, anchor)
    for wrong in (only.saves[:2], only.saves[1:], (only.saves[0], only.saves[2]), only.saves[::-1]):
        with pytest.raises(DamagedError, match="place"):
            bench.restore(replace(only, saves=wrong))


@pytest.mark.parametrize(("by_first", "by_end"), [(1, 1), (0, -1)])
def test_a_save_that_lacks_places_of_one_band_is_noticed(by_first: int, by_end: int) -> None:
    bench = trained(MemoryStore())
    _, (start, end), last = bench.local.spans
    bench.save(10, further=((start + by_first, end + by_end), last))
    with pytest.raises(DamagedError, match="place"):
        bench.restore(bench.choices()[0])


def test_a_save_that_lacks_a_whole_band_is_noticed() -> None:
    bench = bench_of(MemoryStore())  # nothing has changed
    write_restore_record(bench.store, restore_record(1))
    bench.save(10, further=bench.local.spans[1:2])
    with pytest.raises(DamagedError, match="rows of 2 dims, not 3"):
        bench.restore(bench.choices()[0])
