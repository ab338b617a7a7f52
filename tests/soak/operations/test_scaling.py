"""Trainers come and go on the cluster while a job trains: all stop at one step and go on from there."""

import json

import pytest

from cluster.harness import Cluster, Space
from cluster.jobs import NO_SAVES, Run, account, failures, ledger, verify_members


@pytest.mark.timeout(300, func_only=True)
def test_third_trainer_joins_and_two_leave_after_a_shard_was_killed(cluster: Cluster, space: Space) -> None:
    run = Run.endless(space, "elastic", trainers__replicas=2, snapshots__interval=NO_SAVES)
    scale_to(run, 3, generation=2)
    run.recover_from("the kill", lambda: cluster.nodes.signal(run.pod("shard", 1), "KILL"))
    charged = ledger(run.status())
    assert charged[1]
    scale_to(run, 1, generation=3)
    verify_members(run, run.status(), replaced=())
    status = run.stop()
    assert [failure[:2] for failure in failures(status)] == [("shard", 1)]
    assert status["budget"]["rollbacks"] == 0
    assert ledger(status) == charged, "what was lost before an anchor stays charged"
    assert account(cluster.store, status) == {0: (), 1: ()}, "and nothing is lost after it"


def scale_to(run: Run, trainers: int, generation: int) -> None:
    """Give a job other trainers; wait until these train on from where those before stopped."""
    before = run.trained()
    run.space.patch(run.name, json.dumps({"spec": {"trainers": {"replicas": trainers}}}))
    status = run.wait(
        f"trains as {trainers}", lambda s: s.get("phase") == "Running" and len(s["trainers"]) == trainers, within_s=120
    )
    assert status["anchors"][-1]["samples"] >= before
    assert status["counters"]["generation"] == generation
    assert {pod.index for pod in run.space.pods(job=run.name, role="trainer")} == set(range(trainers))
    run.before = run.uids()
    run.train_on()
