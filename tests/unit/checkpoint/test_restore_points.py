"""The listing and the verification of the saves of a job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from cpr_contract.codec import to_json
from cpr_contract.model import ModelSpec, SparseOptimizerSpec
from cpr_contract.requests import Point, Verification
from cpr_trainer.checkpoint.restore_points import points_of, read_inventory, verify
from support.job_saves import JobBench
from support.memory_store import MemoryStore


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def bench(store: MemoryStore) -> JobBench:
    """Anchors at 10 (full), 20 and 30, each on the one before; then a priority save, a flush and a dense save."""
    bench = JobBench(store)
    bench.serve()
    for step in (10, 20, 30):
        bench.anchor(step)
    bench.shards[1].save_rows(33, 1, 2, strategy="MFU", bits=4)
    bench.shards[0].change(3)
    bench.shards[0].save(35, bench.shards[0].links, kind="Flush")
    bench.dense(36)
    return bench


def points(store: MemoryStore) -> tuple[Point, ...]:
    return points_of(read_inventory(store, "uid"))


def verified(store: MemoryStore, model: ModelSpec | None = None) -> Verification:
    return verify(store, read_inventory(store, "uid"), "uid", model)


def part_of(store: MemoryStore, step: int, shard: int = 1) -> str:
    return next(key for key in store.objects if f"shard-000{shard}" in key and f"-{step:09d}/part" in key)


def test_points_are_listed_oldest_first_with_their_bases(bench: JobBench, store: MemoryStore) -> None:
    found = [(p.step, p.kind, p.shards, p.bases, p.bits, p.strategy) for p in points(store)]
    assert found == [
        (10, "Anchor", (0, 1), (), 32, None),
        (20, "Anchor", (0, 1), (10,), 32, None),
        (30, "Anchor", (0, 1), (10, 20), 32, None),
        (33, "Priority", (1,), (), 4, "MFU"),
        (35, "Flush", (0,), (10, 20, 30), 32, None),
        (36, "Dense", (), (), None, None),
    ]
    assert {p.job_uid for p in points(store)} == {"uid"}
    assert points(store)[0].key.endswith("gen-0001/dense/group-0001/step-000000010/manifest.json")
    assert [p.samples for p in points(store)] == [64 * p.step for p in points(store)]


def test_a_points_size_is_that_of_its_own_objects(bench: JobBench, store: MemoryStore) -> None:
    records = sum(len(data) for key, data in store.objects.items() if key.endswith("origin.json"))
    assert sum(p.size_bytes for p in points(store)) == sum(map(len, store.objects.values())) - records
    assert [p.written_s for p in points(store)] == sorted(p.written_s for p in points(store))


def test_shards_that_saved_a_cut_which_became_no_anchor_make_a_point(bench: JobBench, store: MemoryStore) -> None:
    for shard in bench.shards:
        shard.save(40)
    last = points(store)[-1]
    assert (last.step, last.kind, last.shards) == (40, "Cut", (0, 1))
    assert last.key == bench.shards[0].links[-1].ref.key


def test_uncommitted_saves_and_other_objects_are_no_points(bench: JobBench, store: MemoryStore) -> None:
    before = points(store)
    store.put("uid/gen-0001/shard-0000/inc-0001/step-000000040/part-00000", b"under way")
    store.put("data/clicks.tsv", b"1")
    store.put("manifest.json", b"{}")
    assert points(store) == before
    assert read_inventory(store, None).jobs == ("uid",)


def test_unreadable_manifest_is_reported_and_the_others_are_listed(bench: JobBench, store: MemoryStore) -> None:
    key = points(store)[1].key
    store.put(key, b"{")
    inventory = read_inventory(store, "uid")
    assert [damage.key for damage in inventory.damaged] == [key]
    assert [p.step for p in points_of(inventory) if p.kind == "Anchor"] == [10, 30]


def test_saves_that_are_whole_verify(bench: JobBench, store: MemoryStore) -> None:
    manifests = [key for key in store.objects if key.endswith("manifest.json")]
    parts = {key: data for key, data in store.objects.items() if "/part-" in key}
    for model in (None, bench.job.model):
        found = verified(store, model)
        assert (found.damaged, found.unusable) == ((), ())
        assert (found.objects, found.size_bytes) == (len(manifests) + len(parts), sum(map(len, parts.values())))


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def changed(data: bytes) -> bytes:
    return data.replace(b'"samples":', b'"samples": ')


DAMAGES: dict[str, tuple[int, str, Callable[[bytes], bytes] | None, str, str]] = {
    # of the save of shard 1: its step, the object, the change, and the first words of the expected and the found state
    "bit flipped": (20, "part-00000", flipped, "CRC-32C ", "CRC-32C "),
    "part gone": (10, "part-00000", None, "{size} bytes", "no such object"),
    "part cut": (10, "part-00000", lambda _: b"short", "{size} bytes", "5 bytes"),
    "another manifest than the anchor names": (20, "manifest.json", changed, "SHA-256 ", "SHA-256 "),
    "another manifest than later saves name": (10, "manifest.json", changed, "SHA-256 ", "SHA-256 "),
    "manifest gone": (20, "manifest.json", None, "", "no such object"),
    "manifest of a base gone": (10, "manifest.json", None, "", "no such object"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_damage_is_named_and_points_based_on_it_are_unusable(bench: JobBench, store: MemoryStore, case: str) -> None:
    step, name, change, expected, found = DAMAGES[case]
    key = part_of(store, step).replace("part-00000", name)
    whole = store.get(key)
    store.put(key, change(whole)) if change else store.delete([key])
    verification = verified(store)
    (damage,) = verification.damaged
    assert damage.key == key
    assert damage.expected.startswith(expected.format(size=len(whole)))
    assert damage.found.startswith(found)
    assert damage.expected != damage.found
    spoilt = {p.step for p in verification.points if p.key in verification.unusable}
    assert spoilt == {10, 20, 30} - set(range(step)), "the flush at 35 is of shard 0 alone"


def test_saves_of_another_layout_are_detected(bench: JobBench, store: MemoryStore) -> None:
    wider = replace(bench.job.model, embedding_dim=8)
    found = verified(store, wider)
    assert all("layout" in damage.expected or "dim=8" in damage.expected for damage in found.damaged)
    assert len(found.unusable) == len(found.points)
    stateless = replace(bench.job.model, sparse_optimizer=SparseOptimizerSpec("SGD", 0.1))
    assert any("state=0" in damage.expected for damage in verified(store, stateless).damaged)


def test_anchor_without_one_of_its_shards_is_detected(bench: JobBench, store: MemoryStore) -> None:
    key = points(store)[2].key
    manifest = read_inventory(store, "uid").dense[key].manifest

    store.put(key, to_json(replace(manifest, shards=manifest.shards[1:])).encode())
    assert key in {damage.key for damage in verified(store).damaged}
    store.put(key, to_json(replace(manifest, shards=manifest.shards[:1])).encode())
    assert key in {damage.key for damage in verified(store, bench.job.model).damaged}


def test_save_pruned_during_its_verification_is_no_damage(bench: JobBench, store: MemoryStore) -> None:
    inventory = read_inventory(store, "uid")
    store.delete([key for key in store.objects if "-000000010/" in key or "-000000020/" in key])
    store.delete([key for key in store.objects if "-000000030/" in key or "-000000035" in key])
    assert verify(store, inventory, "uid", None).damaged == ()
