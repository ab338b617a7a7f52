"""The operator's own node fails: its other replica goes on with the jobs."""

import os
import time
from collections.abc import Callable
from typing import Any

import pytest

from cluster.harness import Cluster, Space, until
from cluster.jobs import Run, failures, pod_template, same_auc, verify

Measure = Callable[[str, object], None]

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
            run.reach(0.2)
            victim = run.pod("shard", 1).name
            try:
                cluster.nodes.kill(lost)
                before = time.monotonic()
                space.delete_pod(victim, force=True)
                replaced = run.wait("replaced", lambda status: status["shards"][1]["incarnation"] == 2, within_s=90)
                seen = time.monotonic() - before
                samples = replaced["progress"]["samples"]

                def trains() -> bool:
                    report = run.report("trainer", run.leader())
                    return bool(report and report["samples"] > samples and run.status()["phase"] == "Running")

                until("it trains again", trains, 60)
                again = time.monotonic() - before
                record_property("measured", f"decided {seen:.1f} s, training again {again:.1f} s after the power loss")
                assert cluster.leader().name != leader.name
                status = run.finish()
            finally:
                cluster.nodes.heal()
        verify(run, status, replaced={("shard", 1)})
        assert failures(status) == [("shard", 1, 1, "Vanished")]
        assert same_auc(status, calm)
