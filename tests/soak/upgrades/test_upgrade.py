"""The operator's release changes while a job trains: to one of the next contract version, back to 0.1.0, or away."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.harness import Cluster, Space
from cluster.jobs import Run, failures, verify_stopped
from support.previous_release import unpack

pytestmark = pytest.mark.timeout(400, func_only=True)


def delete(run: Run, index: int) -> Callable[[], None]:
    """Return a function that deletes a shard's pod by force."""
    victim = run.pod("shard", index).name
    return lambda: run.space.delete_pod(victim, force=True)


def versions(run: Run) -> set[int]:
    """Return the contract versions of all rosters of the job's newest pods."""
    return {json.loads(run.pod(role, index).roster)["contract"] for role, index in run.uids()}


def test_operators_of_the_next_and_this_contract_version_continue_the_job(cluster: Cluster, space: Space) -> None:
    run = Run.endless(space, "upgraded")
    before = versions(run)
    cluster.have("operator-next")
    with cluster.newer_operator():
        assert cluster.operator_images() == {"localhost/cprjob-operator-next:dev"}
        run.recover_from("the first loss", delete(run, 0))
        assert versions(run) == before
    run.recover_from("the second loss", delete(run, 1))
    verify_stopped(run, cluster.store, replaced={("shard", 0), ("shard", 1)})


def test_suspended_job_of_this_release_resumes_under_0_1_0(cluster: Cluster, space: Space, tmp_path: Path) -> None:
    unpack(tmp_path)
    run = Run.endless(space, "back")
    samples = run.stop()["progress"]["samples"]
    with cluster.operator_before(tmp_path):
        run.resume()
        run.recover_from("the loss", delete(run, 1))
        status = verify_stopped(run, cluster.store, replaced={("shard", 1)})
    assert status["progress"]["samples"] > samples
    assert failures(status) == [("shard", 1, 2, "Vanished")]
