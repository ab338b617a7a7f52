"""The accuracy budget on the real cluster: shards are deleted again and again, and the plan follows."""

import json
from itertools import pairwise
from typing import Any

import pytest
from harness import Cluster, Space, until
from harness.space import condition
from jobs import Run, account, failures, ledger, same_auc, verify

pytestmark = [pytest.mark.realdata, pytest.mark.usefixtures("clicks"), pytest.mark.timeout(240, func_only=True)]


def roster_interval(run: Run) -> float:
    """The interval that the leader was told last."""
    return float(json.loads(run.pod("trainer", run.leader()).roster)["interval_s"])


def cut_steps(cluster: Cluster, status: dict[str, Any], shard: int) -> list[int]:
    """The steps of all cuts that a shard saved, in the order of training."""
    folder = status["result"]["key"].partition("/gen-")[0]
    keys = cluster.store.keys(f"{folder}/gen-0001/shard-{shard:04d}/")
    names = {key.split("/")[-2] for key in keys if key.endswith("manifest.json")}
    return sorted(int(name.removeprefix("step-")) for name in names if name.removeprefix("step-").isdigit())


def delete_and_recover(run: Run, shard: int) -> dict[str, Any]:
    """Delete a shard by force, and wait until training goes on without it being missed; return the status then."""
    before = len(failures(run.status()))
    run.space.delete_pod(run.pod("shard", shard).name, force=True)
    return run.wait(
        f"is over the loss of shard {shard}",
        lambda status: len(failures(status)) > before and status.get("recovery") is None,
    )


class TestThePlan:
    def test_m_the_interval_follows_each_failure_and_the_cuts_follow_the_interval(
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
        # A shard that nobody deleted cut more often after the second failure than before the first.
        steps = cut_steps(cluster, status, shard=0)
        early = [b - a for a, b in pairwise(steps) if b <= struck[0]]
        late = [b - a for a, b in pairwise(steps[:-1]) if a >= struck[1]]
        assert early, f"no two cuts before step {struck[0]}: {steps}"
        assert late, f"no two cuts after step {struck[1]}: {steps}"
        assert sum(late) / len(late) < sum(early) / len(early)


class TestTheLimit:
    def test_n_a_budget_that_runs_out_says_so_and_is_never_overspent(
        self, cluster: Cluster, space: Space, calm: dict[str, Any]
    ) -> None:
        run = Run.start(
            space,
            "running-out",
            accuracyBudget={"portionOfLostSamples": 0.02},
            recovery={"mode": "Partial"},
            snapshots__interval={"mode": "Fixed", "seconds": 2},
        )
        run.reach(0.2)
        space.wait_condition("running-out", "BudgetAtRisk", within_s=60)
        rollbacks = 0
        for number in range(6):
            status = delete_and_recover(run, number % 4)
            assert status["budget"]["spent"] <= status["budget"]["limit"]
            rollbacks = status["budget"]["rollbacks"]
            if rollbacks:
                break
        assert rollbacks, "the budget did not run out"
        status = run.finish()
        assert status["progress"]["samples"] == status["progress"]["totalSamples"]
        assert status["budget"]["spent"] <= status["budget"]["limit"]
        assert status["budget"]["runningSum"] >= 0
        assert {f["action"] for f in status["failures"]} <= {"ReplaceShards", "RollBack"}
        assert condition(space.job("running-out"), "BudgetAtRisk")["status"] == "True"
        assert same_auc(status, calm)

    def test_o_a_budget_that_nothing_fits_into_is_exhausted_from_the_start(
        self, cluster: Cluster, space: Space, calm: dict[str, Any]
    ) -> None:
        run = Run.start(space, "tiny", accuracyBudget={"portionOfLostSamples": 0.0001})
        exhausted = space.wait_condition("tiny", "BudgetExhausted", within_s=60)
        assert exhausted["reason"] == "NothingFits"
        assert "roll the job back" in exhausted["message"]
        run.reach(0.3)
        status = delete_and_recover(run, 3)
        assert (status["budget"]["rollbacks"], status["budget"]["spent"]) == (1, 0)
        status = run.finish()
        verify(run, status, replaced={("shard", 3)})
        assert same_auc(status, calm)

    def test_p_full_recovery_rolls_back_and_leaves_every_other_pod_alone(
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
