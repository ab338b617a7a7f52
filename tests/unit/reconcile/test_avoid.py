"""The node that a replacement avoids, and the end of that avoidance."""

import pytest

from cpr_operator.api.status import Shard
from cpr_operator.failures import Failure, Kind
from cpr_operator.reconcile.recover import avoided
from simulation.control_plane.run import Simulation
from simulation.control_plane.scenarios import SCENARIOS

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


@pytest.mark.parametrize(
    ("kind", "avoid", "worked", "expected"),
    [
        (Kind.HUNG, "", True, "node-7"),
        (Kind.NODE_LOST, "", True, "node-7"),
        (Kind.HUNG, "node-3", False, "node-7"),
        (Kind.CRASHED, "", True, ""),
        (Kind.KILLED, "node-3", True, ""),  # it worked elsewhere since
        (Kind.KILLED, "node-3", False, "node-3"),  # it never worked: the silent node is still suspect
        (Kind.DELETED, "node-3", False, "node-3"),
        (Kind.VANISHED, "", True, ""),
    ],
)
def test_replacement_avoids_the_failed_node(kind: Kind, avoid: str, worked: bool, expected: str) -> None:  # noqa: FBT001
    member = Shard(index=1, node="node-7", avoid=avoid, lost_at=None if worked else 5.0)
    assert avoided(member, Failure(kind, "reason", "message", ended=True)) == expected


async def test_replacement_of_a_member_on_a_lost_node_runs_elsewhere() -> None:
    run = await Simulation(BY_NAME["a shard's node is lost"]).run()
    (failure,) = run.status.failures
    successor = run.status.shards[1]
    assert successor.avoid == failure.node != ""
    assert successor.node not in {"", failure.node}


async def test_replacement_runs_anywhere_without_another_node() -> None:
    run = await Simulation(BY_NAME["a shard hangs on the only node"]).run()
    shard = run.status.shards[1]
    assert (shard.incarnation, shard.avoid, shard.node) == (3, "", "node-0")
    assert [f.kind for f in run.status.failures] == ["Hung"]
    tried = {
        s["shards"][1]["avoid"] for s in run.cluster.statuses if s["shards"] and s["shards"][1]["incarnation"] == 2
    }
    assert tried == {"node-0"}, "the first try kept off it"
