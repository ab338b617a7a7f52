"""Training that goes on without a shard, with real processes: what is trained, what is lost, and who says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract.codec import from_json
from cpr_contract.manifests import RowUpdates, ShardManifest
from cpr_contract.reports import ShardReport
from cpr_contract.roster import Allowance, AnchorRef
from cpr_contract.spec import JobSpec
from cpr_trainer.checkpoint.format.records import read_anchor
from cpr_trainer.store import open_store
from support.local_job import LocalJob, Member, small_job
from support.row_count import Count
from support.warm_start import run_slowly

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]
SAMPLES, BATCH = 60_000, 100
#: A roster number beyond those of the test.
LATE = 1000


def lose_shard(running: LocalJob, *, more: int) -> int:
    """Kill shard 1; its successor waits, and training may go on for `more` samples, up to what is returned."""
    running.kill(running.shards[1])
    # A leader that was a step ahead waits for the other trainer, too.
    running.wait_for(lambda: "shard/1" in running.trainer().waiting_for, "the leader waits for the shard")
    until = running.trainer().samples_started + more
    running.allowances = (Allowance(1, until),)
    running.may_restore = False
    running.replace_shard(1)
    return until


def bring_back(running: LocalJob) -> None:
    running.may_restore = True
    running.publish()


def hide_shard(running: LocalJob, trainer: Member) -> None:
    """Give a trainer a roster in which shard 1 has no address, newer than all until `LATE`."""
    told = running.trainer_roster(trainer)
    shards = tuple(replace(peer, host="") if peer.index == 1 else peer for peer in told.shards)
    trainer.write_roster(replace(told, counters=replace(told.counters, roster=LATE), shards=shards))
    running.wait_for(lambda: running.trainer(trainer.index).counters.roster == LATE, "it reads that")


def resumed(running: LocalJob) -> ShardReport | None:
    report = running.shard(1)
    return report if report.resumed_samples is not None else None


def check_account(job: JobSpec, anchor: AnchorRef, report: ShardReport) -> None:
    """The shard's manifest in the anchor lists the missing samples and row updates exactly."""
    assert report.restored_samples is not None
    if job.lockstep:
        assert report.lost[0][0] == report.restored_samples
    else:  # The save ends where the slowest rank was: it has more of the others, and the slowest may lose nothing.
        assert report.lost[0][0] >= report.restored_samples
    store = open_store(job.snapshots.store, None, None)
    dense = read_anchor(store, anchor)
    assert dense.lost == ((), report.lost)
    told = from_json(ShardManifest, store.get(dense.shards[1].key)).row_updates
    count = Count(job)
    if job.lockstep:
        assert told == RowUpdates(count.all(), count.lost(report), exact=True)
    else:  # what some ranks lack may be told in whole batches
        assert (told.pushed, told.exact) == (count.all(), True)
        assert 0 < told.lost <= count.lost(report)


def test_trainer_that_dies_meanwhile_waits_for_the_shard(tmp_path: Path) -> None:
    """Its successor knows no shard yet: it begins when all are there."""
    job = small_job(tmp_path, samples=SAMPLES, trainers=2)
    with LocalJob(job, tmp_path) as running:
        running.start()
        running.reach(SAMPLES // 4)
        lose_shard(running, more=SAMPLES)
        running.reach(running.trainer().samples + SAMPLES // 10)
        running.kill(running.trainers[1])
        running.replace_trainers(1, leader=0)
        running.wait_for(lambda: "shard/1" in running.trainer(1).waiting_for, "the new trainer waits for the shard")
        bring_back(running)
        report = running.wait_for(lambda: resumed(running), "all ranks push again")
        anchor = running.result()
    check_account(job, anchor, report)


def test_returned_shard_takes_no_cut_before_all_trainers_are_back_at_it(tmp_path: Path) -> None:
    """Trainer 0 hears late where the shard is. Meanwhile cuts are announced that the shard cannot take."""
    job = small_job(tmp_path, samples=SAMPLES, trainers=2)
    with LocalJob(job, tmp_path) as running:
        running.start(run_slowly)
        running.reach(SAMPLES // 4)
        lose_shard(running, more=SAMPLES)
        hide_shard(running, running.trainers[0])
        bring_back(running)
        running.wait_for(lambda: (a := running.shard(1).applied) and a[1] > a[0], "trainer 1 pushes to the shard")
        running.reach(running.trainer().samples + SAMPLES // 4)
        assert running.shard(1).resumed_samples is None
        running.counters = replace(running.counters, roster=LATE + 1)
        running.publish()
        report = running.wait_for(lambda: resumed(running), "all ranks push again")
        anchor = running.result()
    dense = read_anchor(open_store(job.snapshots.store, None, None), anchor)
    assert dense.lost == ((), report.lost)
    assert len(report.lost) == 1, "what one rank misses alone is too much to be told by slices"
    assert report.row_updates is not None
    assert 0 < report.row_updates.lost < Count(job).lost(report)
