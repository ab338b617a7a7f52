"""Processes that hang or crash again and again: silence and counts that need real time."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch

from cpr_contract.env import KEEPER
from cpr_contract.reports import ExitCode
from cpr_trainer import notebook
from support.local_job import LocalJob, small_job
from support.model import assert_fitted, saved_model
from support.shard_job import hasty
from support.shard_scenario import ShardScenario
from support.warm_start import Main, run, run_with_a_thread

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]
SAMPLES = 60_000
SUPERVISED = {KEEPER: "1"}


def test_hung_server_of_a_shard_restarts_with_all_rows(tmp_path: Path) -> None:
    with ShardScenario(tmp_path, SUPERVISED) as scenario:
        scenario.job = hasty(scenario.job)
        scenario.start()
        scenario.join()
        scenario.push(1, 2, 3)
        scenario.shard.signal_server(signal.SIGSTOP)
        scenario.shard.wait_until(lambda report: report.lives == 2)
        assert "hangs" in (scenario.shard.folder / "log").read_text()
        scenario.assert_rows(scenario.expected(1, 2, 3))


def test_third_crash_within_a_minute_ends_the_pod(tmp_path: Path) -> None:
    with ShardScenario(tmp_path, SUPERVISED) as scenario:
        scenario.start()
        scenario.join()
        scenario.cut(1)
        for process_number in (2, 3):
            scenario.shard.signal_server()
            scenario.shard.wait_until(lambda report, process_number=process_number: report.lives == process_number)
        scenario.shard.signal_server()
        assert scenario.shard.end() == ExitCode.INTERNAL
        problem = scenario.shard.termination()
        assert problem["reason"] == "GivenUp"
        assert "3 processes ended within 60 s, the last one by SIGKILL" in problem["message"]


@pytest.mark.parametrize(
    ("number", "main", "logged"),
    [(signal.SIGSTOP, run, "hangs"), (signal.SIGKILL, run_with_a_thread, "loads its code itself")],
    ids=["hung", "supervisor with threads"],
)
def test_process_of_a_trainer_restarts_with_the_same_bits(
    number: signal.Signals, main: Main, logged: str, tmp_path: Path
) -> None:
    """A supervisor with threads cannot fork: the next process loads its code itself, which takes seconds."""
    job = hasty(small_job(tmp_path, samples=SAMPLES))
    with LocalJob(job, tmp_path, environ=SUPERVISED) as running:
        running.start(main)
        running.reach(SAMPLES // 3)
        running.kill_server(running.trainers[0], number)
        running.wait_for(lambda: logged in running.trainers[0].log, "its supervisor begins another")
        anchor = running.result()
    torch.set_num_threads(1)  # sums are in the order of the job's processes
    assert_fitted(notebook.train(job, None, progress=False), job, saved_model(job, anchor, tmp_path / "model"))


def test_hung_members_are_reported_as_unresponsive(tmp_path: Path) -> None:
    """A hung trainer by the other one and by a shard; a hung shard by both trainers."""
    job = hasty(small_job(tmp_path, samples=SAMPLES, trainers=2))
    with LocalJob(job, tmp_path) as running:
        running.start()
        running.reach(SAMPLES // 4)
        running.kill(running.trainers[0], signal.SIGSTOP)
        running.wait_for(lambda: "trainer/0" in running.trainer(1).silent, "the follower misses it")
        running.wait_for(lambda: "trainer/0" in running.shard(0).silent, "a shard misses it")
        running.leader = 1
        running.kill(running.trainers[0])
        running.replace_trainers(0, leader=1)
        running.reach(SAMPLES // 3)
        running.kill(running.shards[1], signal.SIGSTOP)
        for index in range(2):
            running.wait_for(lambda i=index: running.trainer(i).silent == ("shard/1",), f"trainer/{index} misses it")
        assert running.trainer().samples < SAMPLES
