"""The leading replica of the operator fails: the other one goes on with the jobs."""

import os
import time
from typing import Any

import pytest

from cluster.harness import Cluster, Space, until
from cluster.jobs import MANY_EPOCHS, Run, account, failures, ledger, pod_template, same_auc, verify
from cluster.timeline import Measure

pytestmark = [pytest.mark.realdata, pytest.mark.usefixtures("clicks"), pytest.mark.timeout(300, func_only=True)]


@pytest.mark.skipif(os.environ.get("CPR_CLUSTER_OPERATOR") == "no", reason="no operator is installed")
class TestOperatorNode:
    def test_a_shard_is_replaced_though_the_leader_s_node_lost_power_with_it(
        self, cluster: Cluster, space: Space, calm: dict[str, Any], record_property: Measure
    ) -> None:
        with cluster.operator_on(2, 3):
            leader = cluster.leader()
            lost = cluster.nodes.number(leader.node)
            other = 5 - lost
            assert {cluster.nodes.number(pod.node) for pod in cluster.operator_pods()} == {2, 3}
            run = Run.start(
                space,
                "orphan",
                trainers__template=pod_template(cluster.nodes.name(1)),
                shards__template=pod_template(cluster.nodes.name(other)),
                shards__replicas=2,
            )
            run.slow_down()
            run.reach(0.2)
            victim = run.pod("shard", 1).name
            try:
                cluster.nodes.kill(lost)
                before = time.monotonic()
                space.delete_pod(victim, force=True)
                run.wait("replaced", lambda status: status["shards"][1]["incarnation"] == 2, within_s=90)
                seen = time.monotonic() - before
                samples = run.trained()

                def trains() -> bool:
                    return bool(run.leader_report().get("samples", 0) > samples and run.status()["phase"] == "Running")

                until("it trains again", trains, 60)
                again = time.monotonic() - before
                run.speed_up()
                record_property("measured", f"decided {seen:.1f} s, training again {again:.1f} s after the power loss")
                assert cluster.leader().name != leader.name
                status = run.finish()
            finally:
                cluster.nodes.heal()
        verify(run, status, replaced={("shard", 1)})
        assert failures(status) == [("shard", 1, 1, "Vanished")]
        assert same_auc(status, calm)

    def test_a_stopped_leader_that_goes_on_later_finds_another_in_its_place(
        self, cluster: Cluster, space: Space, record_property: Measure
    ) -> None:
        run = Run.start(space, "stalled", shards__replicas=2, data__epochs=MANY_EPOCHS)
        leader, lease = cluster.leader(), cluster.lease()
        cluster.nodes.signal(leader, "STOP")
        before = time.monotonic()
        try:
            space.delete_pod(run.pod("shard", 1).name, force=True)
            run.wait("replaced", lambda status: status["shards"][1]["incarnation"] == 2, within_s=60)
            record_property("measured", f"decided {time.monotonic() - before:.1f} s after the leader was stopped")
        finally:
            cluster.nodes.signal(leader, "CONT")
        run.wait("trains on", lambda status: status["phase"] == "Running" and not status.get("recovery"), within_s=60)
        victim = run.pod("shard", 0).name
        assert run.recover_from("a shard lost", lambda: space.delete_pod(victim, force=True))
        cluster.wait_operator()
        # The stopped one did not lead again, so between the two decisions nobody but its heir wrote.
        assert cluster.lease()["leaseTransitions"] == lease["leaseTransitions"] + 1
        assert cluster.leader().name != leader.name
        status = run.stop()
        assert sorted(each[:3] for each in failures(status)) == [("shard", 0, 1), ("shard", 1, 1)]
        assert ledger(status) == account(cluster.store, status)
