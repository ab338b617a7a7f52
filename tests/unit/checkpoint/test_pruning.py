from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
import torch

from cpr_contract import CONTRACT_VERSION
from cpr_contract.choices import Rebase
from cpr_contract.manifests import DenseManifest, ManifestRef, ShardManifest
from cpr_contract.pinned_data import data_pin_key
from cpr_contract.roster import AnchorRef
from cpr_trainer.checkpoint.anchor import pruning
from cpr_trainer.checkpoint.anchor.committer import save_dense
from cpr_trainer.checkpoint.anchor.pruning import (
    Pruner,
    delete_saves,
    everything,
    needed_by,
    on_lineage,
    stale,
    young_steps,
)
from cpr_trainer.checkpoint.anchor.retention import anchors_of_lineage
from cpr_trainer.checkpoint.format.documents import DamagedError, read_document
from cpr_trainer.checkpoint.format.keys import committed_in
from cpr_trainer.checkpoint.format.parts import basis
from cpr_trainer.checkpoint.format.records import read_anchor, write_restore_record
from cpr_trainer.checkpoint.restore.dense_loader import newest_dense
from cpr_trainer.checkpoint.restore.lineage import Candidate
from cpr_trainer.store import Entry, StoreUnreachableError
from support.job_saves import JobBench
from support.memory_store import MemoryStore
from support.saves import ShardBench, Values, restore_record, same


def anchor(step: int) -> AnchorRef:
    return AnchorRef("k", "d", 1, step, 64 * step)


def dense(store: MemoryStore, step: int, generation: int = 1, shards: tuple[ManifestRef, ...] = ()) -> str:
    manifest = DenseManifest(CONTRACT_VERSION, "uid", generation, 1, step, 64 * step, 6400, "layout", (), shards)
    return save_dense(store, manifest, {"dense": torch.ones(1)}).key


def write_anchor(store: MemoryStore, generation: int, step: int) -> str:
    """Write the dense part of an anchor, and return its key."""
    return dense(store, step, generation, (ManifestRef("shard", ""),))


def test_pruning_retains_saves_that_a_restore_may_need() -> None:
    deleted: list[str] = []

    class Recorder(MemoryStore):
        def delete(self, keys: Iterable[str]) -> None:
            batch = list(keys)
            deleted.extend(batch)
            super().delete(batch)

    store = Recorder()
    bench = ShardBench(store)
    write_restore_record(store, restore_record(1))
    for step in (5, 10, 15):
        bench.change(step)
        bench.save(step)
    dense(store, 9)
    dense(store, 10)
    store.put("uid/gen-0001/shard-0000/inc-0001/step-000000007/part-00000", b"never committed")
    store.put("other/gen-0001/shard-0000/inc-0001/step-000000001/manifest.json", b"another job's")
    pruner = Pruner(store, "uid", grace_s=0.0)
    assert not pruner.prune(())
    assert not deleted
    assert not pruner.prune((anchor(10), anchor(15))), "nothing stays for its youth"
    assert len(deleted) == 2 + 1 + 2
    assert [c.step for c in bench.choices()] == [15, 10, 0]
    assert [c.step for c in newest_dense(store, bench.job, 1, None)] == [10, 0]
    assert not [key for key in store.objects if "step-000000007" in key or "step-000000005" in key]
    assert "other/gen-0001/shard-0000/inc-0001/step-000000001/manifest.json" in store.objects
    assert "uid/gen-0001/shard-0000/inc-0001/origin.json" in store.objects
    assert all(key.endswith("manifest.json") for key in deleted[:2]), "manifests go first"
    assert not any(key.endswith("manifest.json") for key in deleted[2:])


@pytest.mark.parametrize("few_objects", [10_000, 0], ids=["listed", "noted"])
def test_retained_step_stays_with_all_its_bases(monkeypatch: pytest.MonkeyPatch, few_objects: int) -> None:
    """Return whether the leader lists what there is, or deletes what it has committed itself."""
    monkeypatch.setattr(pruning, "_FEW_OBJECTS", few_objects)
    store = MemoryStore()
    bench = JobBench(store)
    bench.serve()
    pruner, retained = Pruner(store, "uid", grace_s=0.0, clock=lambda: 0.0), list[AnchorRef]()

    def anchors() -> set[int]:
        return {save.step for save in committed_in(store.objects) if "/dense/" in save.folder}

    for step in range(1, 12):
        retained.append(bench.anchor(step, full=step in {1, 8}))
        refs = read_anchor(store, retained[-1]).shards
        pruner.note(retained[-1], [read_document(store, ShardManifest, ref.key)[0] for ref in refs])
        pruner.prune(tuple(retained[-2:]), {5})
        assert all(set(needed_by(store, each.key)) <= store.objects.keys() for each in retained[4:5])
    assert anchors() == {5, 10, 11}
    assert len([key for key in store.objects if "/step-000000004/" in key]) == 4, (
        "an anchor's saves, without the anchor"
    )
    pruner.prune(tuple(retained[-2:]), {10})
    assert anchors() == {10, 11}
    assert not [key for key in store.objects if "/step-000000004/" in key]


@pytest.mark.parametrize("rule", ["Consecutive", "OneShot", "Intermittent"])
def test_retained_anchors_are_restored_bit_for_bit_by_any_rule_of_rebase(rule: Rebase) -> None:
    store, rng = MemoryStore(), random.Random(rule)
    bench = ShardBench(store)
    write_restore_record(store, restore_record(1))
    pruner = Pruner(store, "uid", grace_s=0.0)
    saved: dict[int, Values] = {}
    most = 0
    for step in range(1, 40):
        bench.change(*sorted(rng.sample(range(80), rng.randrange(1, 40))))
        base = basis(rule, bench.links)
        bench.save(step, base)
        saved[step] = bench.values()
        retained = tuple(anchor(n) for n in (step - 1, step) if n)
        pruner.prune(retained)
        for candidate in bench.choices():
            if candidate.step >= retained[0].step:
                assert same(bench.values(bench.restore(candidate)[1]), saved[candidate.step])
        most = max(most, sum(key.endswith("manifest.json") for key in store.objects))
    assert most < 36, "something was pruned"


def test_remaining_anchors_are_whole_whenever_the_job_ends() -> None:
    """An anchor is committed almost a second after its shards' saves, and the saves before it are older still."""
    store = MemoryStore()
    bench = JobBench(store)
    bench.serve()
    store.modified_s.clear()
    pruner, retained = Pruner(store, "uid", grace_s=9.5), list[AnchorRef]()
    for now_s in range(1, 40):
        known = set(store.objects)
        retained = [*retained, bench.anchor(now_s, full=now_s % 7 == 0)][-2:]
        for key in store.objects.keys() - known:
            store.modified_s[key] = now_s + (0.9 if "/dense/" in key else 0.0)
        pruner.prune(tuple(retained))
        anchors = [save.manifest for save in committed_in(store.objects) if "/dense/" in save.folder]
        assert all(needed_by(store, each) for each in anchors)
    assert len(anchors) < 20, "something was pruned"


def test_no_save_is_pruned_while_a_needed_one_cannot_be_read() -> None:
    store = MemoryStore()
    bench = ShardBench(store)
    first, last = bench.save(5), bench.save(10)
    store.put(last.ref.key, b"spoilt")
    with pytest.raises(DamagedError):
        Pruner(store, "uid", grace_s=0.0).prune((anchor(10),))
    assert first.ref.key in store.objects


FOLDER = "uid/gen-0001/shard-0000/inc-0001/step-"


def entries(*ages_s: tuple[str, float]) -> list[Entry]:
    return [Entry(FOLDER + name, 1, 1000.0 - age_s) for name, age_s in ages_s]


@pytest.mark.parametrize(
    ("name", "age_s", "goes"),
    [("000000005", 61.0, True), ("000000005", 59.0, False), ("000000010", 900.0, False), ("000000004", 900.0, False)],
)
def test_young_and_needed_saves_and_those_since_the_oldest_anchor_stay(name: str, age_s: float, *, goes: bool) -> None:
    part, manifest = f"{name}/part-00000", f"{name}/manifest.json"
    listing = entries((part, 2000.0), (manifest, age_s), ("000000020/part-00000", 0.0))
    chains = {"live": (ManifestRef(FOLDER + "000000004/manifest.json", ""),)}
    stays = stale(listing, 10, chains, young_steps(listing, 60.0))
    assert [entry.key for entry in stays] == ([FOLDER + part, FOLDER + manifest] if goes else [])


@pytest.mark.parametrize(("group", "step", "goes"), [(1, 10, True), (2, 10, False), (1, 11, False)])
def test_a_dense_save_goes_if_the_oldest_anchor_holds_the_same_state(group: int, step: int, *, goes: bool) -> None:
    anchor_key = "uid/gen-0001/dense/group-0001/step-000000010/manifest.json"
    key = f"uid/gen-0001/dense/group-{group:04d}/step-{step:09d}-dense/manifest.json"
    listing = [Entry(anchor_key, 1, 0.0), Entry(key, 1, 0.0)]
    found = stale(listing, 10, {}, young_steps(listing, 60.0, now_s=100.0))
    assert [entry.key for entry in found] == ([key] if goes else [])


@pytest.mark.parametrize(
    ("anchors", "forks", "expected"),
    [
        ([(1, 10), (1, 20)], {}, [(1, 10), (1, 20)]),
        ([(1, 10), (1, 20), (2, 30)], {2: 20}, [(1, 10), (1, 20), (2, 30)]),
        ([(1, 10), (1, 20), (1, 30)], {2: 10}, [(1, 10)]),
        ([(1, 10), (1, 20), (2, 15), (2, 30), (3, 16)], {2: 10, 3: 15}, [(1, 10), (2, 15), (3, 16)]),
        ([(1, 10), (1, 20), (1, 30), (4, 22)], {2: 20, 4: 20}, [(1, 10), (1, 20), (4, 22)]),
        ([(1, 10), (1, 20), (2, 25), (3, 15)], {2: 20, 3: 10}, [(1, 10), (3, 15)]),
        ([(1, 10), (1, 20), (2, 25), (3, 15), (4, 18)], {2: 20, 3: 10, 4: 15}, [(1, 10), (3, 15), (4, 18)]),
        ([(1, 10), (2, 20), (3, 5)], {2: 10, 3: 0}, [(3, 5)]),
        ([], {2: 10}, []),
    ],
)
def test_rollback_targets_are_anchors_in_the_lineage_of_the_newest_generation(
    anchors: list[tuple[int, int]], forks: dict[int, int], expected: list[tuple[int, int]]
) -> None:
    assert list(on_lineage(anchors, forks)) == expected
    store, newest, first = MemoryStore(), max(forks, default=1), forks.get(max(forks, default=1), 0)
    for generation, step in anchors:
        write_anchor(store, generation, step)
    for generation, step in forks.items():
        write_restore_record(store, restore_record(2, generation=generation, step=step))
    of_start = max((generation for generation, step in anchors if step == first and generation < newest), default=1)
    start = AnchorRef("k", "d", of_start, first, 64 * first) if first else None
    for keep in (1, 2, 9):
        found = anchors_of_lineage(store, "uid", newest, start, keep)
        assert [(each.generation, each.step) for each in found] == expected[-keep:]


def test_leader_takes_no_anchor_before_a_generation_with_an_unknown_beginning() -> None:
    store = MemoryStore()
    for generation, step in ((1, 10), (1, 20), (2, 30), (3, 40)):
        write_anchor(store, generation, step)
    store.objects[write_anchor(store, 3, 50)] = b"damaged"
    start = AnchorRef("k", "d", 2, 30, 64 * 30)
    found = anchors_of_lineage(store, "uid", 3, start, 9)
    assert [(each.generation, each.step) for each in found] == [(2, 30), (3, 40)]


def test_cleanup_leaves_the_objects_of_a_retained_anchor() -> None:
    store = MemoryStore()
    bench = JobBench(store)
    bench.serve()
    for step in (10, 20, 30):
        retained = bench.anchor(step)
        values = [shard.values() for shard in bench.shards]
    later = bench.anchor(40)
    bench.dense(45)
    store.put("other/gen-0001/dense/group-0001/step-000000001/manifest.json", b"another job's")
    store.put(data_pin_key("uid", 1), b"of data that arrived")
    needless = everything(store, "uid", (retained.key, "uid/never/there/manifest.json"))[0]
    delete_saves(store, [entry.key for entry in needless])
    assert {key for key in store.objects if not key.startswith("other/")} == set(needed_by(store, retained.key))
    for shard, value in zip(bench.shards, values, strict=True):
        candidate = Candidate("RestoreFrom", shard.layout, 0, (shard.links[2].ref,))
        assert same(shard.values(shard.restore(candidate)[1]), value)
    assert later.key not in store.objects
    delete_saves(store, [entry.key for entry in everything(store, "uid")[0]])
    assert list(store.objects) == ["other/gen-0001/dense/group-0001/step-000000001/manifest.json"]


class Listed(MemoryStore):
    """Counts listings of the whole job."""

    lists = 0

    def list(self, prefix: str) -> tuple[Entry, ...]:
        self.lists += prefix == "uid/"
        return super().list(prefix)


@pytest.mark.parametrize("fail_at", [None, 4])
def test_saves_that_the_leader_committed_are_pruned_by_manifests_between_listings(
    monkeypatch: pytest.MonkeyPatch, fail_at: int | None
) -> None:
    monkeypatch.setattr(pruning, "_FEW_OBJECTS", 0)
    store, now_s = Listed(), 0.0
    bench = JobBench(store)
    bench.serve()
    pruner = Pruner(store, "uid", grace_s=0.0, clock=lambda: now_s)
    left = "uid/gen-0001/shard-0000/inc-0001/step-000000007/part-00000"
    retained: list[AnchorRef] = []
    for number in range(1, 20):
        retained = [*retained, bench.anchor(10 * number, full=number % 5 == 0)][-2:]
        refs = read_anchor(store, retained[-1]).shards
        pruner.note(retained[-1], [read_document(store, ShardManifest, ref.key)[0] for ref in refs])
        if number == 2:
            store.put(left, b"never committed")
        if number == fail_at:
            monkeypatch.setattr(store, "delete", _unreachable)
            with pytest.raises(StoreUnreachableError):
                pruner.prune(tuple(retained))
            monkeypatch.undo()
            monkeypatch.setattr(pruning, "_FEW_OBJECTS", 0)
        pruner.prune(tuple(retained))
        oldest = retained[0].step
        superfluous = {entry.key for entry in Pruner(_copy(store), "uid", grace_s=0.0).superfluous(oldest)}
        assert superfluous == ({left} if number > 1 else set())
        for anchor in retained:
            assert set(needed_by(store, anchor.key)) <= store.objects.keys()
    assert store.lists == 1
    now_s = pruning.listing_pause_s(len(store.objects)) + 1
    pruner.prune(tuple(retained))
    assert (store.lists, left in store.objects) == (2, False)


def _copy(store: MemoryStore) -> MemoryStore:
    """Return a second client of the same objects."""
    copy = MemoryStore()
    copy.objects = store.objects
    return copy


def _unreachable(_: Iterable[str]) -> None:
    raise StoreUnreachableError("The store does not answer.", "Wait.")


def test_noted_saves_stay_for_their_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "_FEW_OBJECTS", 0)
    store, now_s = Listed(), 0.0
    bench = JobBench(store)
    bench.serve()
    pruner = Pruner(store, "uid", grace_s=0.001, clock=lambda: now_s)
    first = bench.anchor(10)
    assert not pruner.prune((first,))
    old, newest = bench.anchor(20, full=True), bench.anchor(30, full=True)
    for each in (old, newest):
        refs = read_anchor(store, each).shards
        pruner.note(each, [read_document(store, ShardManifest, ref.key)[0] for ref in refs])
    now_s = 0.0005
    assert pruner.prune((newest,)), "a save is too young"
    assert old.key in store.objects
    now_s = 0.001
    assert not pruner.prune((newest,))
    assert (store.lists, old.key in store.objects) == (1, False)
