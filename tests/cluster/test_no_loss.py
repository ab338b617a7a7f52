"""A job that may lose nothing, on the real cluster: drained, suspended, robbed of its operator, and rolled back.

One job meets all of it, one test each, and the last judges the whole.
"""

from typing import Any

import pytest

from cluster.harness import Cluster, Space, until
from cluster.jobs import MANY_EPOCHS, SHARDS, Member, Run, account, failures, pod_template, verify_members

pytestmark = [pytest.mark.realdata, pytest.mark.usefixtures("clicks"), pytest.mark.timeout(240, func_only=True)]


class TestABudgetOfNothing:
    @pytest.fixture(scope="class")
    @classmethod
    def run(cls, space: Space, clicks: None) -> Run:
        return Run.start(
            space,
            "poor",
            accuracyBudget={"portionOfLostSamples": 1e-6},  # the loss of any step rolls the job back
            shards__template=pod_template(apart="shard"),
            data__epochs=MANY_EPOCHS,
        )

    def test_d_a_drained_shard_flushes_and_loses_nothing(self, cluster: Cluster, run: Run) -> None:
        victim = next(pod for i in range(SHARDS) if cluster.nodes.number((pod := run.pod("shard", i)).node) != 1)
        selector = f"cprjob.io/job=poor,cprjob.io/role=shard,cprjob.io/index={victim.index}"
        told = run.recover_from("the drain", lambda: cluster.nodes.drain(cluster.nodes.number(victim.node), selector))
        cluster.nodes.heal()
        assert told == [("shard", victim.index, victim.incarnation, "Disruption")]
        assert _replaced(run) == {("shard", victim.index)}
        status = run.status()
        assert status["failures"][-1]["lostSamples"] == status["budget"]["spent"] == 0

    def test_a_killed_server_goes_on_in_its_pod_with_all_rows(self, cluster: Cluster, space: Space, run: Run) -> None:
        before, victim = run.uids(), run.pod("shard", 2)
        told = run.recover_from("the kill", lambda: cluster.nodes.kill_child(victim))
        assert told == [("shard", 2, victim.incarnation, "Crashed")]
        assert run.uids() == before
        status = run.status()
        failure = status["failures"][-1]
        assert (failure["tier"], failure["lostSamples"], status["budget"]["spent"]) == ("InPlace", 0, 0)
        assert space.told("poor", "RestartedInPlace")

    def test_a_killed_leader_goes_on_in_its_pod_after_the_last_complete_step(
        self, cluster: Cluster, space: Space, run: Run
    ) -> None:
        before, leader = run.uids(), run.leader()
        victim = run.pod("trainer", leader)
        told = run.recover_from("the kill", lambda: cluster.nodes.kill_child(victim))
        assert told == [("trainer", leader, victim.incarnation, "Crashed")]
        assert run.uids() == before
        status = run.status()
        failure = status["failures"][-1]
        assert (failure["tier"], failure["lostSamples"], status["budget"]["spent"]) == ("InPlace", 0, 0)
        assert (status["leader"], status["counters"]["generation"]) == (leader, 1)
        samples = run.trained()
        until("both trainers take further steps", lambda: run.trained() > samples, within_s=60)
        report = run.told("trainer", leader)
        assert (report["lives"], report["lost"]) == (2, [])
        log = space.logs(victim.name)
        assert "life 2 goes on after step" in log
        assert "loads its code itself" not in log  # the keeper forked

    def test_a_suspended_job_keeps_no_pod_and_loses_nothing(self, space: Space, run: Run) -> None:
        before = run.status()
        space.patch("poor", '{"spec":{"suspend":true}}')
        status = run.wait("is suspended", lambda status: status.get("phase") == "Suspended", within_s=60)
        assert {member["state"] for member in (*status["shards"], *status["trainers"])} == {"Pending"}
        _resume(run, before)

    def test_an_operator_that_dies_while_pods_save_misses_nothing(
        self, cluster: Cluster, space: Space, run: Run
    ) -> None:
        before = run.status()
        space.patch("poor", '{"spec":{"suspend":true}}')
        run.wait("is being suspended", lambda status: status.get("phase") == "Suspending", within_s=30)
        cluster.kill_operator()

        def told() -> bool:
            return any('"stop":true' in pod.roster for pod in space.pods(job="poor", role="shard"))

        until("shards are told to stop", told, within_s=60, every_s=0.02)
        cluster.kill_operator()
        run.wait("is suspended", lambda status: status.get("phase") == "Suspended", within_s=90)
        _resume(run, before)

    def test_l_a_loss_that_does_not_fit_rolls_back_in_place(self, cluster: Cluster, run: Run) -> None:
        victim = run.pod("shard", 1)
        told = run.recover_from("the kill", lambda: cluster.nodes.signal(victim, "KILL"))
        assert told == [("shard", 1, victim.incarnation, "Killed")]
        status = run.status()
        assert (status["budget"]["rollbacks"], status["counters"]["generation"]) == (1, 2)
        assert _replaced(run) == {("shard", 1)}

    def test_all_that_was_trained_is_in_the_newest_anchor(self, cluster: Cluster, run: Run) -> None:
        verify_members(run, run.status(), replaced={("shard", 1)})
        status = run.stop()
        assert [kind for *_, kind in failures(status)] == ["Disruption", "Crashed", "Crashed", "Killed"]
        assert (status["budget"]["spent"], status["counters"]["generation"]) == (0, 2)
        assert not any(account(cluster.store, status).values())


def _replaced(run: Run) -> set[Member]:
    """Whose pods are others than when they were looked at last."""
    now = run.uids()
    return {member for member in now if now[member] != run.before[member]}


def _resume(run: Run, before: dict[str, Any]) -> None:
    """Resume a suspended job: every member comes back as its next incarnation, and nothing was lost or charged."""
    until("no pod is left", lambda: not run.space.pods(job=run.name), 30)
    run.space.patch(run.name, '{"spec":{"suspend":false}}')
    status = run.wait("trains again", lambda status: status.get("phase") == "Running", within_s=90)
    assert _replaced(run) == set(run.before)
    assert [m["incarnation"] for m in _members(status)] == [m["incarnation"] + 1 for m in _members(before)]
    assert (failures(status), status["counters"]["generation"]) == (failures(before), 1)
    assert status["budget"]["spent"] == 0
    # Events have no order within a second.
    assert run.space.told(run.name, "Suspended")
    assert run.space.told(run.name, "Resumed")
    run.before = run.uids()


def _members(status: dict[str, Any]) -> list[dict[str, Any]]:
    return [*status["shards"], *status["trainers"]]
