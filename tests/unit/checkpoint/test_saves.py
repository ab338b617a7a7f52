"""Saves of shards and of dense state: written, chosen, verified."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cpr_contract import CONTRACT_VERSION
from cpr_contract.codec import from_json, to_json
from cpr_contract.manifests import DenseManifest, ManifestRef, ShardManifest, TableIds
from cpr_contract.roster import AnchorRef
from cpr_trainer.checkpoint.anchor.committer import commit_anchor, save_dense
from cpr_trainer.checkpoint.format.documents import DamagedError, LayoutError, UnknownAnchorError, read_shard_manifest
from cpr_trainer.checkpoint.format.records import (
    find_anchor,
    is_even,
    read_anchor,
    read_fitting_anchor,
    write_restore_record,
)
from cpr_trainer.checkpoint.restore.dense_loader import load_dense, newest_dense
from cpr_trainer.checkpoint.restore.lineage import candidates
from cpr_trainer.embedding.placement import layout_hash
from cpr_trainer.store import ExistsError, Received, StoreUnreachableError
from support.memory_store import MemoryStore
from support.saves import ShardBench, restore_record, same
from support.shard_job import shard_roster, small_job

ROWS, DIM = (9000, 3000), 64  # three parts of 1 MiB
JOB = replace(small_job(Path("unused"), rows=ROWS, dim=DIM), job_uid="uid")
DENSE = DenseManifest(
    contract=CONTRACT_VERSION,
    job_uid="uid",
    generation=1,
    group=1,
    step=10,
    samples=640,
    total_samples=6400,
    layout=layout_hash(JOB.model),
    parts=(),
    dense_lost=((0, 64),),
)


class Bench(ShardBench):
    """A shard with saves of several parts; every row has changed."""

    def __init__(self, store: MemoryStore | None = None, index: int = 0, shards: int = 1) -> None:
        super().__init__(store or MemoryStore(), index=index, shards=shards, rows=ROWS, dim=DIM)
        self.memory: MemoryStore = self.store  # type: ignore[assignment]
        self.change(*range(len(self.arena.rows)), by=1.0 + index)
        write_restore_record(self.store, restore_record(1, index=index))


def test_a_shard_comes_back_bit_by_bit() -> None:
    bench = Bench()
    saved = bench.save(10, lost=((64, 128),))
    assert [part.rows for part in saved.manifest.parts] == [4033, 4033, 3934]
    first, seed = bench.choices()
    restored, local = bench.restore(first)
    assert same(bench.values(local), bench.values())
    assert (restored.step, restored.samples, restored.applied, restored.lost) == (10, 640, (10, 10), ((64, 128),))
    assert restored.ref == saved.ref
    assert seed.kind == "Seed"


def test_save_counts_from_its_manifest_on_in_any_order_of_writes() -> None:
    bench, puts = Bench(), itertools.count()

    def dies_at(fatal: int) -> Callable[[str], None]:
        def before_put(_key: str) -> None:
            if next(puts) == fatal:
                raise StoreUnreachableError("gone.", "")

        return before_put

    for fatal in range(4):  # three parts and the manifest
        puts = itertools.count()
        bench.memory.before_put = dies_at(fatal)
        with pytest.raises(StoreUnreachableError):
            bench.save(10)
        assert [candidate.kind for candidate in bench.choices()] == ["Seed"]
        assert read_shard_manifest(bench.store, "uid", 1, 0, 1, 10) is None
    bench.memory.before_put = lambda _key: None
    saved = bench.save(10)
    assert read_shard_manifest(bench.store, "uid", 1, 0, 1, 10) == (saved.manifest, saved.ref)
    assert bench.save(10) == saved, "a lost answer: the second attempt finds its own manifest"
    with pytest.raises(ExistsError):
        bench.save(10, samples=641)


def flip(data: bytes) -> bytes:
    return data[:1000] + bytes([data[1000] ^ 1]) + data[1001:]


DAMAGES: dict[str, Callable[[MemoryStore, str], object]] = {
    "one bit flipped": lambda s, f: s.put(f + "part-00001", flip(s.get(f + "part-00001"))),
    "cut short": lambda s, f: s.put(f + "part-00002", s.get(f + "part-00002")[:-1]),
    "longer": lambda s, f: s.put(f + "part-00000", s.get(f + "part-00000") + b"\0"),
    "missing": lambda s, f: s.delete([f + "part-00001"]),
    "swapped": lambda s, f: s.put(f + "part-00000", s.get(f + "part-00001")),
    "manifest cut short": lambda s, f: s.put(f + "manifest.json", s.get(f + "manifest.json")[:-9]),
    "manifest missing": lambda s, f: s.delete([f + "manifest.json"]),
    "manifest empty": lambda s, f: s.put(f + "manifest.json", b""),
    "manifest of another step": lambda s, f: edit(s, f, step=11),
    "manifest of another shard": lambda s, f: edit(s, f, index=1),
    "manifest of another job": lambda s, f: edit(s, f, job_uid="other"),
    "manifest of another generation": lambda s, f: edit(s, f, generation=2),
    "manifest of another layout": lambda s, f: edit(s, f, layout="other"),
    "manifest of other places": lambda s, f: edit(s, f, first_place=1),
    "manifest of fewer places": lambda s, f: edit(s, f, places=11_999),
    "manifest of a version to come": lambda s, f: edit(s, f, contract=9),
    "manifest that leaves out a part": lambda s, f: edit(s, f, drop=True),
    "manifest whose parts lie elsewhere": lambda s, f: edit(s, f, shift=True),
    "manifest on a save that is gone": lambda s, f: edit(s, f, chain=(ManifestRef(f + "gone", ""),)),
}


def edit(store: MemoryStore, folder: str, *, drop: bool = False, shift: bool = False, **changes: Any) -> None:
    manifest = from_json(ShardManifest, store.get(folder + "manifest.json"))
    parts = manifest.parts[:-1] if drop else manifest.parts
    parts = tuple(replace(part, first=part.first + 1) for part in parts) if shift else parts
    store.put(folder + "manifest.json", to_json(replace(manifest, parts=parts, **changes)).encode())


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_save_is_named_and_the_one_before_it_is_taken(damage: str) -> None:
    bench = Bench()
    bench.save(10)
    old = bench.values()
    bench.change(*range(12_000), by=3.0)
    saved = bench.save(20)
    folder = saved.ref.key.removesuffix("manifest.json")
    newest, older, _ = bench.choices()
    DAMAGES[damage](bench.memory, folder)
    with pytest.raises(DamagedError) as raised:
        bench.restore(newest)
    assert raised.value.key.startswith(folder)
    assert raised.value.key in raised.value.message
    restored, local = bench.restore(older)
    assert restored.step == 10
    assert same(bench.values(local), old)


def anchored(
    store: MemoryStore, uid: str = "uid", ids: TableIds = (), applied: tuple[int, ...] = (10, 10)
) -> tuple[AnchorRef, list[Bench]]:
    """An anchor at step 10 of two shards. The second has applied these steps of each rank."""
    benches = [Bench(store, index, 2) for index in (0, 1)]
    saves = zip(benches, ((10, 10), applied), strict=True)
    refs = tuple(bench.save(10, job_uid=uid, lost=((64, 128),), applied=each).ref for bench, each in saves)
    meta = replace(DENSE, job_uid=uid, layout=benches[0].layout, ids=ids)
    return commit_anchor(store, meta, {"dense": torch.arange(6.0).view(2, 3)}, refs, (((64, 128),), ())), benches


def test_a_shard_reads_only_the_parts_that_hold_its_places() -> None:
    read: list[str] = []

    class Recorder(MemoryStore):
        def get_into(self, key: str, buffers: Sequence[memoryview]) -> Received:
            read.append(key)
            return super().get_into(key, buffers)

    store = Recorder()
    bench = Bench(store)
    saved = bench.save(10)
    meta = replace(DENSE, layout=bench.layout)
    anchor = commit_anchor(store, meta, {"dense": torch.zeros(1)}, (saved.ref,), ((),))
    last = ShardBench(store, index=3, shards=4, rows=ROWS, dim=DIM)
    read.clear()
    last.restore(last.choices(1, 2, anchor)[0])
    sizes = {part.key: part.size_bytes for part in saved.manifest.parts}
    assert set(read) < set(sizes)
    assert sum(sizes[key] for key in read) < 0.5 * sum(sizes.values())


def test_a_pruned_or_damaged_anchor_does_not_hide_newer_saves() -> None:
    store = MemoryStore()
    anchor, (_, bench) = anchored(store)
    write_restore_record(store, restore_record(1, index=1, generation=2))
    bench.save(20, generation=2)
    store.delete([anchor.key])
    newer, replaced = bench.choices(2, 2, anchor)
    assert bench.restore(newer)[0].step == 20
    with pytest.raises(DamagedError, match="missing"):
        bench.restore(replaced)


def test_an_anchor_of_another_digest_is_damaged_and_so_is_one_whose_save_was_exchanged() -> None:
    store = MemoryStore()
    anchor, (_, bench) = anchored(store)
    (only,) = bench.choices(1, 2, replace(anchor, digest="0" * 64))
    with pytest.raises(DamagedError, match="digest"):
        bench.restore(only)
    ref = read_shard_manifest(store, "uid", 1, 1, 1, 10)
    assert ref is not None
    store.put(ref[1].key, store.get(ref[1].key).replace(b'"lost":[[64,128]]', b'"lost":[[64,129]]'))
    (only,) = bench.choices(1, 2, anchor)
    with pytest.raises(DamagedError, match="digest"):
        bench.restore(only)
    with pytest.raises(DamagedError, match="digest"):
        is_even(store, anchor)


@pytest.mark.parametrize(
    ("applied", "even"), [((10, 10), True), ((10, 11), False), ((11, 11), False), ((9, 10), False)]
)
def test_anchor_is_even_if_all_ranks_stand_at_its_step(applied: tuple[int, ...], *, even: bool) -> None:
    """Any number of trainers can continue from an even anchor."""
    store = MemoryStore()
    assert is_even(store, anchored(store, applied=applied)[0]) == even


def test_another_jobs_anchor_gives_values_but_no_progress() -> None:
    store = MemoryStore()
    anchor, (_, bench) = anchored(store, uid="yesterday")
    job = replace(bench.job, snapshots=replace(bench.job.snapshots, restore_from=anchor.key))
    (only,) = candidates(store, job, shard_roster(index=1), bench.placement)
    restored, local = bench.restore(only)
    assert same(bench.values(local), bench.values())
    assert (restored.step, restored.samples, restored.applied, restored.lost) == (0, 0, (), ())
    assert restored.chain == (), "that job may delete what it wrote"
    dense = load_dense(store, *newest_dense(store, job, 1, None))
    assert (dense.step, dense.samples, dense.lost, list(dense.tensors)) == (0, 0, (), ["dense"])
    assert read_fitting_anchor(store, anchor.key, bench.layout, ()) == read_anchor(store, anchor)
    with pytest.raises(LayoutError, match="other tables"):
        read_fitting_anchor(store, anchor.key, "other layout", ())
    for key, message in (
        (anchor.key + "x", "missing"),
        ("../other", "not a key"),
        ("a//b", "not a key"),
        ("", "not a key"),
    ):
        with pytest.raises(UnknownAnchorError, match=message) as unknown:
            newest_dense(store, replace(job, snapshots=replace(job.snapshots, restore_from=key)), 1, None)
        assert (unknown.value.reason, "cprjob snapshots ls" in unknown.value.remedy) == ("BadSpec", True)
    own = save_dense(store, DENSE, {"dense": torch.zeros(1)})
    with pytest.raises(UnknownAnchorError, match="not an anchor"):
        read_fitting_anchor(store, own.key, "layout", ())


@pytest.mark.parametrize(
    ("saved", "requested", "message"),
    [
        ((), (("t1", "RowNumber"),), "ids of CPR64 in table t1; this job has RowNumber"),
        (
            (("t0", "RowNumber"), ("t1", "RowNumber")),
            (("t0", "RowNumber"),),
            "RowNumber in table t1; this job has CPR64",
        ),
    ],
)
def test_rows_of_other_ids_are_refused_by_name(saved: TableIds, requested: TableIds, message: str) -> None:
    store = MemoryStore()
    anchor, (_, bench) = anchored(store, uid="yesterday", ids=saved)
    assert read_fitting_anchor(store, anchor.key, bench.layout, saved) == read_anchor(store, anchor)
    numbered = dict(requested)
    tables = (replace(t, ids="RowNumber" if t.name in numbered else "CPR64") for t in bench.job.model.tables)
    model, saves = replace(bench.job.model, tables=tuple(tables)), bench.job.snapshots
    job = replace(bench.job, model=model, snapshots=replace(saves, restore_from=anchor.key))
    with pytest.raises(LayoutError, match=message):
        candidates(store, job, shard_roster(index=1), bench.placement)
    with pytest.raises(LayoutError, match=message):
        newest_dense(store, job, 1, None)


def test_newest_dense_save_wins_and_names_the_missing_entries() -> None:
    store = MemoryStore()
    anchor, (bench, _) = anchored(store)
    save_dense(store, replace(DENSE, step=15, samples=960, layout=bench.layout), {"dense": torch.ones(1)})
    newest, older, seed = newest_dense(store, bench.job, 1, None)
    restored = load_dense(store, newest)
    assert (restored.step, restored.samples, restored.lost) == (15, 960, ((0, 64),))
    assert (older.step, older.key, seed.kind) == (10, anchor.key, "Seed")
    rolled_back = load_dense(store, *newest_dense(store, bench.job, 2, anchor))
    assert (rolled_back.step, rolled_back.samples, rolled_back.lost) == (10, 640, ())
    assert torch.equal(rolled_back.tensors["dense"], torch.arange(6.0).view(2, 3))
    assert load_dense(store, seed).tensors == {}


def test_a_dense_save_and_an_anchor_of_one_step_do_not_meet() -> None:
    store = MemoryStore()
    save_dense(store, DENSE, {"dense": torch.ones(1)})
    anchor, _ = anchored(store)
    assert find_anchor(store, "uid", 1, 10) == anchor
    assert find_anchor(store, "uid", 1, 11) is None
    assert find_anchor(store, "uid", 2, 10) is None
    with pytest.raises(ValueError, match="all shards"):
        commit_anchor(store, DENSE, {}, (), ())


def test_committed_dense_save_is_never_replaced() -> None:
    """Without lockstep the state may change while the step that all have reached stays."""
    store = MemoryStore()
    saved = save_dense(store, DENSE, {"dense": torch.ones(1)})
    assert save_dense(store, DENSE, {"dense": torch.ones(1)}) == saved
    with pytest.raises(ExistsError):
        save_dense(store, DENSE, {"dense": torch.zeros(1)})
    restored = load_dense(store, newest_dense(store, JOB, 1, None)[0])
    assert restored.tensors["dense"].item() == 1


@pytest.mark.parametrize("damage", [flip, lambda data: data[:-1], lambda _data: b"x" * 2000])
def test_a_damaged_dense_save_is_named(damage: Callable[[bytes], bytes]) -> None:
    store = MemoryStore()
    saved = save_dense(store, DENSE, {"dense": torch.ones(1000)})
    (part,) = from_json(DenseManifest, store.get(saved.key)).parts
    store.put(part.key, damage(store.get(part.key)))
    with pytest.raises(DamagedError, match=part.key):
        load_dense(store, newest_dense(store, JOB, 1, None)[0])


def test_restore_record_of_another_place_is_refused() -> None:
    bench = Bench()
    bench.save(10)
    own = "uid/gen-0001/shard-0000/inc-0001/origin.json"
    bench.store.put(own.replace("inc-0001", "inc-0002"), bench.store.get(own))
    broken, seed = bench.choices(incarnation=3)
    assert seed.kind == "Seed"
    with pytest.raises(DamagedError, match="record for incarnation 2"):
        bench.restore(broken)
