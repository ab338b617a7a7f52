from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch

from cpr_contract.manifests import ManifestRef
from cpr_contract.roster import AnchorRef
from cpr_trainer.snapshot import DamagedError, DenseMeta, Pruner, newest_dense, save_dense, write_origin
from cpr_trainer.snapshot.pruning import stale
from cpr_trainer.store import Entry
from support.memory_store import MemoryStore
from support.saves import ShardBench, origin, same


def anchor(step: int) -> AnchorRef:
    return AnchorRef("k", "d", 1, step, 64 * step)


def dense(store: MemoryStore, step: int) -> None:
    save_dense(store, DenseMeta("uid", 1, 1, step, 64 * step, 6400, "layout", ()), {"dense": torch.ones(1)})


def test_pruning_keeps_what_a_restore_may_need() -> None:
    deleted: list[str] = []

    class Recorder(MemoryStore):
        def delete(self, keys: Iterable[str]) -> None:
            gone = list(keys)
            deleted.extend(gone)
            super().delete(gone)

    store = Recorder()
    bench = ShardBench(store)
    write_origin(store, origin(1))
    for step in (5, 10, 15):
        bench.change(step)
        bench.save(step)
    dense(store, 9)
    dense(store, 10)
    store.put("uid/gen-0001/shard-0000/inc-0001/step-000000007/part-00000", b"never committed")
    store.put("other/gen-0001/shard-0000/inc-0001/step-000000001/manifest.json", b"another job's")
    pruner = Pruner(store, "uid", grace_s=0.0)
    assert pruner.prune(()) == 0
    assert pruner.prune((anchor(10), anchor(15))) == 2 + 1 + 2
    assert [c.step for c in bench.choices()] == [15, 10, 0]
    assert [c.step for c in newest_dense(store, "uid", 1, None, "layout")] == [10, 0]
    assert not [key for key in store.objects if "step-000000007" in key or "step-000000005" in key]
    assert "other/gen-0001/shard-0000/inc-0001/step-000000001/manifest.json" in store.objects
    assert "uid/gen-0001/shard-0000/inc-0001/origin.json" in store.objects
    assert all(key.endswith("manifest.json") for key in deleted[:2]), "manifests go first"
    assert not any(key.endswith("manifest.json") for key in deleted[2:])


def test_a_save_that_others_stand_on_stays_as_long_as_they_do() -> None:
    store = MemoryStore()
    bench = ShardBench(store)
    write_origin(store, origin(1))
    pruner = Pruner(store, "uid", grace_s=0.0)
    for step in (5, 10, 15, 20):
        bench.change(step)
        bench.save(step, bench.links)
        pruner.prune((anchor(step),))
        _, home = bench.restore(bench.choices()[0])
        assert same(bench.values(home), bench.values())
    bench.change(1)
    bench.save(25)  # a full one
    pruner.prune((anchor(25),))
    assert {key.split("/")[-2] for key in store.objects if "step-" in key} == {"step-000000025"}


def test_manifests_are_read_once() -> None:
    reads: list[str] = []

    class Recorder(MemoryStore):
        def get(self, key: str) -> bytes:
            reads.append(key)
            return super().get(key)

    store = Recorder()
    bench, pruner = ShardBench(store), Pruner(store, "uid")
    for step in (5, 10):
        bench.save(step)
        dense(store, step)
        pruner.prune((anchor(5),))
    assert len(reads) == 2


def test_nothing_goes_while_a_save_that_is_needed_cannot_be_read() -> None:
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
def test_what_is_young_is_needed_or_is_not_older_than_the_oldest_anchor_stays(
    name: str, age_s: float, *, goes: bool
) -> None:
    part, manifest = f"{name}/part-00000", f"{name}/manifest.json"
    listing = entries((part, 2000.0), (manifest, age_s), ("000000020/part-00000", 0.0))
    chains = {"live": (ManifestRef(FOLDER + "000000004/manifest.json", ""),)}
    assert stale(listing, 10, chains, 60.0) == ((FOLDER + part, FOLDER + manifest) if goes else ())
