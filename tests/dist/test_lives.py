"""Shards with keepers: servers of real processes, killed or hung, and followed by others that have all rows."""

from __future__ import annotations

import random
import signal
import threading
import time
from pathlib import Path

import pytest

from cpr_contract.env import KEEPER
from cpr_contract.reports import ExitCode
from cpr_trainer.checkpoint.format.records import read_anchor
from cpr_trainer.store import open_store
from support.local_job import LocalJob, small_job
from support.model import SavedModel, assert_same, saved_model
from support.shard_job import hasty
from support.shard_story import BATCH, Story, push_through
from support.warm_start import run_slowly

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]
SAMPLES = 60_000


def kept_job(folder: Path, interval_s: float = 0.5, **changes: int) -> LocalJob:
    return LocalJob(small_job(folder, samples=SAMPLES, **changes), folder, interval_s, environ={KEEPER: "1"})


def kept_story(folder: Path, **rules: str) -> Story:
    return Story(folder, {KEEPER: "1"}, **rules)


@pytest.mark.parametrize("strategy", ["Full", "MFU"])
def test_a_server_killed_at_any_moment_has_applied_each_push_once(strategy: str, tmp_path: Path) -> None:
    """Rows and state, bit for bit, whether it was applying, saving or waiting; and what it saves later is whole."""
    rng = random.Random(time.time_ns())
    with kept_story(tmp_path, strategy=strategy) as story:
        story.start()
        story.join()
        last = 0
        for life in (2, 3):  # a third crash within a minute would be the last
            delay_s = rng.random() / 20
            kill = threading.Timer(delay_s, story.shard.signal_server)
            kill.start()
            for first in range(last + 1, last + 41, 4):
                push_through(story, *range(first, first + 4), cut=first + 1)
            last += 40
            kill.join()
            # The keeper may not have noticed yet: another kill would hit the process that is dead already.
            story.shard.wait_until(lambda report, life=life: report.lives == life)
        story.shard.wait_until(lambda report: report.applied == (last,))
        push_through(story, last + 1, cut=last + 1)
        story.wait_for(lambda: story.saved_step() == last + 1)
        report = story.shard.wait_ready()
        assert (report.lost, report.restored_samples) == ((), 0)
        assert report.row_updates is not None
        assert (report.row_updates.lost, report.row_updates.exact) == (0, True)
        story.shard.kill()  # with its keeper: what the third life has saved stands alone
        story.start()
        assert story.shard.wait_ready().restored_samples == BATCH * (last + 1)
        story.assert_rows(story.expected(*range(1, last + 2)))


def test_a_hung_server_is_followed_by_one_with_all_rows(tmp_path: Path) -> None:
    with kept_story(tmp_path) as story:
        story.job = hasty(story.job)
        story.start()
        story.join()
        story.push(1, 2, 3)
        story.shard.signal_server(signal.SIGSTOP)
        story.shard.wait_until(lambda report: report.lives == 2)
        assert "hangs" in (story.shard.folder / "log").read_text()
        story.assert_rows(story.expected(1, 2, 3))


def test_the_third_crash_within_a_minute_ends_the_pod(tmp_path: Path) -> None:
    with kept_story(tmp_path) as story:
        story.start()
        story.join()
        story.cut(1)
        for life in (2, 3):
            story.shard.signal_server()
            story.shard.wait_until(lambda report, life=life: report.lives == life)
        story.shard.signal_server()
        assert story.shard.end() == ExitCode.INTERNAL
        problem = story.shard.termination()
        assert problem["reason"] == "GivenUp"
        assert "3 processes ended within 60 s, the last one by SIGKILL" in problem["message"]


def test_a_server_that_is_told_to_stop_ends_its_pod_with_a_flush(tmp_path: Path) -> None:
    """One that is killed before it hears of it is followed by one that flushes."""
    with kept_story(tmp_path) as story:
        story.start()
        story.join()
        story.push(1, 2, 3)
        story.shard.signal_server(signal.SIGSTOP)
        story.shard.process.send(signal.SIGTERM)
        story.shard.signal_server()
        assert story.shard.end() == ExitCode.FLUSHED
        assert story.shard.termination()["samples"] == BATCH * 3
        story.start()
        assert story.shard.wait_ready().restored_samples == BATCH * 3
        story.assert_rows(story.expected(1, 2, 3))


def next_life(running: LocalJob, index: int, number: signal.Signals = signal.SIGKILL) -> None:
    """End a shard's server, and wait for the next one."""
    before = running.shard(index).lives
    running.kill_server(running.shards[index], number)
    running.wait_for(lambda: running.shard(index).lives == before + 1, "the next life begins")


def test_killed_servers_are_as_if_they_had_never_died(tmp_path: Path, calm: SavedModel) -> None:
    """Bit for bit, whatever the shard was doing: applying a push, saving, or nothing."""
    rng = random.Random(time.time_ns())
    with kept_job(tmp_path) as running:
        running.start(run_slowly)
        pids = running.shards[0].process, running.shards[1].process
        for portion, index in zip((0.15, 0.35, 0.55, 0.75), (0, 1, 1, 0), strict=True):
            running.reach(int(portion * SAMPLES))
            time.sleep(rng.random() / 10)
            next_life(running, index)
        reports = [running.shard(index) for index in range(2)]
        anchor = running.result()
    assert pids == (running.shards[0].process, running.shards[1].process)
    for report in reports:
        assert (report.lives, report.incarnation) == (3, 1)
        assert (report.lost, report.restored_samples) == ((), 0)
        assert report.row_updates is not None
        assert (report.row_updates.lost, report.row_updates.exact) == (0, True)
    assert read_anchor(open_store(running.job.snapshots.store, None, None), anchor).lost == ((), ())
    assert_same(saved_model(running.job, anchor, tmp_path / "model"), calm)


def test_two_trainers_go_on_with_a_killed_server(tmp_path: Path) -> None:
    with kept_job(tmp_path, trainers=2) as running:
        running.start()
        running.reach(SAMPLES // 3)
        next_life(running, 1)
        running.reach(SAMPLES // 2)
        reports = [running.shard(index) for index in range(2)]
        assert running.trainer().shard_lives == (1, 2)
        anchor = running.result()
    assert [report.lost for report in reports] == [(), ()]
    assert read_anchor(open_store(running.job.snapshots.store, None, None), anchor).lost == ((), ())


def test_a_server_dies_with_its_keeper(tmp_path: Path) -> None:
    """As one pod: whoever kills the keeper has killed the rows."""
    with kept_job(tmp_path) as running:
        running.start()
        running.reach(SAMPLES // 4)
        running.train_unsaved()
        server = running.server_of(running.shards[1])
        running.kill(running.shards[1])
        running.wait_exit(running.shards[1])
        running.wait_for(lambda: not Path(f"/proc/{server}").exists(), "the server is gone")
        running.replace_shard(1)
        anchor = running.result()
    lost = read_anchor(open_store(running.job.snapshots.store, None, None), anchor).lost
    assert lost[0] == ()
    assert len(lost[1]) == 1
