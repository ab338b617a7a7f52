"""Whole jobs on the real cluster, each losing something else; every test says what may change and what may not."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cluster.harness import Cluster, Space, until
from cluster.harness.space import Role
from cluster.jobs import Member, Run, account, failures, ledger, pod_template, same_auc, verify
from cluster.timeline import Timeline

Measure = Callable[[str, object], None]

pytestmark = [pytest.mark.realdata, pytest.mark.usefixtures("clicks"), pytest.mark.timeout(240, func_only=True)]


class TestNothingIsLost:
    def test_a_without_failures_nothing_is_charged_and_the_model_has_learnt(self, calm: dict[str, Any]) -> None:
        assert (failures(calm), calm["budget"]["spent"], calm["counters"]["generation"]) == ([], 0, 1)
        assert calm["result"]["samples"] == calm["progress"]["totalSamples"]
        assert calm["progress"]["auc"] > 0.6

    def test_d_a_drained_shard_flushes_and_loses_nothing(
        self, cluster: Cluster, space: Space, calm: dict[str, Any]
    ) -> None:
        run = Run.start(space, "drained", shards__template=pod_template(apart="shard"), shards__replicas=2)
        run.reach(0.3)
        victim = next(i for i in range(2) if cluster.nodes.number(run.pod("shard", i).node) != 1)
        number = cluster.nodes.number(run.pod("shard", victim).node)
        cluster.nodes.drain(number, f"cprjob.io/job=drained,cprjob.io/role=shard,cprjob.io/index={victim}")
        status = run.finish()
        verify(run, status, replaced={("shard", victim)})
        assert failures(status) == [("shard", victim, 1, "Disruption")]
        assert status["failures"][0]["lostSamples"] == status["budget"]["spent"] == 0
        assert all(not ranges for ranges in account(cluster.store, status).values())
        assert same_auc(status, calm)


class TestOneShard:
    def test_b_a_shard_deleted_by_force_comes_back_alone(
        self, cluster: Cluster, space: Space, calm: dict[str, Any], record_property: Measure
    ) -> None:
        run = Run.start(space, "deleted")
        run.reach(0.4)
        timeline, victim = Timeline(run, shard=1), run.pod("shard", 1).name
        timeline.record(lambda: space.delete_pod(victim, force=True), within_s=60)
        status = run.finish()
        record_property("measured", timeline.table())
        verify(run, status, replaced={("shard", 1)})
        assert failures(status) == [("shard", 1, 1, "Vanished")]
        assert ledger(status) == account(cluster.store, status)
        assert same_auc(status, calm)

    def test_c_a_killed_process_is_charged_what_the_manifests_say(
        self, cluster: Cluster, space: Space, calm: dict[str, Any]
    ) -> None:
        run = Run.start(space, "killed")
        run.reach(0.4)
        cluster.nodes.signal(run.pod("shard", 2), "KILL")
        status = run.finish()
        verify(run, status, replaced={("shard", 2)})
        assert failures(status) == [("shard", 2, 1, "Killed")]
        lost = account(cluster.store, status)
        assert ledger(status) == lost
        assert sum(b - a for a, b in lost[2]) == status["failures"][0]["lostSamples"] > 0
        assert not any(lost[i] for i in (0, 1, 3))
        assert same_auc(status, calm)

    def test_h_two_shards_at_once_and_one_again_while_it_restores(
        self, cluster: Cluster, space: Space, calm: dict[str, Any]
    ) -> None:
        run = Run.start(space, "twice")
        run.reach(0.4)
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda i: cluster.nodes.signal(run.pod("shard", i), "KILL"), (0, 3)))
        again = until("shard 3 is back as a process", lambda: _running(run, "shard", 3, 2), 30)
        cluster.nodes.signal(again, "KILL")
        status = run.finish()
        verify(run, status, replaced={("shard", 0), ("shard", 3)})
        killed = [("shard", 0, 1), ("shard", 3, 1), ("shard", 3, 2)]
        assert sorted(failures(status)) == [(*member, "Killed") for member in killed]
        assert ledger(status) == account(cluster.store, status)
        assert same_auc(status, calm)


class TestTheOperator:
    def test_i_a_shard_deleted_while_the_operator_is_down_is_replaced_when_it_is_back(
        self, cluster: Cluster, space: Space, calm: dict[str, Any]
    ) -> None:
        run = Run.start(space, "unseen")
        run.reach(0.3)
        cluster.stop_operator()
        try:
            space.delete_pod(run.pod("shard", 0).name, force=True)
            until(
                "the leader waits for shard 0",
                lambda: "shard/0" in (run.report("trainer", 0) or {}).get("waiting_for", []),
                30,
            )
        finally:
            cluster.start_operator()
        status = run.finish()
        verify(run, status, replaced={("shard", 0)})
        assert failures(status) == [("shard", 0, 1, "Vanished")]
        assert ledger(status) == account(cluster.store, status)
        assert same_auc(status, calm)

    def test_j_the_operator_killed_in_the_middle_of_a_recovery_finishes_it(
        self, cluster: Cluster, space: Space, calm: dict[str, Any]
    ) -> None:
        run = Run.start(space, "orphan")
        run.reach(0.4)
        cluster.nodes.signal(run.pod("shard", 1), "KILL")
        run.wait("recovers", lambda status: status.get("recovery") is not None, within_s=30)
        cluster.kill_operator()
        status = run.finish()
        verify(run, status, replaced={("shard", 1)})
        assert failures(status) == [("shard", 1, 1, "Killed")]
        assert ledger(status) == account(cluster.store, status)
        assert same_auc(status, calm)

    def test_k_a_job_applied_again_while_old_pods_flush_starts_anew(self, space: Space, calm: dict[str, Any]) -> None:
        first = Run.start(space, "again")
        first.reach(0.2)
        space.kubectl("delete", "cprjob", "again", "--wait=false")
        until(
            "the first job's object is gone",
            lambda: not space.kubectl("get", "cprjob", "again", "--ignore-not-found"),
            30,
        )
        assert space.pods(job="again"), "no old pod is left to be in the way"
        second = Run.start(space, "again")
        status = second.finish()
        verify(second, status, replaced=())
        assert set(second.before.values()).isdisjoint(first.before.values())
        assert (failures(status), status["budget"]["spent"]) == ([], 0)
        assert same_auc(status, calm)


class TestTrainers:
    def test_e_a_trainer_killed_between_its_pushes_to_two_shards_is_made_good(
        self, cluster: Cluster, space: Space, calm: dict[str, Any]
    ) -> None:
        run = Run.start(
            space,
            "torn",
            trainers__template=pod_template(apart="trainer"),
            shards__template=pod_template(apart="shard"),
            shards__replicas=3,
        )
        run.reach(0.2)
        leader, follower = run.leader(), 1 - run.leader()
        victim = run.pod("trainer", follower)
        home = cluster.nodes.number(victim.node)
        taken = {victim.node, run.pod("trainer", leader).node}
        far = next(i for i in range(3) if run.pod("shard", i).node not in taken)
        assert _torn(cluster, run, rank=follower, far=far, home=home), "the trainer never stood between two pushes"
        status = run.finish()
        verify(run, status, replaced={("trainer", follower)})
        assert failures(status) == [("trainer", follower, 1, "Killed")]
        assert status["budget"]["spent"] == 0
        assert same_auc(status, calm)

    def test_f_the_leader_s_node_loses_power(
        self, cluster: Cluster, space: Space, calm: dict[str, Any], record_property: Measure
    ) -> None:
        run = Run.start(
            space,
            "dark",
            trainers__template=pod_template(apart="trainer", unstable=True),
            shards__template=pod_template(cluster.nodes.name(1)),
        )
        run.reach(0.2)
        leader = run.leader()
        assert run.pod("trainer", leader).node != run.pod("trainer", 1 - leader).node
        dark, before = run.pod("trainer", leader).node, time.monotonic()
        cluster.nodes.kill(cluster.nodes.number(dark))
        _trains_again(run, besides=leader)
        record_property("measured", f"training again {time.monotonic() - before:.1f} s after the loss")
        status = run.finish()
        verify(run, status, replaced={("trainer", leader)})
        assert failures(status) == [("trainer", leader, 1, "Hung")]
        assert status["leader"] != leader
        heir = status["trainers"][leader]
        assert (heir["incarnation"], heir["avoid"]) == (2, dark)
        assert heir["node"] != dark
        assert status["budget"]["spent"] == 0
        assert same_auc(status, calm)


class TestNodes:
    def test_g_a_shard_s_node_is_cut_off_and_comes_back_after_the_replacement(
        self, cluster: Cluster, space: Space, calm: dict[str, Any], record_property: Measure
    ) -> None:
        run = Run.start(
            space,
            "island",
            trainers__template=pod_template(cluster.nodes.name(1)),
            shards__template=pod_template(apart="shard"),
            shards__replicas=3,
        )
        run.reach(0.2)
        victim = next(i for i in range(3) if cluster.nodes.number(run.pod("shard", i).node) == 3)
        before = time.monotonic()
        cluster.nodes.cut(3)
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
        run = Run.start(
            space,
            "lost-pair",
            trainers__template=pod_template(apart="trainer", unstable=True),
            shards__template=pod_template(apart="shard"),
            shards__replicas=3,
            failurePolicy={},  # as users leave it: 10 s
        )
        run.reach(0.2)
        trainer = 1 - run.leader()
        node = run.pod("trainer", trainer).node
        gone: set[Member] = {("shard", i) for i in range(3) if run.pod("shard", i).node == node}
        gone.add(("trainer", trainer))
        assert len(gone) > 1
        before = time.monotonic()
        cluster.nodes.cut(cluster.nodes.number(node))
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


class TestTheBudget:
    def test_l_a_loss_that_does_not_fit_rolls_back_in_place(
        self, cluster: Cluster, space: Space, calm: dict[str, Any]
    ) -> None:
        run = Run.start(space, "poor", accuracyBudget={"portionOfLostSamples": 0.0001})
        run.reach(0.4)
        cluster.nodes.signal(run.pod("shard", 1), "KILL")
        status = run.finish()
        verify(run, status, replaced={("shard", 1)})
        assert failures(status) == [("shard", 1, 1, "Killed")]
        assert (status["budget"]["rollbacks"], status["counters"]["generation"]) == (1, 2)
        assert status["budget"]["spent"] == 0
        assert not any(account(cluster.store, status).values())
        assert same_auc(status, calm)


def _running(run: Run, role: Role, index: int, incarnation: int) -> Any:
    pod = run.find(role, index)
    return pod if pod and pod.incarnation == incarnation and pod.phase == "Running" and pod.container_id else None


def _torn(cluster: Cluster, run: Run, *, rank: int, far: int, home: int) -> bool:
    """Block the way from the trainer's node to one shard until that shard misses a push that others have; then kill."""
    deaf = cluster.nodes.number(run.pod("shard", far).node)
    for _ in range(60):  # the way must be blocked after a lookup and before the push, which is a part of a step
        with cluster.nodes.blocked(deaf, home):
            time.sleep(0.4)
            applied = [report["applied"][rank] for i in range(3) if (report := run.report("shard", i))]
            if len(set(applied)) > 1:
                cluster.nodes.signal(run.pod("trainer", rank), "KILL")
                return True
    return False


def _trains_again(run: Run, besides: int | None = None, within_s: float = 60) -> None:
    """Wait until a living trainer has more samples than it has now."""

    def samples() -> int:
        found = [r["samples"] for i in range(2) if i != besides and (r := run.report("trainer", i))]
        return max(found, default=0)

    now = samples()
    until("training goes on", lambda: samples() > now, within_s)
