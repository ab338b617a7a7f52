"""Saves of shards and of dense state: written, chosen, verified."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from cpr_contract.codec import from_json, to_json
from cpr_contract.manifests import ManifestRef, Origin, ShardManifest
from cpr_contract.roster import AnchorRef
from cpr_trainer.snapshot import (
    Candidate,
    DamagedError,
    DenseMeta,
    LayoutError,
    ShardMeta,
    candidates,
    commit_anchor,
    find_anchor,
    load_dense,
    load_shard,
    newest_dense,
    prune,
    read_shard_manifest,
    resolve_anchor,
    save_dense,
    save_shard,
    write_origin,
)
from cpr_trainer.store import ExistsError, StoreUnreachableError
from support.memory_store import MemoryStore

ROWS, DIM = 9000, 64  # three parts
META = ShardMeta(
    job_uid="uid",
    generation=1,
    index=0,
    incarnation=1,
    kind="Anchor",
    step=10,
    samples=640,
    layout="layout",
    applied=(10, 10),
    lost=((64, 128),),
)
DENSE = DenseMeta(
    job_uid="uid",
    generation=1,
    group=1,
    step=10,
    samples=640,
    total_samples=6400,
    layout="layout",
    dense_lost=((0, 64),),
)


def arena(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(ROWS, DIM, generator=generator), torch.rand(ROWS, generator=generator)


def empty() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(ROWS, DIM), torch.zeros(ROWS)


def origin(incarnation: int, parent: ManifestRef | None = None, parent_incarnation: int | None = None) -> Origin:
    return Origin(1, "uid", 1, 0, incarnation, parent_incarnation, parent, 0, 0)


def choices(store: MemoryStore, incarnation: int = 2, anchor: AnchorRef | None = None) -> tuple[Candidate, ...]:
    return candidates(store, "uid", 1, 0, incarnation, anchor, "layout")


def test_a_shard_comes_back_bit_by_bit() -> None:
    store, (rows, state) = MemoryStore(), arena(1)
    write_origin(store, origin(1))
    saved = save_shard(store, META, rows, state)
    assert len(saved.manifest.parts) == 3
    first, seed = choices(store)
    into, state_into = empty()
    restored = load_shard(store, first, into, state_into)
    assert torch.equal(into, rows)
    assert torch.equal(state_into, state)
    assert (restored.step, restored.samples, restored.applied, restored.lost) == (10, 640, (10, 10), ((64, 128),))
    assert (restored.manifest, restored.ref) == (saved.manifest, saved.ref)
    assert seed.kind == "Seed"
    assert load_shard(store, seed, into, state_into).step == 0
    assert torch.equal(into, rows), "first values are the caller's"


def test_a_shard_without_optimizer_state() -> None:
    store, (rows, _) = MemoryStore(), arena(1)
    write_origin(store, origin(1))
    save_shard(store, META, rows, None)
    into, state_into = empty()
    with pytest.raises(DamagedError, match="bytes"):
        load_shard(store, choices(store)[0], into, state_into)
    load_shard(store, choices(store)[0], into, None)
    assert torch.equal(into, rows)


def test_whatever_is_put_last_nothing_counts_before_the_manifest() -> None:
    (rows, state), puts = arena(1), itertools.count()

    def dies_at(fatal: int) -> Callable[[str], None]:
        def before_put(_key: str) -> None:
            if next(puts) == fatal:
                raise StoreUnreachableError("gone.", "")

        return before_put

    store = MemoryStore()
    write_origin(store, origin(1))
    for fatal in range(4):  # three parts and the manifest
        puts = itertools.count()
        store.before_put = dies_at(fatal)
        with pytest.raises(StoreUnreachableError):
            save_shard(store, META, rows, state)
        assert [candidate.kind for candidate in choices(store)] == ["Seed"]
        assert read_shard_manifest(store, "uid", 1, 0, 1, 10) is None
    store.before_put = lambda _key: None
    saved = save_shard(store, META, rows, state)
    assert read_shard_manifest(store, "uid", 1, 0, 1, 10) == (saved.manifest, saved.ref)
    assert save_shard(store, META, rows, state) == saved, "a lost answer: the second attempt finds its own manifest"
    with pytest.raises(ExistsError):
        save_shard(store, replace(META, samples=641), rows, state)


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
    "manifest of a version to come": lambda s, f: edit(s, f, contract=9),
    "manifest that swaps parts": lambda s, f: edit(s, f, swap=True),
    "manifest that leaves out a part": lambda s, f: edit(s, f, drop=True),
}


def edit(store: MemoryStore, folder: str, *, swap: bool = False, drop: bool = False, **changes: object) -> None:
    manifest = from_json(ShardManifest, store.get(folder + "manifest.json"))
    parts = manifest.parts
    if swap:
        parts = (parts[1], parts[0], *parts[2:])
    if drop:
        parts = parts[:-1]
    store.put(folder + "manifest.json", to_json(replace(manifest, parts=parts, **changes)).encode())  # type: ignore[arg-type]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_save_is_named_and_the_one_before_it_is_taken(damage: str) -> None:
    store, (old, old_state), (new, new_state) = MemoryStore(), arena(1), arena(2)
    write_origin(store, origin(1))
    save_shard(store, META, old, old_state)
    saved = save_shard(store, replace(META, step=20, samples=1280), new, new_state)
    folder = saved.ref.key.removesuffix("manifest.json")
    newest, older, _ = choices(store)
    DAMAGES[damage](store, folder)
    into, state_into = empty()
    with pytest.raises(DamagedError) as raised:
        load_shard(store, newest, into, state_into)
    assert raised.value.key.startswith(folder)
    assert raised.value.key in raised.value.message
    assert load_shard(store, older, into, state_into).step == 10
    assert torch.equal(into, old)
    assert torch.equal(state_into, old_state)


def anchored(store: MemoryStore, uid: str = "uid", layout: str = "layout") -> AnchorRef:
    """An anchor at step 10 of a job of two shards."""
    refs = []
    for index in (0, 1):
        meta = replace(META, job_uid=uid, index=index, layout=layout)
        refs.append(save_shard(store, meta, *arena(index)).ref)
    meta = replace(DENSE, job_uid=uid, layout=layout)
    return commit_anchor(store, meta, {"dense": torch.arange(6.0).view(2, 3)}, tuple(refs), (((64, 128),), ()))


def test_a_new_generation_starts_from_its_anchor_and_from_nothing_older() -> None:
    store = MemoryStore()
    write_origin(store, origin(1))
    anchor = anchored(store)
    save_shard(store, replace(META, step=20), *arena(5))  # undone by the rollback
    (only,) = candidates(store, "uid", 2, 1, 1, anchor, "layout")
    into, state_into = empty()
    restored = load_shard(store, only, into, state_into)
    assert (only.kind, only.step) == ("Anchor", 10)
    assert (restored.step, restored.samples, restored.lost) == (10, 640, ())
    assert torch.equal(into, arena(1)[0])
    dense = load_dense(store, *newest_dense(store, "uid", 2, anchor, "layout"))
    assert (dense.step, dense.samples, dense.lost) == (10, 640, ())
    assert torch.equal(dense.tensors["dense"], torch.arange(6.0).view(2, 3))


def test_a_pruned_or_damaged_anchor_does_not_hide_newer_saves() -> None:
    store = MemoryStore()
    anchor = anchored(store)
    write_origin(store, Origin(1, "uid", 2, 1, 1, None, None, 10, 640))
    save_shard(store, replace(META, generation=2, index=1, step=20), *arena(5))
    store.delete([anchor.key])
    newer, gone = candidates(store, "uid", 2, 1, 2, anchor, "layout")
    into, state_into = empty()
    assert load_shard(store, newer, into, state_into).step == 20
    with pytest.raises(DamagedError, match="missing"):
        load_shard(store, gone, into, state_into)


def test_an_anchor_of_another_digest_or_of_fewer_shards_is_damaged() -> None:
    store = MemoryStore()
    anchor = anchored(store)
    for wrong, index in ((replace(anchor, digest="0" * 64), 0), (anchor, 2)):
        (only,) = candidates(store, "uid", 2, index, 1, wrong, "layout")
        with pytest.raises(DamagedError):
            load_shard(store, only, *empty())
    save_shard(store, replace(META, incarnation=2, index=1), *arena(8))
    ref = read_shard_manifest(store, "uid", 1, 1, 1, 10)
    assert ref is not None
    store.put(ref[1].key, store.get(ref[1].key).replace(b'"lost":[[64,128]]', b'"lost":[[64,129]]'))
    (only,) = candidates(store, "uid", 2, 1, 1, anchor, "layout")
    with pytest.raises(DamagedError, match="digest"):
        load_shard(store, only, *empty())


def test_another_jobs_anchor_gives_values_but_no_progress() -> None:
    store = MemoryStore()
    anchor = anchored(store, uid="yesterday")
    (only,) = candidates(store, "uid", 1, 1, 1, None, "layout", anchor.key)
    into, state_into = empty()
    restored = load_shard(store, only, into, state_into)
    assert torch.equal(into, arena(1)[0])
    assert (restored.step, restored.samples, restored.applied, restored.lost) == (0, 0, (), ())
    dense = load_dense(store, *newest_dense(store, "uid", 1, None, "layout", restore_from=anchor.key))
    assert (dense.step, dense.samples, dense.lost, list(dense.tensors)) == (0, 0, (), ["dense"])
    assert resolve_anchor(store, anchor.key, "layout") == anchor
    with pytest.raises(LayoutError, match="shard count"):
        candidates(store, "uid", 1, 0, 1, None, "other layout", anchor.key)
    with pytest.raises(DamagedError, match="missing"):
        newest_dense(store, "uid", 1, None, "layout", restore_from=anchor.key + "x")
    own = save_dense(store, DENSE, {"dense": torch.zeros(1)})
    with pytest.raises(DamagedError, match="no anchor"):
        resolve_anchor(store, own.ref.key, "layout")


def test_the_newest_dense_save_wins_and_says_what_it_lacks() -> None:
    store = MemoryStore()
    anchored(store)
    save_dense(store, replace(DENSE, step=15, samples=960), {"dense": torch.ones(1)})
    newest, older, seed = newest_dense(store, "uid", 1, None, "layout")
    restored = load_dense(store, newest)
    assert (restored.step, restored.samples, restored.lost) == (15, 960, ((0, 64),))
    assert (older.step, seed.kind) == (10, "Seed")
    assert load_dense(store, seed).tensors == {}
    assert [c.step for c in newest_dense(store, "uid", 1, None, "layout", at_most_step=14)] == [10, 0]


def test_a_dense_save_and_an_anchor_of_one_step_do_not_meet() -> None:
    store = MemoryStore()
    save_dense(store, DENSE, {"dense": torch.ones(1)})
    anchor = anchored(store)
    assert find_anchor(store, "uid", 1, 10) == anchor
    assert find_anchor(store, "uid", 1, 11) is None
    assert find_anchor(store, "uid", 2, 10) is None
    with pytest.raises(ValueError, match="all shards"):
        commit_anchor(store, DENSE, {}, (), ())


@pytest.mark.parametrize("damage", [flip, lambda data: data[:-1], lambda _data: b"x" * 2000])
def test_a_damaged_dense_save_is_named(damage: Callable[[bytes], bytes]) -> None:
    store = MemoryStore()
    saved = save_dense(store, DENSE, {"dense": torch.ones(1000)})
    (part,) = saved.manifest.parts
    store.put(part.key, damage(store.get(part.key)))
    with pytest.raises(DamagedError, match=part.key):
        load_dense(store, newest_dense(store, "uid", 1, None, "layout")[0])


def test_an_origin_is_written_once() -> None:
    store = MemoryStore()
    write_origin(store, origin(2, ManifestRef("uid/gen-0001/shard-0000/inc-0001/step-000000010/manifest.json", "d"), 1))
    write_origin(store, origin(2, ManifestRef("uid/gen-0001/shard-0000/inc-0001/step-000000010/manifest.json", "d"), 1))
    with pytest.raises(ExistsError):
        write_origin(store, origin(2))


def test_an_origin_that_lies_elsewhere_is_not_believed() -> None:
    store = MemoryStore()
    write_origin(store, origin(1))
    save_shard(store, META, *arena(1))
    own = "uid/gen-0001/shard-0000/inc-0001/origin.json"
    store.put(own.replace("inc-0001", "inc-0002"), store.get(own))
    broken, seed = choices(store, incarnation=3)
    assert seed.kind == "Seed"
    with pytest.raises(DamagedError, match="origin for incarnation 2"):
        load_shard(store, broken, *empty())


def test_pruning_keeps_what_a_restore_may_need() -> None:
    deleted: list[str] = []

    class Recorder(MemoryStore):
        def delete(self, keys: object) -> None:
            deleted.extend(keys)  # type: ignore[arg-type]
            super().delete(deleted)

    store = Recorder()
    write_origin(store, origin(1))
    for step in (5, 10, 15):
        save_shard(store, replace(META, step=step), *arena(step))
    save_dense(store, replace(DENSE, step=9), {"dense": torch.ones(1)})
    save_dense(store, DENSE, {"dense": torch.ones(1)})
    store.put("uid/gen-0001/shard-0000/inc-0001/step-000000007/part-00000", b"never committed")
    store.put("other/gen-0001/shard-0000/inc-0001/step-000000001/manifest.json", b"another job's")
    anchors = (AnchorRef("k", "d", 1, 10, 640), AnchorRef("k", "d", 1, 15, 960))
    assert prune(store, "uid", ()) == 0
    assert prune(store, "uid", anchors) == 4 + 1 + 2
    assert [c.step for c in choices(store)] == [15, 10, 0]
    assert [c.step for c in newest_dense(store, "uid", 1, None, "layout")] == [10, 0]
    assert not [key for key in store.objects if "step-000000007" in key or "step-000000005" in key]
    assert "other/gen-0001/shard-0000/inc-0001/step-000000001/manifest.json" in store.objects
    assert "uid/gen-0001/shard-0000/inc-0001/origin.json" in store.objects
    assert all(key.endswith("manifest.json") for key in deleted[:2]), "manifests go first"
    assert not any(key.endswith("manifest.json") for key in deleted[2:])
