"""Faults of whole nodes on the real cluster: power goes, a cable is cut and put back."""

import time
from typing import Any

import pytest

from cluster.harness import Cluster, Space, until
from cluster.jobs import (
    MANY_EPOCHS,
    SHARDS,
    Member,
    Run,
    account,
    failures,
    ledger,
    pod_template,
    same_auc,
    verify,
    verify_members,
)
from cluster.timeline import Measure

pytestmark = [pytest.mark.realdata, pytest.mark.usefixtures("clicks"), pytest.mark.timeout(240, func_only=True)]


class TestPower:
    def test_f_the_leader_s_node_loses_power(
        self, cluster: Cluster, space: Space, calm: dict[str, Any], record_property: Measure
    ) -> None:
        run = Run.start(
            space,
            "dark",
            trainers__template=pod_template(apart="trainer", unstable=True),
            shards__template=pod_template(cluster.nodes.name(1)),
        )
        run.slow_down()
        run.reach(0.2)
        leader = run.leader()
        assert run.pod("trainer", leader).node != run.pod("trainer", 1 - leader).node
        dark, before = run.pod("trainer", leader).node, time.monotonic()
        cluster.nodes.kill(cluster.nodes.number(dark))
        run.speed_up()
        # The other trainer may end a step that had all it needs.
        run.wait("replaced", lambda status: status["trainers"][leader]["incarnation"] == 2, within_s=60)
        _trains_again(run, besides=leader)
        record_property("measured", f"training again {time.monotonic() - before:.1f} s after the loss")
        status = run.finish()
        verify(run, status, replaced={("trainer", leader)})
        assert failures(status) == [("trainer", leader, 1, "Hung")]
        assert status["leader"] != leader
        replacement = status["trainers"][leader]
        assert (replacement["incarnation"], replacement["avoid"]) == (2, dark)
        assert replacement["node"] != dark
        assert status["budget"]["spent"] == 0
        assert same_auc(status, calm)


class TestCable:
    def test_g_a_shard_s_node_is_cut_off_and_comes_back_after_the_replacement(
        self, cluster: Cluster, space: Space, calm: dict[str, Any], record_property: Measure
    ) -> None:
        run = Run.start(
            space,
            "island",
            trainers__template=pod_template(cluster.nodes.name(1)),
            shards__template=pod_template(apart="shard"),
        )
        run.slow_down()
        run.reach(0.2)
        victim = next(i for i in range(SHARDS) if cluster.nodes.number(run.pod("shard", i).node) == 3)
        before = time.monotonic()
        cluster.nodes.cut(3)
        run.speed_up()
        run.wait("replaced", lambda status: status["shards"][victim]["incarnation"] == 2, within_s=60)
        _trains_again(run)
        record_property("measured", f"training again {time.monotonic() - before:.1f} s after the cut")
        cluster.nodes.join(3)
        status = run.finish()
        verify(run, status, replaced={("shard", victim)})
        assert failures(status) == [("shard", victim, 1, "Hung")]
        assert ledger(status) == account(cluster.store, status)
        assert same_auc(status, calm)

    def test_m_a_node_with_a_trainer_and_a_shard_is_cut_off(
        self, cluster: Cluster, space: Space, calm: dict[str, Any], record_property: Measure
    ) -> None:
        cluster.nodes.heal()  # else no pod of this job would go to the node that was cut off
        run = Run.start(
            space,
            "lost-pair",
            trainers__template=pod_template(apart="trainer", unstable=True),
            shards__template=pod_template(apart="shard"),
        )
        run.slow_down()
        run.reach(0.2)
        trainer = 1 - run.leader()
        node = run.pod("trainer", trainer).node
        gone: set[Member] = {("shard", i) for i in range(SHARDS) if run.pod("shard", i).node == node}
        gone.add(("trainer", trainer))
        assert len(gone) > 1
        before = time.monotonic()
        cluster.nodes.cut(cluster.nodes.number(node))
        run.speed_up()
        run.wait("replaced", lambda status: status["trainers"][trainer]["incarnation"] == 2, within_s=60)
        decided_s = time.monotonic() - before
        _trains_again(run, besides=trainer)
        took_s = time.monotonic() - before
        record_property("measured", f"decided {decided_s:.1f} s and training again {took_s:.1f} s after the cut")
        cluster.nodes.join(cluster.nodes.number(node))
        status = run.finish()
        verify(run, status, replaced=gone)
        assert {(role, index, kind) for role, index, _, kind in failures(status)} == {(*one, "Hung") for one in gone}
        assert len({failure["time"] for failure in status["failures"]}) == 1  # one decision
        assert ledger(status) == account(cluster.store, status)
        assert same_auc(status, calm)

    def test_a_node_with_the_only_trainer_and_a_shard_is_cut_off(
        self, cluster: Cluster, space: Space, record_property: Measure
    ) -> None:
        """Nobody is left who hears the shard."""
        cluster.nodes.heal()
        run = Run.start(
            space,
            "beheaded",
            data__epochs=MANY_EPOCHS,
            trainers__replicas=1,
            trainers__template=pod_template(unstable=True),
            shards__template=pod_template(apart="shard"),
        )
        run.wait("is saved", lambda status: bool(status.get("anchors")), 90)
        node = run.pod("trainer", 0).node
        gone: set[Member] = {("shard", i) for i in range(SHARDS) if run.pod("shard", i).node == node}
        gone.add(("trainer", 0))
        assert len(gone) > 1
        before = time.monotonic()
        run.recover_from("the cut", lambda: cluster.nodes.cut(cluster.nodes.number(node)), failures=len(gone))
        record_property("measured", f"training again {time.monotonic() - before:.1f} s after the cut")
        cluster.nodes.join(cluster.nodes.number(node))
        verify_members(run, run.status(), replaced=gone)
        status = run.stop()
        assert {(role, index, kind) for role, index, _, kind in failures(status)} == {(*one, "Hung") for one in gone}
        assert len({failure["time"] for failure in status["failures"]}) == 1  # one decision
        # With the last trainer its dense state is lost, which is charged to all shards.
        charged = ledger(status)
        for shard, lost in account(cluster.store, status).items():
            assert all(any(first <= a and b <= last for first, last in charged[shard]) for a, b in lost), (
                charged,
                lost,
            )
        assert charged[0]


def _trains_again(run: Run, besides: int | None = None, within_s: float = 60) -> None:
    """Wait until a living trainer has more samples than it has now."""

    def samples() -> int:
        found = [r["samples"] for i in range(2) if i != besides and (r := run.report("trainer", i))]
        return max(found, default=0)

    now = samples()
    until("training goes on", lambda: samples() > now, within_s)
