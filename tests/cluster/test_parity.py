"""Parity among shards on the real cluster: the store is away, a shard's pod is deleted, and nothing is lost."""

from typing import Any

import pytest

from cluster.harness import Cluster, Space, until
from cluster.jobs import NO_SAVES, Run, account, failures, verify_members
from cluster.timeline import Measure, Timeline

pytestmark = pytest.mark.timeout(240, func_only=True)

#: More than the test trains, and needs no store to be read.
ENDLESS = {"format": "Synthetic", "samples": 20_000_000, "batchSize": 128, "seed": 1}


class TestParity:
    def test_a_shard_comes_back_without_store_and_save(
        self, cluster: Cluster, space: Space, record_property: Measure
    ) -> None:
        run = Run.start(
            space,
            "parity",
            accuracyBudget={"portionOfLostSamples": 0},
            data=ENDLESS,
            recovery={"replay": {"mode": "Auto", "memory": "64Mi"}, "redundancy": {"dataShards": 1}},
            trainers__replicas=1,
            shards__replicas=2,
            snapshots__interval=NO_SAVES,
        )
        run.wait("is in parity", lambda status: protected(status) > 0)
        with cluster.store_down():
            timeline, victim = Timeline(run, shard=1), run.pod("shard", 1)
            told = run.recover_from(
                "the deletion",
                lambda: timeline.record(lambda: space.delete_pod(victim.name, force=True), within_s=60),
            )
            record_property("measured", timeline.table("recovery of a shard from parity, the store being away"))
            assert told == [("shard", 1, victim.incarnation, "Vanished")]
            (failure,) = run.status()["failures"]
            assert (failure["tier"], failure["lostSamples"]) == ("Parity", 0)
            trained = run.trained()
            until("it trains on without the store", lambda: run.trained() > trained, 60)
            run.wait("is in parity again", lambda status: protected(status) > trained)
            assert not any(shard.get("savedSamples", 0) for shard in run.status()["shards"])
        assert len(space.told("parity", "Rebuilt")) == 1
        verify_members(run, run.status(), replaced={("shard", 1)})
        status = run.stop()
        assert failures(status) == [("shard", 1, 1, "Vanished")]
        assert (status["budget"]["spent"], status["budget"]["rollbacks"]) == (0, 0)
        assert not any(account(cluster.store, status).values())


def protected(status: dict[str, Any]) -> int:
    """Samples that every shard can be had again up to, by parity alone: nothing is saved."""
    return int(status.get("progress", {}).get("protectedSamples", 0))
