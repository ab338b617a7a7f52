"""Faults of processes on the real cluster: one job meets them all, one test each, and the last judges the whole.

A test waits until training goes on without anybody missing, so that each meets a whole job. What the job must be at
its end holds for all of them together: the samples, who was replaced, the ledger, the model.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cluster.harness import Cluster, Pod, Space, until
from cluster.jobs import (
    MANY_EPOCHS,
    SHARDS,
    Run,
    account,
    failures,
    ledger,
    pod_template,
    same_auc,
    verify,
    verify_members,
)
from cluster.timeline import Measure, Timeline

pytestmark = [pytest.mark.realdata, pytest.mark.usefixtures("clicks"), pytest.mark.timeout(240, func_only=True)]


class TestNothingIsLost:
    def test_a_without_failures_nothing_is_charged_and_the_model_has_learnt(self, calm: dict[str, Any]) -> None:
        assert (failures(calm), calm["budget"]["spent"], calm["counters"]["generation"]) == ([], 0, 1)
        assert calm["result"]["samples"] == calm["progress"]["totalSamples"]
        assert calm["progress"]["auc"] > 0.6

    def test_a_finished_job_goes_when_its_time_is_over(self, calm_run: Run) -> None:
        space = calm_run.space
        space.patch("calm", '{"spec":{"ttlSecondsAfterFinished":1}}')
        until("the job is gone", lambda: not space.kubectl("get", "cprjob", "calm", "--ignore-not-found"), 40)


class TestOneShard:
    """Shards and the operator die in one job, which was applied while its predecessor's pods were still there."""

    @pytest.fixture(scope="class")
    @classmethod
    def former(cls, space: Space, clicks: None) -> set[str]:
        """The pods of a job of the same name, which were saving when the next one was applied."""
        first = Run.start(space, "again", data__epochs=MANY_EPOCHS)  # pods of one that is over would go at once
        space.kubectl("delete", "cprjob", "again", "--wait=false")
        until("its object is gone", lambda: not space.kubectl("get", "cprjob", "again", "--ignore-not-found"), 30)
        assert space.pods(job="again"), "no old pod is left to be in the way"
        return set(first.before.values())

    @pytest.fixture(scope="class")
    @classmethod
    def run(cls, space: Space, former: set[str]) -> Run:
        return Run.start(space, "again", data__epochs=MANY_EPOCHS)

    def test_k_a_job_applied_again_while_old_pods_flush_starts_anew(self, run: Run, former: set[str]) -> None:
        assert former.isdisjoint(run.before.values())
        run.wait("has an anchor", lambda status: bool(status.get("anchors")))
        status = run.status()
        assert (failures(status), status["budget"]["spent"], status["counters"]["generation"]) == ([], 0, 1)

    def test_b_a_shard_deleted_by_force_comes_back_alone(
        self, space: Space, run: Run, record_property: Measure
    ) -> None:
        timeline, victim = Timeline(run, shard=1), run.pod("shard", 1)
        told = run.recover_from(
            "the deletion",
            lambda: timeline.record(lambda: space.delete_pod(victim.name, force=True), within_s=60),
        )
        record_property("measured", timeline.table())
        assert told == [("shard", 1, victim.incarnation, "Vanished")]

    def test_c_a_killed_process_is_charged_to_its_shard(self, cluster: Cluster, run: Run) -> None:
        for _ in range(3):  # one that dies right after a save loses nothing
            before, victim = ledger(run.status()), run.pod("shard", 2)
            told = run.recover_from("the kill", lambda pod=victim: cluster.nodes.signal(pod, "KILL"))
            assert told == [("shard", 2, victim.incarnation, "Killed")]
            status = run.status()
            after, lost = ledger(status), status["failures"][-1]["lostSamples"]
            assert {i: _samples(after[i]) - _samples(before[i]) for i in after} == {0: 0, 1: 0, 2: lost}
            if lost:
                break
        assert lost > 0

    def test_h_two_shards_at_once_and_one_again_while_it_restores(self, cluster: Cluster, run: Run) -> None:
        first, third = run.pod("shard", 0), run.pod("shard", 2)

        def kill_three() -> None:
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda pod: cluster.nodes.signal(pod, "KILL"), (first, third)))
            again = until("shard 2 is back as a process", lambda: _running(run, third.incarnation + 1), 30)
            cluster.nodes.signal(again, "KILL")

        told = run.recover_from("three kills", kill_three, failures=3)
        killed = [(0, first.incarnation), (2, third.incarnation), (2, third.incarnation + 1)]
        assert sorted(told) == [("shard", *one, "Killed") for one in killed]

    def test_i_a_shard_deleted_while_the_operator_is_down_is_replaced_when_it_is_back(
        self, cluster: Cluster, space: Space, run: Run
    ) -> None:
        victim = run.pod("shard", 0)

        def delete_unseen() -> None:
            cluster.stop_operator()
            try:
                space.delete_pod(victim.name, force=True)
                until("the leader waits for shard 0", lambda: "shard/0" in _waiting_for(run), 30)
            finally:
                cluster.start_operator()

        assert run.recover_from("a loss that nobody saw", delete_unseen) == [
            ("shard", 0, victim.incarnation, "Vanished")
        ]

    def test_j_the_operator_killed_in_the_middle_of_a_recovery_finishes_it(self, cluster: Cluster, run: Run) -> None:
        victim = run.pod("shard", 1)

        def kill_both() -> None:
            before = len(failures(run.status()))
            cluster.nodes.signal(victim, "KILL")
            run.wait("recovers", lambda status: len(failures(status)) > before, within_s=30)
            cluster.kill_operator()

        assert run.recover_from("two kills", kill_both) == [("shard", 1, victim.incarnation, "Killed")]

    def test_the_ledger_is_what_the_manifests_say(self, cluster: Cluster, run: Run) -> None:
        verify_members(run, run.status(), replaced={("shard", index) for index in range(SHARDS)})
        status = run.stop()
        assert (status["counters"]["generation"], status["budget"]["rollbacks"]) == (1, 0)
        assert ledger(status) == account(cluster.store, status)


class TestTrainersAndSilence:
    """A trainer dies between two pushes, a shard and the leader fall silent, in one job with its pods apart."""

    @pytest.fixture(scope="class")
    @classmethod
    def run(cls, space: Space, clicks: None) -> Run:
        return Run.start(
            space,
            "torn",
            trainers__template=pod_template(apart="trainer"),
            shards__template=pod_template(apart="shard"),
            data__epochs=MANY_EPOCHS,
        )

    def test_e_a_trainer_killed_between_its_pushes_to_two_shards_is_made_good(self, cluster: Cluster, run: Run) -> None:
        leader, follower = run.leader(), 1 - run.leader()
        victim = run.pod("trainer", follower)
        taken = {victim.node, run.pod("trainer", leader).node}
        far = next(i for i in range(SHARDS) if run.pod("shard", i).node not in taken)
        told = run.recover_from("a torn push", lambda: _tear(cluster, run, victim, far))
        assert told == [("trainer", follower, victim.incarnation, "Killed")]
        assert run.status()["budget"]["spent"] == 0

    def test_a_hung_leader_is_replaced_once_and_loses_nothing(self, cluster: Cluster, run: Run) -> None:
        leader = run.leader()
        hung = run.pod("trainer", leader)
        told = run.recover_from("the silence", lambda: cluster.nodes.signal(hung, "STOP"))
        assert told == [("trainer", leader, hung.incarnation, "Hung")]
        status = run.status()
        assert (status["trainers"][leader]["incarnation"], status["leader"]) == (hung.incarnation + 1, 1 - leader)
        assert status["budget"]["spent"] == 0

    def test_a_hung_shard_is_replaced_once_and_wakes_up_too_late(self, cluster: Cluster, run: Run) -> None:
        frozen = run.pod("shard", 2)
        told = run.recover_from("the silence", lambda: cluster.nodes.signal(frozen, "STOP"))
        cluster.nodes.signal(frozen, "CONT")
        assert told == [("shard", 2, frozen.incarnation, "Hung")]
        replacement = run.status()["shards"][2]
        assert (replacement["incarnation"], replacement["avoid"]) == (frozen.incarnation + 1, frozen.node)
        assert replacement["node"] != frozen.node

    def test_nobody_else_was_replaced(self, cluster: Cluster, run: Run, calm: dict[str, Any]) -> None:
        verify_members(run, run.status(), replaced={("trainer", 0), ("trainer", 1), ("shard", 2)})
        status = run.stop()
        assert len(failures(status)) == 3
        assert ledger(status) == account(cluster.store, status)


class TestOneNode:
    def test_where_only_the_silent_node_will_do_the_next_try_goes_there(
        self, cluster: Cluster, space: Space, calm: dict[str, Any]
    ) -> None:
        only = cluster.nodes.name(3)
        run = Run.start(space, "cornered", shards__template=pod_template(only))
        run.slow_down()
        run.reach(0.2)
        cluster.nodes.signal(run.pod("shard", 1), "STOP")
        run.speed_up()
        status = run.finish()
        verify(run, status, replaced={("shard", 1)})
        assert failures(status) == [("shard", 1, 1, "Hung")]
        replacement = status["shards"][1]
        assert (replacement["incarnation"], replacement["avoid"], replacement["node"]) == (3, "", only)
        assert ledger(status) == account(cluster.store, status)
        assert same_auc(status, calm)


def _samples(ranges: tuple[tuple[int, int], ...]) -> int:
    return sum(end - begin for begin, end in ranges)


def _waiting_for(run: Run) -> list[str]:
    return list(run.leader_report().get("waiting_for", []))


def _running(run: Run, incarnation: int) -> Pod | None:
    pod = run.find("shard", 2)
    return pod if pod and pod.incarnation == incarnation and pod.phase == "Running" and pod.container_id else None


def _tear(cluster: Cluster, run: Run, victim: Pod, far: int) -> None:
    """Block the way from the trainer's node to one shard until that shard misses a push that others have; then kill."""
    deaf, home = cluster.nodes.number(run.pod("shard", far).node), cluster.nodes.number(victim.node)
    for _ in range(20):  # the way must be blocked after a lookup and before the push, which is a part of a step
        with cluster.nodes.blocked(deaf, home):
            time.sleep(0.4)
            applied = [_applied(run, shard, victim) for shard in range(SHARDS)]
            if len(set(applied)) > 1:
                cluster.nodes.signal(victim, "KILL")
                return
        # TCP sends again only after a while. If the way is blocked before that, the trainer still stands where it was.
        _wait_for_push(run, far, victim, 1 + max(applied))
    pytest.fail("the trainer never stood between two pushes")


def _wait_for_push(run: Run, shard: int, trainer: Pod, step: int) -> None:
    until(f"the push of step {step}", lambda: _applied(run, shard, trainer) >= step, within_s=30)


def _applied(run: Run, shard: int, trainer: Pod) -> int:
    """Return the last step of the trainer that a shard has applied."""
    return int(run.told("shard", shard)["applied"][trainer.index])
