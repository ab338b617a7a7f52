"""How many row updates a killed shard lost: what it tells against a count of its own, with real processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cpr_contract.codec import from_json
from cpr_contract.manifests import RowUpdates, ShardManifest
from cpr_contract.roster import AnchorRef, Counters
from cpr_contract.spec import JobSpec
from cpr_trainer.checkpoint.format.records import read_anchor
from cpr_trainer.exchange import Exchange
from cpr_trainer.store import open_store
from support.local_job import LocalJob, small_job
from support.row_count import Count
from support.shard_job import PATIENCE_S, shard_roster, trainer_roster
from support.shard_story import ROWS, Story, touched

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]
SAMPLES = 60_000


def told(job: JobSpec, anchor: AnchorRef) -> RowUpdates:
    """What the shard's save in the final anchor says."""
    store = open_store(job.snapshots.store, None, None)
    ref = read_anchor(store, anchor).shards[1]
    return from_json(ShardManifest, store.get(ref.key)).row_updates


def shard_alone(running: LocalJob) -> None:
    running.kill(running.shards[1])
    running.wait_for(lambda: "shard/1" in running.trainer().waiting_for, "the leader waits for the shard")
    running.replace_shard(1)


def shard_and_trainer(running: LocalJob) -> None:
    """Nobody is left who knows what that trainer pushed before: its successor counts the data."""
    running.kill(running.trainers[1])
    running.kill(running.shards[1])
    running.replace_shard(1)
    running.replace_trainers(1, leader=0)


def shard_and_all_trainers(running: LocalJob) -> None:
    for member in (running.shards[1], *running.trainers):
        running.kill(member)
    running.replace_shard(1)
    running.replace_trainers(0, 1, leader=0)


@pytest.mark.parametrize("lose", [shard_alone, shard_and_trainer, shard_and_all_trainers])
def test_a_killed_shard_tells_exactly_how_many_row_updates_it_lost(
    lose: Callable[[LocalJob], None], tmp_path: Path
) -> None:
    job = small_job(tmp_path, samples=SAMPLES, trainers=2)
    with LocalJob(job, tmp_path) as running:
        running.start()
        running.reach(SAMPLES // 4)
        running.train_unsaved()
        lose(running)
        report = running.wait_for(
            lambda: (r := running.shard(1)).resumed_samples is not None and r, "all ranks push again"
        )
        anchor = running.result()
    count = Count(job)
    assert report.row_updates is not None
    assert report.row_updates.lost == count.lost(report) > 0
    assert told(job, anchor) == RowUpdates(count.all(), report.row_updates.lost, exact=True)


def test_two_losses_add_up_and_a_repeated_one_counts_once(tmp_path: Path) -> None:
    """The shard dies again before it saved anything: what its second successor lost holds the first loss."""
    job = small_job(tmp_path, samples=SAMPLES, trainers=2)
    with LocalJob(job, tmp_path) as running:
        running.start()
        running.reach(SAMPLES // 4)
        for _ in range(2):
            running.train_unsaved()
            shard_alone(running)
            running.wait_for(lambda: running.shard(1).resumed_samples is not None, "all ranks push again")
        report = running.shard(1)
        anchor = running.result()
    count = Count(job)
    assert report.row_updates is not None
    assert report.row_updates.lost == count.lost(report) > 0
    assert told(job, anchor) == RowUpdates(count.all(), report.row_updates.lost, exact=True)


def fresh(story: Story, exchange: Exchange, last: int) -> int:
    """How many of the updates up to step `last` no row of the shard holds, by the values of its rows.

    Each row has the value that it had after some step: what came after that is lost.
    """
    found = exchange.lookup(last, story.rows).result(PATIENCE_S)
    lost = np.zeros(sum(ROWS), np.int64)
    open_rows = np.ones(sum(ROWS), np.bool_)
    for step in range(last, -1, -1):
        values = story.expected(*range(1, step + 1)).rows[story.slots]
        open_rows &= ~(found == values).all(axis=1)
        lost += open_rows & touched(step)
    assert not open_rows.any(), "a row holds what it never held before"
    return int(lost.sum())


@pytest.mark.parametrize("strategy", ["MFU", "SSU", "SCAR", "Growth"])
def test_updates_that_priority_saves_hold_are_not_lost(strategy: str, tmp_path: Path) -> None:
    """MFU counts what they hold; with the others what is lost is a bound."""
    with Story(tmp_path, strategy=strategy, fraction=0.3) as story:
        story.start()
        exchange = story.join()
        story.cut(1, 2, 3, 4)
        story.shard.give(shard_roster(counters=Counters(2, 1, 1), priority_interval_s=0.01))
        last = 4
        while len([*story.store.rglob("*-priority/manifest.json")]) < 3:
            last += 1
            assert last < 90, "the job ends before there are three saves"
            story.push(last)
            time.sleep(0.3)  # a save takes its time, and what it may be committed with comes with later pushes
        story.shard.kill()
        story.start()
        story.shard.wait_ready()
        exchange.follow(trainer_roster((story.shard.peer,), roster=2))
        exchange.wait_ready(PATIENCE_S)
        lost = fresh(story, exchange, last)
        story.push(last + 1)
        report = story.shard.wait_until(lambda report: report.resumed_samples is not None)
        since_the_cut = sum(int(touched(step).sum()) for step in range(5, last + 1))
    assert report.row_updates is not None
    exact = strategy == "MFU"
    assert report.row_updates.exact is exact
    assert 0 < lost < since_the_cut, "priority saves hold some of the updates, and not all"
    assert report.row_updates.lost == lost if exact else lost <= report.row_updates.lost <= since_the_cut
