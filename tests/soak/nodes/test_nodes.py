"""Nodes that are cut off on the cluster, and come back when their members were replaced."""

import pytest

from cluster.harness import Cluster, Space
from cluster.jobs import Member, Run, account, failures, ledger, pod_template, verify_members


@pytest.mark.parametrize("cut", ["a shard", "a trainer and a shard", "the only trainer and a shard"])
@pytest.mark.timeout(240, func_only=True)
def test_partitioned_node_has_its_members_replaced_once(cluster: Cluster, space: Space, cut: str) -> None:
    count, template = {
        "a shard": (2, pod_template(cluster.nodes.name(1))),
        "a trainer and a shard": (2, pod_template(apart="trainer", unstable=True)),
        "the only trainer and a shard": (1, pod_template(unstable=True)),
    }[cut]
    shards = {"replicas": 3, "template": pod_template(apart="shard", unstable=True)}
    run = Run.endless(space, "island", trainers={"replicas": count, "template": template}, shards=shards)
    run.wait("is saved", lambda status: bool(status.get("anchors")), 90)
    node = run.pod("shard", 0).node if cut == "a shard" else run.pod("trainer", count - 1 - run.leader()).node
    lost_members: set[Member] = {member for member in run.before if run.pod(*member).node == node}
    assert len(lost_members) >= 1 + cut.count("trainer")
    number = cluster.nodes.number(node)
    recorded = run.recover_from("the cut", lambda: cluster.nodes.cut(number), failures=len(lost_members))
    assert {(role, index, kind) for role, index, _, kind in recorded} == {(*one, "Hung") for one in lost_members}
    assert len({failure["time"] for failure in run.status()["failures"]}) == 1, "one decision"
    run.train_on()
    cluster.nodes.join(number)
    verify_members(run, run.status(), replaced=lost_members)
    status = run.stop()
    assert len(failures(status)) == len(lost_members)
    charged = ledger(status)
    for shard, lost in account(cluster.store, status).items():
        # With the last trainer its dense state is lost, which is charged to all shards. Else the ranges are the same.
        covered = all(any(first <= a and b <= last for first, last in charged[shard]) for a, b in lost)
        assert covered if count == 1 else lost == charged[shard], (charged, lost)
    assert count > 1 or charged[0]
