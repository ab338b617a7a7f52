"""Rows of an anchor that nobody ever pushed to: a job that starts from it has them too, whatever its own seed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cpr_contract.manifests import SavedModel
from cpr_contract.spec import JobSpec
from cpr_trainer.checkpoint.anchor.dense import DenseMeta, commit_anchor
from cpr_trainer.checkpoint.restore.lineage import Candidate
from support.memory_store import MemoryStore
from support.saves import ShardBench, same


def reseeded(job: JobSpec, seed: int, restore_from: str | None = None) -> JobSpec:
    snapshots = replace(job.snapshots, restore_from=restore_from)
    return replace(job, data=replace(job.data, seed=seed), snapshots=snapshots)


def anchored(store: MemoryStore, *, tells: bool = True) -> tuple[ShardBench, str]:
    """A shard of a job with seed 1, most of whose rows never changed, and its anchor's key."""
    bench = ShardBench(store, alter=lambda job: reseeded(job, 1))
    bench.change(0, 5, 7)
    saved = bench.save(10)
    model = SavedModel(1, (), "SGD", ()) if tells else None
    meta = DenseMeta("uid", 1, 1, 10, 640, 6400, bench.layout, (), model=model)
    return bench, commit_anchor(store, meta, {"dense": torch.zeros(1)}, (saved.ref,), ((),)).key


def heir(store: MemoryStore, seed: int, key: str) -> ShardBench:
    bench = ShardBench(store, alter=lambda job: reseeded(job, seed, key))
    bench.job = replace(bench.job, job_uid="heir")
    return bench


@pytest.mark.parametrize("seed", [1, 2])
def test_another_job_starts_from_them_bit_for_bit(seed: int) -> None:
    store = MemoryStore()
    bench, key = anchored(store)
    other = heir(store, seed, key)
    (only,) = other.choices(1)
    restored, home = other.restore(only)
    assert same(other.values(home), bench.values())
    assert restored.chain == ()


def test_its_own_saves_hold_them_as_long_as_its_own_seed_does_not_give_them() -> None:
    store = MemoryStore()
    bench, key = anchored(store)
    for seed, held in ((1, 3), (2, 80)):
        other = heir(store, seed, key)
        other.go_on(*other.restore(other.choices(1)[0]))
        saved = other.save(5, job_uid=f"heir-{seed}")
        assert saved.manifest.rows == held
        _, again = other.restore(Candidate("Save", other.layout, 5, (saved.ref,)))
        assert same(other.values(again), bench.values())


def test_an_anchor_that_does_not_tell_its_seed_is_taken_for_one_of_the_same() -> None:
    store = MemoryStore()
    bench, key = anchored(store, tells=False)
    for seed, equal in ((1, True), (2, False)):
        other = heir(store, seed, key)
        _, home = other.restore(other.choices(1)[0])
        assert same(other.values(home), bench.values()) == equal
