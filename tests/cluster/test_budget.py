"""The accuracy budget on the real cluster: shards are deleted again and again, and the plan follows."""

import json
from typing import Any

import pytest
from harness import Cluster, Space, until
from jobs import Run, account, failures, ledger, same_auc, verify

pytestmark = [pytest.mark.realdata, pytest.mark.usefixtures("clicks"), pytest.mark.timeout(240, func_only=True)]


def roster_interval(run: Run) -> float:
    """The interval that the leader was told last."""
    return float(json.loads(run.pod("trainer", run.leader()).roster)["interval_s"])


def delete_and_recover(run: Run, shard: int) -> dict[str, Any]:
    """Delete a shard by force, and wait until training goes on without it being missed; return the status then."""
    before = len(failures(run.status()))
    run.space.delete_pod(run.pod("shard", shard).name, force=True)
    return run.wait(
        f"is over the loss of shard {shard}",
        lambda status: len(failures(status)) > before and status.get("recovery") is None,
    )


class TestThePlan:
    def test_m_the_interval_follows_each_failure_and_the_leader_is_told(
        self, cluster: Cluster, space: Space, calm: dict[str, Any]
    ) -> None:
        run = Run.start(
            space,
            "learning",
            accuracyBudget={"portionOfLostSamples": 0.05},
            snapshots__interval={"mode": "Auto"},
            snapshots__keep=100,
            failurePolicy={"silenceSeconds": 5, "expectedJobMtbfSeconds": 60},
        )
        run.reach(0.25)
        plans, struck = [run.status()["plan"]], []
        for shard in (1, 2):
            struck.append(run.report("trainer", run.leader())["step"])
            status = delete_and_recover(run, shard)
            plans.append(status["plan"])
            assert status["policy"]["alpha"] == 1 + len(struck)
            until("the leader is told", lambda plan=plans[-1]: roster_interval(run) == plan["intervalSeconds"], 30)
        assert len({plan["intervalSeconds"] for plan in plans}) == len(plans)
        assert plans[-1]["intervalSeconds"] < plans[0]["intervalSeconds"]
        told = [message for reason, message in space.events("learning") if reason == "Planned"]
        assert {plan["reason"] for plan in plans} <= set(told)
        status = run.finish()
        verify(run, status, replaced={("shard", 1), ("shard", 2)})
        assert ledger(status) == account(cluster.store, status)
        assert same_auc(status, calm)


class TestFullRecovery:
    def test_n_full_recovery_rolls_back_and_leaves_every_other_pod_alone(
        self, cluster: Cluster, space: Space, calm: dict[str, Any]
    ) -> None:
        run = Run.start(space, "whole", recovery={"mode": "Full"})
        run.reach(0.4)
        status = delete_and_recover(run, 1)
        assert status["plan"]["mode"] == "Full"
        status = run.finish()
        verify(run, status, replaced={("shard", 1)})
        assert [f[:3] for f in failures(status)] == [("shard", 1, 1)]
        assert (status["budget"]["rollbacks"], status["counters"]["generation"]) == (1, 2)
        assert status["budget"]["spent"] == 0
        assert status["overhead"]["lostSeconds"] > 0
        assert not any(account(cluster.store, status).values())
        assert same_auc(status, calm)
