"""The restore of a shard, from a store in memory."""

from __future__ import annotations

import random
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cpr_contract import CONTRACT_VERSION
from cpr_contract.codec import from_json, to_json
from cpr_contract.manifests import DenseManifest, RestoreRecord
from cpr_contract.reports import Problem, SaveRef
from cpr_contract.roster import AnchorRef, Counters
from cpr_contract.spec import JobSpec
from cpr_trainer.checkpoint.anchor.committer import commit_anchor
from cpr_trainer.checkpoint.format.documents import OvertakenError, SnapshotError
from cpr_trainer.checkpoint.format.keys import claims_prefix
from cpr_trainer.checkpoint.format.records import check_claims, claim
from cpr_trainer.checkpoint.restore.restorer import BelowFloor, Cancelled, NothingVerifies, Restored, Restorer
from cpr_trainer.checkpoint.write.save import SavedShard
from cpr_trainer.embedding.arena import Arena, LocalRows
from cpr_trainer.embedding.placement import Placement, layout_hash
from cpr_trainer.embedding.segments import Seeding
from cpr_trainer.store import Entry, StoreUnreachableError
from support.memory_store import MemoryStore
from support.saves import draft, full_save, restore_record
from support.shard_job import shard_roster, small_job

JOB = small_job(Path("unused"))
ROWS = 80


class Bench:
    """A store, and a restorer over it."""

    def __init__(self, job: JobSpec = JOB) -> None:
        self.job = job
        self.store = MemoryStore()
        self.problems: list[Problem] = []
        self.placement = Placement.of(job.model, 1)
        local = LocalRows.of(job, self.placement, 0)
        self.arena = local.arena
        self.restorer = Restorer(self.store, job, local, self.problems.append, random.Random(1))

    def restore(self, incarnation: int = 2, cancel: threading.Event | None = None, **roster: Any) -> object:
        base = shard_roster(incarnation=incarnation, newest_incarnation=incarnation)
        return self.restorer.restore(replace(base, **roster), cancel or threading.Event())

    def restored(self, incarnation: int = 2, **roster: Any) -> Restored:
        outcome = self.restore(incarnation, **roster)
        assert isinstance(outcome, Restored)
        return outcome

    def save(self, value: float, step: int, incarnation: int = 1, generation: int = 1, uid: str = "") -> SavedShard:
        manifest = draft(
            step,
            job_uid=uid or self.job.job_uid,
            generation=generation,
            incarnation=incarnation,
            samples=step * 10,
            layout=layout_hash(self.job.model),
            applied=(step,),
            lost=((0, 5),),
        )
        return full_save(
            self.store, manifest, np.full((ROWS, 4), value, np.float32), np.full((ROWS, 1), value + 1, np.float32)
        )

    def anchor(self, save: SavedShard, uid: str = "") -> AnchorRef:
        m = save.manifest
        meta = DenseManifest(CONTRACT_VERSION, uid or m.job_uid, m.generation, 1, m.step, m.samples, 1000, m.layout, ())
        return commit_anchor(self.store, meta, {"dense": torch.zeros(1)}, (save.ref,), ((),))

    def restore_record(self, incarnation: int, generation: int = 1) -> RestoreRecord:
        folder = f"{self.job.job_uid}/gen-{generation:04d}/shard-0000/inc-{incarnation:04d}"
        return from_json(RestoreRecord, self.store.objects[f"{folder}/origin.json"])

    def seeded(self) -> bool:
        arena = Arena.empty(self.job, ROWS)
        arena.seed(self.placement, 0, Seeding.of(self.job.model, self.job.data.seed))
        return np.array_equal(arena.rows, self.arena.rows) and not self.arena.state.any()


def test_with_no_save_a_shard_starts_from_first_values() -> None:
    bench = Bench()
    restored = bench.restored(1)
    assert (restored.save, restored.step, restored.samples, restored.applied, restored.lost) == (None, 0, 0, (0,), ())
    assert bench.seeded()
    assert bench.restore_record(1).parent_incarnation is None


def test_the_newest_save_of_the_predecessor_is_taken() -> None:
    bench = Bench()
    bench.restore(1)
    bench.save(1.0, 3)
    newest = bench.save(2.0, 6)
    restored = bench.restored(2)
    assert restored.save == SaveRef(newest.ref.key, 6, 60)
    assert (restored.applied, restored.lost) == ((6,), ((0, 5),))
    assert (bench.arena.rows == 2.0).all()
    assert (bench.arena.state == 3.0).all()
    record = bench.restore_record(2)
    assert (record.parent_incarnation, record.parent, record.step) == (1, newest.ref, 6)


def test_a_damaged_save_is_passed_over_and_reported() -> None:
    bench = Bench()
    bench.restore(1)
    older = bench.save(1.0, 3)
    newest = bench.save(2.0, 6)
    key = newest.manifest.parts[0].key
    bench.store.objects[key] = bytes(reversed(bench.store.objects[key]))
    restored = bench.restored(2)
    assert restored.save is not None
    assert restored.save.key == older.ref.key
    assert (bench.arena.rows == 1.0).all()
    assert [problem.reason for problem in bench.problems] == ["DamagedSave"]
    assert key in bench.problems[0].message


def test_below_the_floor_nothing_is_chosen() -> None:
    bench = Bench()
    bench.restore(1)
    save = bench.save(1.0, 3)
    assert bench.restore(2, floor_samples=31) == BelowFloor(SaveRef(save.ref.key, 3, 30))
    with pytest.raises(KeyError):
        bench.restore_record(2)
    assert isinstance(bench.restore(2, floor_samples=30), Restored)


def test_below_the_floor_with_no_save_at_all() -> None:
    assert Bench().restore(2, floor_samples=10) == BelowFloor(None)


def test_a_rollback_takes_exactly_its_anchor() -> None:
    bench = Bench()
    bench.restore(1)
    save = bench.save(1.0, 3)
    bench.save(2.0, 6)
    anchor = bench.anchor(save)
    restored = bench.restored(1, counters=Counters(2, 1, 2), anchor=anchor, floor_samples=30)
    assert (restored.save, restored.applied, restored.lost) == (SaveRef(save.ref.key, 3, 30), (3,), ())
    assert (bench.arena.rows == 1.0).all()
    assert bench.restore_record(1, generation=2).parent_incarnation is None


def test_a_rollback_to_step_0_resets_every_row() -> None:
    bench = Bench()
    bench.restore(1)
    bench.save(2.0, 6)
    bench.arena.rows.fill(9.0)
    bench.restored(1, counters=Counters(2, 1, 2))
    assert bench.seeded()


def test_a_damaged_anchor_is_reported_as_such() -> None:
    bench = Bench()
    save = bench.save(1.0, 3)
    anchor = bench.anchor(save)
    del bench.store.objects[save.manifest.parts[0].key]
    outcome = bench.restore(1, counters=Counters(2, 1, 2), anchor=anchor)
    assert isinstance(outcome, NothingVerifies)
    assert outcome.problem.reason == "AnchorDamaged"


def test_step_0_is_restored_from_another_jobs_anchor() -> None:
    donor = Bench()
    save = donor.save(5.0, 9, uid="another")
    anchor = donor.anchor(save, uid="another")
    bench = Bench(replace(JOB, snapshots=replace(JOB.snapshots, restore_from=anchor.key)))
    bench.store.objects.update(donor.store.objects)
    restored = bench.restored(1)
    assert (restored.save, restored.step, restored.samples, restored.applied) == (None, 0, 0, (0,))
    assert (bench.arena.rows == 5.0).all()
    del bench.store.objects[save.manifest.parts[0].key]
    with pytest.raises(SnapshotError):
        bench.restore(2)


def test_a_store_that_is_down_is_waited_for() -> None:
    bench = Bench()
    outages = iter([True, True])

    def fail(_key: str) -> None:
        if next(outages, False):
            raise StoreUnreachableError("No answer.", "Wait.")

    bench.store.before_put = fail
    assert isinstance(bench.restore(1), Restored)
    assert [problem.reason for problem in bench.problems] == ["StoreUnreachable"] * 2


def test_restore_can_be_cancelled() -> None:
    bench, cancel = Bench(), threading.Event()
    cancel.set()
    assert bench.restore(1, cancel) == Cancelled()
    assert not bench.store.objects


@pytest.mark.parametrize(
    ("moment", "reported"),
    [("claim-", True), ("list", False), ("origin.json", False)],
    ids=["before", "between", "after"],
)
def test_late_predecessor_reports_no_save_that_its_successor_passed_over(moment: str, *, reported: bool) -> None:
    """Trainers drop the pushes of reported saves."""
    bench = Bench(replace(JOB, replay_bytes=1 << 20))
    bench.save(1.0, 5)
    bench.store.put(
        "0b5c/gen-0001/shard-0000/inc-0001/origin.json", to_json(restore_record(1, job_uid="0b5c")).encode()
    )
    news: list[bool] = []

    def wake_up(key: str) -> None:
        if moment not in key or news:
            return
        news.append(False)
        saved = bench.save(2.0, 9)
        with suppress(OvertakenError):
            check_claims(bench.store, saved.manifest)
            news.append(True)

    listing = bench.store.list
    bench.store.before_put = wake_up

    def list_objects(prefix: str) -> tuple[Entry, ...]:
        if prefix.endswith("shard-0000/"):
            wake_up("list")
        return listing(prefix)

    bench.store.list = list_objects
    restored = bench.restored()
    assert news == ([False, True] if reported else [False])
    assert restored.step == 9 or not reported


def test_unfinished_claim_of_a_killed_successor_stops_no_save() -> None:
    bench = Bench()
    saved = bench.save(1.0, 5).manifest
    store, roster = bench.store, shard_roster(incarnation=saved.incarnation + 1)
    store.put(f"{claims_prefix(saved.job_uid, saved.generation, saved.index)}0003.writing-0", b"")
    check_claims(store, saved)
    claim(store, roster, saved.job_uid)
    with pytest.raises(OvertakenError, match="incarnation 2"):
        check_claims(store, saved)
