"""The leading replica of the operator loses its node, or is stopped: the other one takes over the jobs."""

import os

import pytest

from cluster.harness import Cluster, Space
from cluster.jobs import Run, pod_template, verify_stopped

pytestmark = [
    pytest.mark.timeout(300, func_only=True),
    pytest.mark.skipif(os.environ.get("CPR_CLUSTER_OPERATOR") == "no", reason="no operator is installed"),
]


def test_shard_is_replaced_despite_a_powered_off_operator(cluster: Cluster, space: Space) -> None:
    with cluster.operator_on(2, 3):
        elected = cluster.elected_operator()
        lost = cluster.nodes.number(elected.node)
        assert {cluster.nodes.number(pod.node) for pod in cluster.operator_pods()} == {2, 3}
        run = Run.endless(
            space,
            "orphan",
            trainers__template=pod_template(cluster.nodes.name(1)),
            shards__template=pod_template(cluster.nodes.name(5 - lost)),
        )
        victim = run.pod("shard", 1).name

        def inject() -> None:
            cluster.nodes.kill(lost)
            space.delete_pod(victim, force=True)

        try:
            assert run.recover_from("the loss", inject) == [("shard", 1, 1, "Vanished")]
            run.train_on()
            assert cluster.elected_operator().name != elected.name
            verify_stopped(run, cluster.store, replaced={("shard", 1)})
        finally:
            cluster.nodes.heal()
