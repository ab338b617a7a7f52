"""A shard's container that ends as a whole on the real cluster: it begins again in its pod, with all rows."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.harness import Cluster, Space, until
from cluster.harness.pods import Pod
from cluster.jobs import MANY_EPOCHS, Run, account, failures, pod_template, verify_members

pytestmark = [pytest.mark.realdata, pytest.mark.usefixtures("clicks"), pytest.mark.timeout(300, func_only=True)]


class TestAContainerThatIsKilled:
    @pytest.fixture(scope="class")
    @classmethod
    def run(cls, space: Space, clicks: None) -> Run:
        return Run.start(
            space,
            "restarted",
            accuracyBudget={"portionOfLostSamples": 0},
            recovery={"replay": {"mode": "Auto", "memory": "64Mi"}},
            shards={"replicas": 2, "template": pod_template(apart="shard", restarted=True)},
            data__epochs=MANY_EPOCHS,
        )

    def test_it_begins_again_in_its_pod_with_all_rows(self, cluster: Cluster, space: Space, run: Run) -> None:
        before, victim = run.uids(), run.pod("shard", 1)
        assert (restarts(victim), run.status()["runtime"]["restartRules"]) == (0, True)
        told = run.recover_from("the kill", lambda: cluster.nodes.signal(victim, "KILL"))
        assert told == [("shard", 1, victim.incarnation, "Killed")]
        assert run.uids() == before
        assert restarts(run.pod("shard", 1)) == 1
        failure = last_failure(run)
        assert (failure["tier"], failure["lostSamples"], failure["exitCode"]) == ("InPlace", 0, 137)
        assert space.told("restarted", "RestartedInPlace")
        samples = run.trained()
        until("training goes on", lambda: run.trained() > samples, within_s=60)
        report = until("the shard reports", lambda: run.report("shard", 1), within_s=30)
        assert (report["lives"], report["restored_samples"], report["lost"]) == (2, 0, [])
        assert "life 2 goes on from step" in space.logs(victim.name)

    def test_a_second_time_another_pod_takes_its_place(self, cluster: Cluster, run: Run) -> None:
        """It would stand in the kubelet's backoff."""
        victim = run.pod("shard", 1)
        told = run.recover_from("the second kill", lambda: cluster.nodes.signal(victim, "KILL"))
        assert told == [("shard", 1, victim.incarnation, "Killed")]
        failure = last_failure(run)
        assert (failure["tier"], failure["lostSamples"]) == ("NewPod", 0)
        assert run.pod("shard", 1).incarnation == victim.incarnation + 1

    def test_nothing_was_lost_or_charged(self, cluster: Cluster, run: Run) -> None:
        verify_members(run, run.status(), replaced={("shard", 1)})
        status = run.stop()
        assert [kind for *_, kind in failures(status)] == ["Killed", "Killed"]
        assert (status["budget"]["spent"], status["budget"]["rollbacks"]) == (0, 0)
        assert not any(account(cluster.store, status).values())


def restarts(pod: Pod) -> int:
    """How often the pod's main container has begun again."""
    (count,) = [each["restartCount"] for each in pod.raw["status"]["containerStatuses"] if each["name"] == "main"]
    return int(count)


def last_failure(run: Run) -> dict[str, Any]:
    """The failure that was recorded last."""
    found: dict[str, Any] = run.status()["failures"][-1]
    return found
