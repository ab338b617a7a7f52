"""Shards of real processes, killed while trainers keep what no save holds: nothing is lost."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract.choices import SparseUpdates
from cpr_contract.env import ROLE_SHARD, ROLE_TRAINER
from cpr_contract.reports import ExitCode
from support.local_job import LocalJob, small_job
from support.warm_start import run_held

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]


@pytest.mark.parametrize("sparse_updates", ["PerStep", "PerPush"])
def test_job_suspended_with_a_lost_shard_loses_nothing(tmp_path: Path, sparse_updates: SparseUpdates) -> None:
    """Trainers alone hold the updates, and wait for the shard, which returns late."""
    job = replace(small_job(tmp_path, samples=20_000, trainers=2), replay_bytes=64 << 20)
    job = replace(job, sparse_updates=sparse_updates)
    with LocalJob(job, tmp_path, interval_s=600.0) as running:
        running.hold_at(100)
        running.start(run_held)
        running.reach(8_000)
        running.kill(running.shards[1])
        running.wait_exit(running.shards[1])
        running.wait_for(lambda: running.trainer().waiting_for, "the shard is missed")
        running.stopped |= {ROLE_TRAINER}
        running.publish()
        time.sleep(8.0)
        running.replace_shard(1)
        assert [running.wait_exit(member) for member in running.trainers] == [ExitCode.FLUSHED] * 2
        reports = [running.shard(index) for index in (0, 1)]
        running.stopped |= {ROLE_SHARD}
        running.publish()
        assert [running.wait_exit(member) for member in running.shards] == [ExitCode.FLUSHED] * 2
    assert [report.lost for report in reports] == [(), ()]
    assert reports[0].applied == reports[1].applied
    assert reports[1].replayed_samples >= 8_000
