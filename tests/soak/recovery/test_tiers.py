"""Each way in which a lost process comes back without a loss, on the cluster, and the one that goes back: in its pod,
as a container that begins again, as a spare, from parity, as a new pod, and by a rollback.
"""

from typing import Any

import pytest

from cluster.harness import Cluster, Space
from cluster.harness.pods import Pod
from cluster.jobs import LOSSLESS, Member, Run, account, failures, pod_template, verify_stopped

pytestmark = pytest.mark.timeout(300, func_only=True)


def judge(cluster: Cluster, run: Run, kinds: list[str], replaced: set[Member]) -> None:
    """The job, stopped, met these failures and lost nothing."""
    status = verify_stopped(run, cluster.store, replaced)
    assert [kind for *_, kind in failures(status)] == kinds
    assert (status["budget"]["spent"], status["budget"]["rollbacks"]) == (0, 0)
    assert not any(account(cluster.store, status).values())


def tier(run: Run) -> tuple[str, int]:
    """Return the tier and the loss of the newest failure."""
    failure = run.status()["failures"][-1]
    return failure["tier"], failure["lostSamples"]


def restarts(pod: Pod) -> int:
    """Return the restarts of the pod's main container."""
    (count,) = [each["restartCount"] for each in pod.raw["status"]["containerStatuses"] if each["name"] == "main"]
    return int(count)


class TestInPlace:
    """One job without a budget: its shard's pods may restart their containers, its trainers' may not."""

    @pytest.fixture(scope="class")
    @classmethod
    def run(cls, space: Space) -> Run:
        shards = {"replicas": 2, "template": pod_template(apart="shard", restarted=True)}
        return Run.endless(space, "in-place", **LOSSLESS, shards=shards, trainers__replicas=2)

    def test_killed_server_restarts_in_its_pod(self, cluster: Cluster, space: Space, run: Run) -> None:
        before, victim = run.uids(), run.pod("shard", 0)
        failures = run.recover_from("the kill", lambda: cluster.nodes.kill_child(victim))
        assert failures == [("shard", 0, victim.incarnation, "Crashed")]
        assert (run.uids(), tier(run)) == (before, ("InPlace", 0))
        assert space.wait_for_event("in-place", "RestartedInPlace")

    def test_killed_leader_restarts_in_its_pod_after_the_last_step(
        self, cluster: Cluster, space: Space, run: Run
    ) -> None:
        before, leader = run.uids(), run.leader()
        victim = run.pod("trainer", leader)
        failures = run.recover_from("the kill", lambda: cluster.nodes.kill_child(victim))
        assert failures == [("trainer", leader, victim.incarnation, "Crashed")]
        assert (run.uids(), tier(run), run.leader()) == (before, ("InPlace", 0), leader)
        run.train_on()
        report = run.wait_for_report("trainer", leader)
        assert (report["lives"], report["lost"]) == (2, [])
        assert "loads its code itself" not in space.logs(victim.name), "the supervisor forked"

    def test_killed_container_restarts_in_its_pod_with_all_rows(self, cluster: Cluster, run: Run) -> None:
        before, victim = run.uids(), run.pod("shard", 1)
        assert (restarts(victim), run.status()["runtime"]["restartRules"]) == (0, True)
        failures = run.recover_from("the kill", lambda: cluster.nodes.signal(victim, "KILL"))
        assert failures == [("shard", 1, victim.incarnation, "Killed")]
        assert (run.uids(), tier(run), restarts(run.pod("shard", 1))) == (before, ("InPlace", 0), 1)
        run.train_on()
        report = run.wait_for_report("shard", 1)
        assert (report["lives"], report["restored_samples"], report["lost"]) == (2, 0, [])

    def test_container_killed_again_is_replaced_because_the_kubelet_backs_off(self, cluster: Cluster, run: Run) -> None:
        victim = run.pod("shard", 1)
        failures = run.recover_from("the second kill", lambda: cluster.nodes.signal(victim, "KILL"))
        assert failures == [("shard", 1, victim.incarnation, "Killed")]
        assert tier(run) == ("NewPod", 0)
        assert run.pod("shard", 1).incarnation == victim.incarnation + 1

    def test_restarts_in_place_cost_nothing(self, cluster: Cluster, run: Run) -> None:
        judge(cluster, run, ["Crashed", "Crashed", "Killed", "Killed"], replaced={("shard", 1)})


def test_spare_becomes_each_deleted_shard_and_is_replaced(cluster: Cluster, space: Space) -> None:
    shards = {"replicas": 2, "spares": 1, "template": pod_template()}
    run = Run.endless(space, "spares", **LOSSLESS, shards=shards)
    for index in (1, 0):
        spare = waiting_spare(run)
        victim = run.pod("shard", index)
        failures = run.recover_from("the deletion", lambda name=victim.name: space.delete_pod(name, force=True))
        assert failures == [("shard", index, victim.incarnation, "Vanished")]
        assert tier(run) == ("Spare", 0)
        promoted = run.pod("shard", index)
        assert (promoted.uid, promoted.name, promoted.incarnation) == (spare["uid"], spare["pod"], 2)
        assert waiting_spare(run)["number"] > spare["number"]
    assert len(space.wait_for_event("spares", "SparePromoted")) == 2
    judge(cluster, run, ["Vanished", "Vanished"], replaced={("shard", 0), ("shard", 1)})
    assert not space.pods(job="spares"), "a suspended job keeps no spare either"


def waiting_spare(run: Run) -> dict[str, Any]:
    """The spare, once it can be promoted at once."""

    def waits(status: dict[str, Any]) -> bool:
        return [spare["state"] for spare in status.get("spares", ())] == ["Ready"]

    (spare,) = run.wait("has a spare", waits, within_s=90)["spares"]
    return dict(spare)
