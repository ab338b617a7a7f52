"""Nodes that lose their power or are drained, on the cluster."""

from cluster.harness import Cluster, Space
from cluster.jobs import LOSSLESS, Member, Run, account, failures, pod_template, verify_stopped


def test_powered_off_node_is_one_decision_for_all_its_pods(cluster: Cluster, space: Space) -> None:
    run = Run.endless(
        space,
        "dark",
        trainers={"replicas": 2, "template": pod_template(apart="trainer", unstable=True)},
        shards={"replicas": 3, "template": pod_template(apart="shard", unstable=True)},
        recovery=LOSSLESS["recovery"],
    )
    leader = run.leader()
    dark = run.pod("trainer", leader).node
    lost: set[Member] = {("shard", i) for i in range(3) if run.pod("shard", i).node == dark} | {("trainer", leader)}
    assert 1 < len(lost) < len(run.before)
    run.recover_from("the loss", lambda: cluster.nodes.kill(cluster.nodes.number(dark)), failures=len(lost))
    run.train_on()
    status = run.status()
    assert {(role, index, kind) for role, index, _, kind in failures(status)} == {(*one, "Hung") for one in lost}
    assert len({failure["time"] for failure in status["failures"]}) == 1
    assert status["leader"] != leader
    assert status["trainers"][leader]["avoid"] == dark
    assert all(run.pod(*one).node != dark for one in lost)
    status = verify_stopped(run, cluster.store, replaced=lost)
    assert (status["counters"]["generation"], status["budget"]["rollbacks"]) == (1, 0)


def test_drained_shard_flushes_and_loses_nothing_without_replay(cluster: Cluster, space: Space) -> None:
    run = Run.endless(
        space,
        "drained",
        accuracyBudget={"portionOfLostSamples": 1e-9},  # the loss of a single sample rolls the job back
        trainers__template=pod_template(cluster.nodes.name(1)),
        shards__template=pod_template(unstable=True),
    )
    victim = run.pod("shard", 1)
    selector = "cprjob.io/job=drained,cprjob.io/role=shard,cprjob.io/index=1"
    recorded = run.recover_from("the drain", lambda: cluster.nodes.drain(cluster.nodes.number(victim.node), selector))
    assert recorded == [("shard", 1, 1, "Disruption")]
    assert run.pod("shard", 1).node != victim.node
    assert run.status()["failures"][-1]["lostSamples"] == 0
    status = verify_stopped(run, cluster.store, replaced={("shard", 1)})
    assert (status["budget"]["spent"], status["budget"]["rollbacks"]) == (0, 0)
    assert account(cluster.store, status) == {0: (), 1: ()}
