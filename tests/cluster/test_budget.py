"""The accuracy budget on the real cluster: shards are lost again and again, and plan, conditions and account follow.

Nothing here hangs on the speed of the machine: intervals are compared with each other, losses with what was trained.
"""

import json
import statistics
from itertools import pairwise
from typing import Any

import pytest

from cluster.harness import Cluster, Space, until
from cluster.harness.space import condition
from cluster.jobs import NO_SAVES, SHARDS, SOME_EPOCHS, Run, account, failures, ledger, pod_template, same_auc, verify

pytestmark = [pytest.mark.realdata, pytest.mark.usefixtures("clicks"), pytest.mark.timeout(240, func_only=True)]


def lose(cluster: Cluster, run: Run, shard: int) -> dict[str, Any]:
    """Delete a shard whose process gets no moment to save anything; return the status once training goes on."""
    before, pod = len(failures(run.status())), run.pod("shard", shard)
    cluster.nodes.signal(pod, "KILL")
    run.space.delete_pod(pod.name, force=True)
    return run.wait(
        f"is over the loss of shard {shard}",
        lambda status: len(failures(status)) > before and status.get("recovery") is None,
    )


def interval_of_rosters(run: Run) -> float:
    """The interval that the leader was told last."""
    return float(json.loads(run.pod("trainer", run.leader()).roster)["interval_s"])


def cuts(cluster: Cluster, status: dict[str, Any], shard: int) -> dict[int, float]:
    """The steps of all cuts that a shard saved, in the order of training, and when each was committed."""
    folder = status["result"]["key"].partition("/gen-")[0]
    written = cluster.store.written(f"{folder}/gen-0001/shard-{shard:04d}/")
    saves = {key.split("/")[-2]: at for key, at in written.items() if key.endswith("manifest.json")}
    return dict(sorted((int(s), at) for save, at in saves.items() if (s := save.removeprefix("step-")).isdigit()))


def action(status: dict[str, Any]) -> str:
    """What was done about the newest failure."""
    return str(status["failures"][-1]["action"])


class TestThePlan:
    def test_m_the_interval_follows_the_failures_and_the_cuts_follow_the_interval(
        self, cluster: Cluster, space: Space
    ) -> None:
        run = Run.start(
            space,
            "learning",
            accuracyBudget={"portionOfLostSamples": 0.25},
            data__epochs=4,  # so long that several cuts follow the failures
            recovery={"mode": "Partial"},
            shards__template=pod_template(apart="shard"),  # so that a failure is believed to take one of them
            snapshots__interval={"mode": "Auto"},
            snapshots__keep=100,
            failurePolicy={"expectedJobMtbfSeconds": 60},
        )
        before = run.wait("knows its speed", lambda status: status["plan"]["inputs"]["samplesPerSecond"] > 0)["plan"]
        assert before["inputs"]["lostPerFailure"] == 1
        lost = (1, 2, 1)  # one right after the other: a slow machine, too, has them within the time expected for one
        for shard in lost[:-1]:
            lose(cluster, run, shard)
        report = run.told("trainer", run.leader())
        status = lose(cluster, run, lost[-1])
        after = status["plan"]
        assert (status["policy"]["alpha"], status["policy"]["lostPerFailure"]) == (1 + len(lost), 1)
        assert after["intervalSeconds"] < 0.75 * before["intervalSeconds"]  # an interval that hardly moves stays
        until("the leader is told", lambda: interval_of_rosters(run) == run.status()["plan"]["intervalSeconds"], 30)
        told = {message.partition(":")[0] for message in space.told("learning", "Planned")}
        assert before["reason"].partition(":")[0] in told
        assert len(told) > 1, "a new interval is told; the plan in force may have taken newer figures since"
        status = run.finish()
        verify(run, status, replaced={("shard", 1), ("shard", 2)})
        assert [failure["action"] for failure in status["failures"]] == ["ReplaceShards"] * len(lost)
        assert ledger(status) == account(cluster.store, status)
        # A shard that nobody touched goes on cutting by what the leader was told; the last cut is the model.
        late = [at for cut, at in list(cuts(cluster, status, shard=0).items())[:-1] if cut >= report["step"]]
        assert len(late) > 1, f"no two cuts after step {report['step']}: {late}"
        # No cut comes sooner than the interval in force: by the former one they would lie further apart.
        apart = statistics.median(later - earlier for earlier, later in pairwise(late))
        assert apart < before["intervalSeconds"], (late, before["intervalSeconds"], after["intervalSeconds"])


class TestTheLimit:
    def test_n_a_budget_at_risk_says_so_pays_once_and_then_rolls_back(
        self, cluster: Cluster, space: Space, long_calm: dict[str, Any]
    ) -> None:
        assert condition({"status": long_calm}, "BudgetAtRisk")["status"] == "False"
        run = Run.start(
            space,
            "at-risk",
            # A lost shard costs a third of the samples trained so far, so one loss fits whenever it comes. The second
            # one does not: the losses come after 50 % and 55 % of the training, and 1.05 / 3 exceeds the limit.
            accuracyBudget={"portionOfLostSamples": 0.33},
            data__epochs=SOME_EPOCHS,  # so that it cannot end before the second loss
            recovery={"mode": "Partial"},
            snapshots__interval=NO_SAVES,
        )
        risk = space.wait_condition("at-risk", "BudgetAtRisk")
        assert risk["reason"] == "NextMayNotFit"
        assert "a larger accuracyBudget avoids that" in risk["message"]
        run.reach(0.5)
        status = lose(cluster, run, 0)
        lost = status["failures"][-1]["lostSamples"]
        assert action(status) == "ReplaceShards"
        assert status["budget"]["spent"] == pytest.approx(lost / (SHARDS * status["progress"]["totalSamples"]))
        assert 0.5 / SHARDS <= status["budget"]["spent"] <= status["budget"]["limit"]
        run.reach(0.55)
        status = lose(cluster, run, 1)  # all that was trained once more, on another shard
        assert action(status) == "RollBack"
        assert (status["budget"]["rollbacks"], status["counters"]["generation"]) == (1, 2)
        assert status["budget"]["spent"] == 0, "the rollback took back what it undid"
        assert status["budget"]["runningSum"] > 0, "the paper's sum forgets nothing"
        status = run.finish()
        verify(run, status, replaced={("shard", 0), ("shard", 1)})
        assert not any(account(cluster.store, status).values())
        assert same_auc(status, long_calm)

    def test_o_an_exhausted_budget_says_so_and_every_loss_rolls_back(
        self, cluster: Cluster, space: Space, calm: dict[str, Any]
    ) -> None:
        assert condition({"status": calm}, "BudgetExhausted")["status"] == "False"
        # Less than a batch may be lost, and no failure takes less. One epoch can end before the job is struck again.
        nothing = {"portionOfLostSamples": 0.00001}
        run = Run.start(space, "tiny", data__epochs=4, accuracyBudget=nothing, recovery={"mode": "Partial"})
        exhausted = space.wait_condition("tiny", "BudgetExhausted")
        assert exhausted["reason"] == "NothingFits"
        assert "roll the job back" in exhausted["message"]
        assert exhausted["message"] in space.told("tiny", "BudgetExhausted")
        for number, shard in enumerate((2, 0), start=1):
            run.reach(0.2 * number)
            status = lose(cluster, run, shard)
            assert action(status) == "RollBack"
            assert (status["budget"]["rollbacks"], status["budget"]["spent"]) == (number, 0)
        status = run.finish()
        verify(run, status, replaced={("shard", 2), ("shard", 0)})
        assert not any(account(cluster.store, status).values())
