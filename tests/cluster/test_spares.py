"""A warm spare on the real cluster: a shard's pod is deleted by force, and a pod that was there takes its place."""

from typing import Any

import pytest

from cluster.harness import Cluster, Space
from cluster.jobs import MANY_EPOCHS, Run, account, failures, pod_template, verify_members

pytestmark = [pytest.mark.realdata, pytest.mark.usefixtures("clicks"), pytest.mark.timeout(300, func_only=True)]


class TestASpare:
    def test_it_becomes_each_shard_that_is_deleted_and_another_one_is_made(
        self, cluster: Cluster, space: Space
    ) -> None:
        run = Run.start(
            space,
            "spares",
            accuracyBudget={"portionOfLostSamples": 0},
            recovery={"replay": {"mode": "Auto", "memory": "64Mi"}},
            shards={"replicas": 2, "spares": 1, "template": pod_template()},
            data__epochs=MANY_EPOCHS,
        )
        for index in (1, 0):
            spare = waiting_spare(run)
            victim = run.pod("shard", index)
            told = run.recover_from("the deletion", lambda name=victim.name: space.delete_pod(name, force=True))
            assert told == [("shard", index, victim.incarnation, "Vanished")]
            status = run.status()
            assert (status["failures"][-1]["tier"], status["failures"][-1]["lostSamples"]) == ("Spare", 0)
            assert status["shards"][index]["uid"] == spare["uid"]
            promoted = run.pod("shard", index)
            assert (promoted.name, promoted.node, promoted.incarnation) == (spare["pod"], spare["node"], 2)
            assert waiting_spare(run)["number"] > spare["number"]
        assert len(space.told("spares", "SparePromoted")) == 2
        verify_members(run, run.status(), replaced={("shard", 0), ("shard", 1)})
        status = run.stop()
        assert status["spares"] == []
        assert not space.pods(job="spares"), "a suspended job keeps no spare either"
        assert [kind for *_, kind in failures(status)] == ["Vanished", "Vanished"]
        assert (status["budget"]["spent"], status["budget"]["rollbacks"]) == (0, 0)
        assert not any(account(cluster.store, status).values())


def waiting_spare(run: Run) -> dict[str, Any]:
    """The spare, once it can be promoted at once."""

    def waits(status: dict[str, Any]) -> bool:
        return [spare["state"] for spare in status.get("spares", ())] == ["Ready"]

    (spare,) = run.wait("has a spare", waits, within_s=90)["spares"]
    return dict(spare)
