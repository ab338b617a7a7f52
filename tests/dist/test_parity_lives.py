"""Parity of shards that have keepers and spares: what becomes of stripes after a life in place, and a promotion."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract.codec import from_json
from cpr_contract.env import KEEPER
from cpr_contract.reports import ShardReport, ShardState
from cpr_trainer.checkpoint.format.records import read_anchor
from cpr_trainer.store import open_store
from support.local_job import LocalJob, Member, small_job
from support.model import SavedModel, assert_same, saved_model
from support.warm_start import run_slowly

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]
SAMPLES = 60_000
STEPS = 5


def kept_job(folder: Path, shards: int, data_shards: int) -> LocalJob:
    """A job that saves nothing before its end."""
    job = replace(small_job(folder, samples=SAMPLES, shards=shards), replay_bytes=64 << 20, parity_shards=data_shards)
    return LocalJob(job, folder, interval_s=600.0, environ={KEEPER: "1"})


def all_protected(running: LocalJob) -> None:
    """Wait until parity holds all that every shard has learnt by now."""
    samples = running.trainer().samples

    def protected(index: int) -> bool:
        return (running.shard(index).protected_samples or 0) >= samples

    for index in range(len(running.shards)):
        running.wait_for(lambda index=index: protected(index), f"parity has shard {index}")


def lose(running: LocalJob, index: int) -> None:
    """Kill a shard with its keeper."""
    running.kill(running.shards[index])
    running.wait_exit(running.shards[index])


def caught_up(running: LocalJob, index: int) -> ShardReport:
    running.wait_for(lambda: running.shard(index).resumed_samples is not None, "all pushes are there again")
    report = running.shard(index)
    assert report.rebuilt, "there is no save that it could come from"
    assert report.lost == ()
    return report


def next_life(running: LocalJob, index: int) -> None:
    """Kill a shard's server, and wait for the one that its keeper forks."""
    before = running.shard(index).lives
    running.kill_server(running.shards[index])
    running.wait_for(lambda: running.shard(index).lives == before + 1, "the next life begins")


def warm(running: LocalJob, spare: Member) -> None:
    def waits() -> bool:
        return from_json(ShardReport, spare.page("/status")[1]).state is ShardState.SPARE

    running.wait_for(waits, "the spare is warm")


@pytest.mark.parametrize(("shards", "data_shards"), [(2, 1), (3, 2)])
def test_a_next_life_builds_its_stripes_anew(tmp_path: Path, calm: SavedModel, shards: int, data_shards: int) -> None:
    """Those that it is a member of, and the one that it holds; a shard that was rebuilt has a next life, too."""
    with kept_job(tmp_path, shards, data_shards) as running:
        running.start(run_slowly)
        running.reach(SAMPLES // STEPS)
        all_protected(running)
        next_life(running, 1)
        all_protected(running)
        for index in (1, 0):  # what it flushed, then what it holds
            lose(running, index)
            running.replace_shard(index)
            caught_up(running, index)
            all_protected(running)
        next_life(running, 0)
        running.reach(4 * SAMPLES // STEPS)
        report, anchor = running.shard(0), running.result()
    assert (report.lives, report.rebuilt, report.lost) == (2, True, ())
    assert read_anchor(open_store(running.job.snapshots.store, None, None), anchor).lost == ((),) * shards
    assert_same(saved_model(running.job, anchor, tmp_path / "model"), calm)


def test_a_server_that_dies_while_another_shard_is_away_has_lost_nothing(tmp_path: Path, calm: SavedModel) -> None:
    """The holder's next life has no parity of the lost shard: that one comes back from the trainer's log."""
    with kept_job(tmp_path, 2, 1) as running:
        running.start(run_slowly)
        running.reach(SAMPLES // STEPS)
        all_protected(running)
        lose(running, 1)
        next_life(running, 0)
        running.replace_shard(1)
        running.wait_for(lambda: running.shard(1).resumed_samples is not None, "all pushes are there again")
        report = running.shard(1)
        all_protected(running)
        anchor = running.result()
    assert (report.rebuilt, report.lost) == (False, ())
    assert_same(saved_model(running.job, anchor, tmp_path / "model"), calm)


def test_a_promoted_spare_takes_its_rows_from_parity_and_keeps_parity(tmp_path: Path, calm: SavedModel) -> None:
    with kept_job(tmp_path, 3, 2) as running:
        running.start(run_slowly)
        spares = [running.start_spare() for _ in range(2)]
        running.reach(SAMPLES // STEPS)
        for spare, index in zip(spares, (1, 2), strict=True):  # shard 1 is a holder of shard 2
            warm(running, spare)
            all_protected(running)
            lose(running, index)
            running.promote(spare, index)
            caught_up(running, index)
        all_protected(running)
        next_life(running, 1)  # of one that was a spare
        anchor = running.result()
    assert_same(saved_model(running.job, anchor, tmp_path / "model"), calm)
