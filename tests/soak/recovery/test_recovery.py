"""Faults of processes on the cluster: one job meets them all, one test each, and the last judges the whole.

A test waits until training continues with all members, so the next one begins with a whole job.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest

from cluster.harness import Cluster, Pod, Space, until
from cluster.jobs import ENDLESS, Member, Run, failures, pod_template, verify_stopped

pytestmark = pytest.mark.timeout(240, func_only=True)


class TestOneShard:
    """Shards die in one job, which was applied while its predecessor's pods were still there."""

    @pytest.fixture(scope="class")
    @classmethod
    def former(cls, space: Space) -> set[str]:
        """The pods of a job of the same name, which were saving when the next one was applied."""
        first = Run.start(space, "again", data=ENDLESS)
        first.delete()
        until("its object is gone", lambda: not space.kubectl("get", "cprjob", "again", "--ignore-not-found"), 30)
        assert space.pods(job="again"), "no old pod is left to be in the way"
        return set(first.before.values())

    @pytest.fixture(scope="class")
    @classmethod
    def run(cls, space: Space, former: set[str]) -> Run:
        return Run.start(space, "again", data=ENDLESS)

    def test_job_applied_again_while_old_pods_flush_starts_from_scratch(self, run: Run, former: set[str]) -> None:
        assert former.isdisjoint(run.before.values())
        status = run.wait("has an anchor", lambda status: bool(status.get("anchors")))
        assert (failures(status), status["budget"]["spent"], status["counters"]["generation"]) == ([], 0, 1)

    def test_shards_lost_together_and_one_during_its_restore_recover(self, cluster: Cluster, run: Run) -> None:
        first, third = run.pod("shard", 0), run.pod("shard", 2)

        def kill_three() -> None:
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda pod: cluster.nodes.signal(pod, "KILL"), (first, third)))
            again = until("shard 2 is back as a process", lambda: _running(run, third.incarnation + 1), 30)
            cluster.nodes.signal(again, "KILL")

        failures = run.recover_from("three kills", kill_three, failures=3)
        killed = [(0, first.incarnation), (2, third.incarnation), (2, third.incarnation + 1)]
        assert sorted(failures) == [("shard", *one, "Killed") for one in killed]

    def test_shard_deleted_without_an_operator_is_replaced_by_the_next_one(
        self, cluster: Cluster, space: Space, run: Run
    ) -> None:
        victim = run.pod("shard", 0)

        def delete_unseen() -> None:
            cluster.stop_operator()
            try:
                space.delete_pod(victim.name, force=True)
                until("the leader waits for it", lambda: "shard/0" in run.leader_report().get("waiting_for", ()), 30)
            finally:
                cluster.start_operator()

        failures = run.recover_from("an unobserved loss", delete_unseen)
        assert failures == [("shard", 0, victim.incarnation, "Vanished")]

    def test_ledger_equals_the_manifests(self, cluster: Cluster, run: Run) -> None:
        status = verify_stopped(run, cluster.store, replaced={("shard", 0), ("shard", 2)})
        assert (status["counters"]["generation"], status["budget"]["rollbacks"]) == (1, 0)


class TestUnresponsive:
    """A shard and the leader fall silent, in one job with its pods apart."""

    @pytest.fixture(scope="class")
    @classmethod
    def run(cls, space: Space) -> Run:
        apart = {f"{role}s__template": pod_template(apart=role) for role in ("trainer", "shard")}
        return Run.start(space, "silent", data=ENDLESS, **apart)

    def test_hung_leader_is_replaced_once_and_loses_nothing(self, cluster: Cluster, run: Run) -> None:
        leader = run.leader()
        hung = run.pod("trainer", leader)
        failures = run.recover_from("the suspension", lambda: cluster.nodes.signal(hung, "STOP"))
        assert failures == [("trainer", leader, hung.incarnation, "Hung")]
        status = run.status()
        assert (status["trainers"][leader]["incarnation"], status["leader"]) == (hung.incarnation + 1, 1 - leader)
        assert status["budget"]["spent"] == 0

    def test_hung_shard_is_replaced_once_and_wakes_up_too_late(self, cluster: Cluster, run: Run) -> None:
        frozen = run.pod("shard", 2)
        failures = run.recover_from("the suspension", lambda: cluster.nodes.signal(frozen, "STOP"))
        cluster.nodes.signal(frozen, "CONT")
        assert failures == [("shard", 2, frozen.incarnation, "Hung")]
        replacement = run.status()["shards"][2]
        assert (replacement["incarnation"], replacement["avoid"]) == (frozen.incarnation + 1, frozen.node)
        assert replacement["node"] != frozen.node

    def test_other_members_keep_their_pods(self, cluster: Cluster, run: Run) -> None:
        replaced: set[Member] = {("trainer", 1 - run.leader()), ("shard", 2)}
        assert len(failures(verify_stopped(run, cluster.store, replaced))) == len(replaced)


def _running(run: Run, incarnation: int) -> Pod | None:
    pod = run.find("shard", 2)
    return pod if pod and pod.incarnation == incarnation and pod.phase == "Running" and pod.container_id else None
