"""Processes that live and say nothing, on the real cluster: replaced once, on another node if there is one."""

from typing import Any

import pytest

from cluster.harness import Cluster, Space
from cluster.jobs import Run, account, failures, ledger, pod_template, same_auc, verify

pytestmark = [pytest.mark.realdata, pytest.mark.usefixtures("clicks"), pytest.mark.timeout(240, func_only=True)]


class TestHangs:
    def test_a_hung_shard_is_replaced_once_and_wakes_up_too_late(
        self, cluster: Cluster, space: Space, calm: dict[str, Any]
    ) -> None:
        run = Run.start(space, "frozen", shards__template=pod_template(apart="shard"))
        run.reach(0.2)
        frozen = run.pod("shard", 2)
        cluster.nodes.signal(frozen, "STOP")
        run.wait("has replaced it", lambda status: status["shards"][2]["incarnation"] == 2, within_s=60)
        run.wait("trains again", lambda status: status["phase"] == "Running", within_s=60)
        cluster.nodes.signal(frozen, "CONT")
        status = run.finish()
        verify(run, status, replaced={("shard", 2)})
        assert failures(status) == [("shard", 2, 1, "Hung")]
        heir = status["shards"][2]
        assert (heir["incarnation"], heir["avoid"]) == (2, frozen.node)
        assert heir["node"] != frozen.node
        assert ledger(status) == account(cluster.store, status)
        assert same_auc(status, calm)

    def test_a_hung_leader_is_replaced_once_and_loses_nothing(
        self, cluster: Cluster, space: Space, calm: dict[str, Any]
    ) -> None:
        run = Run.start(space, "stunned", trainers__template=pod_template(apart="trainer"))
        run.reach(0.2)
        leader = run.leader()
        cluster.nodes.signal(run.pod("trainer", leader), "STOP")
        status = run.finish()
        verify(run, status, replaced={("trainer", leader)})
        assert failures(status) == [("trainer", leader, 1, "Hung")]
        assert (status["trainers"][leader]["incarnation"], status["leader"]) == (2, 1 - leader)
        assert status["budget"]["spent"] == 0
        assert same_auc(status, calm)

    def test_where_only_the_silent_node_will_do_the_next_try_goes_there(
        self, cluster: Cluster, space: Space, calm: dict[str, Any]
    ) -> None:
        only = cluster.nodes.name(3)
        run = Run.start(space, "cornered", shards__template=pod_template(only))
        run.reach(0.2)
        cluster.nodes.signal(run.pod("shard", 1), "STOP")
        status = run.finish()
        verify(run, status, replaced={("shard", 1)})
        assert failures(status) == [("shard", 1, 1, "Hung")]
        heir = status["shards"][1]
        assert (heir["incarnation"], heir["avoid"], heir["node"]) == (3, "", only)
        assert ledger(status) == account(cluster.store, status)
        assert same_auc(status, calm)
