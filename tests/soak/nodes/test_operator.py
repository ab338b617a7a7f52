"""The leading replica of the operator loses its node, or stands still: the other one goes on with the jobs."""

import os

import pytest

from cluster.harness import Cluster, Space
from cluster.jobs import Run, failures, pod_template, verify_stopped

pytestmark = [
    pytest.mark.timeout(300, func_only=True),
    pytest.mark.skipif(os.environ.get("CPR_CLUSTER_OPERATOR") == "no", reason="no operator is installed"),
]


def test_shard_is_replaced_though_the_leader_lost_its_power(cluster: Cluster, space: Space) -> None:
    with cluster.operator_on(2, 3):
        leader = cluster.leader()
        lost = cluster.nodes.number(leader.node)
        assert {cluster.nodes.number(pod.node) for pod in cluster.operator_pods()} == {2, 3}
        run = Run.endless(
            space,
            "orphan",
            trainers__template=pod_template(cluster.nodes.name(1)),
            shards__template=pod_template(cluster.nodes.name(5 - lost)),
        )
        victim = run.pod("shard", 1).name

        def strike() -> None:
            cluster.nodes.kill(lost)
            space.delete_pod(victim, force=True)

        try:
            assert run.recover_from("the loss", strike) == [("shard", 1, 1, "Vanished")]
            run.train_on()
            assert cluster.leader().name != leader.name
            verify_stopped(run, cluster.store, replaced={("shard", 1)})
        finally:
            cluster.nodes.heal()


def test_stopped_leader_that_goes_on_later_finds_another_in_its_place(cluster: Cluster, space: Space) -> None:
    run = Run.endless(space, "stalled")
    leader, lease = cluster.leader(), cluster.lease()
    cluster.nodes.signal(leader, "STOP")
    try:
        space.delete_pod(run.pod("shard", 1).name, force=True)
        run.wait("replaced", lambda status: status["shards"][1]["incarnation"] == 2, within_s=60)
    finally:
        cluster.nodes.signal(leader, "CONT")
    run.wait("trains on", lambda status: status["phase"] == "Running" and not status.get("recovery"), within_s=60)
    victim = run.pod("shard", 0).name
    assert run.recover_from("a shard lost", lambda: space.delete_pod(victim, force=True))
    cluster.wait_operator()
    # The stopped one did not lead again, so between the two decisions only its successor wrote.
    assert cluster.lease()["leaseTransitions"] == lease["leaseTransitions"] + 1
    assert cluster.leader().name != leader.name
    status = verify_stopped(run, cluster.store, replaced={("shard", 0), ("shard", 1)})
    assert sorted(each[:3] for each in failures(status)) == [("shard", 0, 1), ("shard", 1, 1)]
