from dataclasses import replace
from typing import Any, Literal

import pytest

from cpr_contract.reports import SPILL_UNAVAILABLE, TrainerReport, TrainerState
from cpr_contract.roster import Counters
from cpr_operator.api.status import Ledger, Plan, Progress, Recovery, Shard, Status, Trainer
from cpr_operator.reconcile.conditions import ConditionUpdate, budget, recovering, replay_memory, spill, with_conditions
from cpr_operator.recovery.account import account_of, with_account


def test_condition_has_one_entry_and_its_transition_time_follows_the_status() -> None:
    first = with_conditions(Status(), 1, 100.0, ConditionUpdate("PodsReady", "False", "Waiting", "for shard/1"))
    same = with_conditions(first, 2, 200.0, ConditionUpdate("PodsReady", "False", "CreateRefused", "quota"))
    (condition,) = same.conditions
    assert (condition.last_transition_time, condition.reason, condition.observed_generation) == (
        100.0,
        "CreateRefused",
        2,
    )
    updates = (ConditionUpdate("PodsReady", "True", "AllReady"), ConditionUpdate("Failed", "False", "A"))
    moved, other = with_conditions(same, 2, 300.0, *updates).conditions
    assert (moved.last_transition_time, other.type) == (300.0, "Failed")


def test_replay_memory_short_stands_until_a_save_is_as_planned() -> None:
    status = Status(plan=Plan(mode="Partial", interval_seconds=600, reason="r"))
    report = TrainerReport(
        contract=1, job_uid="", index=0, incarnation=1, counters=Counters(1, 1, 1), state=TrainerState.TRAINING,
        step=1, samples=1, samples_started=1, total_samples=9, waiting_for=(), silent=(), lost=(), problem=None,
        saves=2,
    )  # fmt: skip
    assert list(replay_memory(status, report)) == list(replay_memory(status, None)) == []
    (short,) = replay_memory(status, replace(report, early_save_s=0.4))
    assert (short.status, short.reason) == ("True", "MemoryFull")
    assert "full 0.4 s after a save, so saves are made before the planned 10 min are over" in short.message
    before = with_conditions(status, 1, 1.0, short)
    assert list(replay_memory(before, None)) == [], "nothing is known"
    (planned,) = replay_memory(before, report)
    assert (planned.status, planned.reason) == ("False", "Planned")


def test_spill_unavailable_stands_until_all_trainers_have_disk_space() -> None:
    def found(status: Status) -> list[tuple[str, str]]:
        return [(finding.status, finding.reason) for finding in spill(status)]

    well = Status(trainers=tuple(Trainer(index=i, state="Training") for i in range(2)))
    assert found(well) == []
    without = well.evolve(trainers=(well.trainers[0], well.trainers[1].evolve(problem=SPILL_UNAVAILABLE)))
    (finding,) = spill(without)
    assert (finding.status, finding.reason) == ("True", "DiskFull")
    assert finding.message.startswith("trainer/1: the disk has no room for spec.recovery.replay.spill")
    before = with_conditions(without, 1, 1.0, finding)
    starting = before.evolve(trainers=(well.trainers[0], well.trainers[1].evolve(state="Starting")))
    assert found(starting) == [], "it may report it later"
    assert found(before.evolve(trainers=well.trainers)) == [("False", "Allocated")]


def conditions_of(
    *, spent: int = 0, reserved: int = 0, limit: int = 2000, plan: Plan | None = None, unsaved: int = 0
) -> dict[str, tuple[str, str]]:
    """The budget's conditions of a job of 10 000 samples on two shards, with a limit of 2000 sample-shards."""
    status = Status(
        shards=(Shard(index=0, reserved=((5000, 5000 + reserved),)), Shard(index=1)),
        ledger=Ledger(total_samples=10_000, limit_sample_shards=limit, ranges=(((0, spent),), ())),
        plan=plan,
        progress=Progress(samples=unsaved),
    )
    return {
        finding.type: (finding.status, finding.reason) for finding in budget(with_account(status, account_of(status)))
    }


def plan(interval_s: float = 5, mode: Literal["Partial", "Full"] = "Partial", **inputs: float) -> Plan:
    """A plan for 100 samples a second and commits of 2 s."""
    inputs = {"samplesPerSecond": 100.0, "commitSeconds": 2.0} | inputs
    return Plan(mode=mode, interval_seconds=interval_s, inputs=inputs)


TWO_LOST = plan(lostPerFailure=2.0)  # 7 s of 100 samples on two shards
AT_RISK: list[tuple[dict[str, Any], str]] = [
    ({"spent": 1499}, "Enough"),
    ({"spent": 1000, "reserved": 500}, "AlmostSpent"),  # from three quarters on
    ({"spent": 600, "plan": TWO_LOST}, "Enough"),
    ({"spent": 650, "plan": TWO_LOST}, "NextMayNotFit"),
    ({"spent": 650, "plan": plan(mode="Full", lostPerFailure=2.0)}, "Enough"),
    ({"unsaved": 1000, "plan": TWO_LOST}, "Enough"),
    ({"unsaved": 1001, "plan": TWO_LOST}, "SavesOverdue"),
    ({"unsaved": 1001, "plan": plan(mode="Full", lostPerFailure=2.0)}, "Enough"),
    ({"limit": 10_000, "plan": plan(3600, lostPerFailure=1.0)}, "Enough"),  # a failure takes at most the whole job
    ({"limit": 9_000, "plan": plan(3600, lostPerFailure=1.0)}, "NextMayNotFit"),
    ({"limit": 0}, "Enough"),  # it never had a budget
]
EXHAUSTED: list[tuple[dict[str, Any], str]] = [
    ({"spent": 1999}, "Enough"),
    ({"spent": 2000}, "NothingFits"),
    ({"spent": 1800, "plan": plan(mode="Full")}, "Enough"),
    ({"spent": 1801, "plan": plan(mode="Full")}, "NothingFits"),
    ({"limit": 0}, "Enough"),
]


@pytest.mark.parametrize(
    ("condition", "changes", "reason"),
    [("BudgetAtRisk", *each) for each in AT_RISK] + [("BudgetExhausted", *each) for each in EXHAUSTED],
)
def test_budget_is_at_risk_or_exhausted(condition: str, changes: dict[str, Any], reason: str) -> None:
    assert conditions_of(**changes)[condition] == ("False" if reason == "Enough" else "True", reason)


def test_budget_at_risk_ignores_losses_of_lost_shards() -> None:
    plan = Plan(mode="Partial", interval_seconds=5, inputs={"lostPerFailure": 1.0})
    saved = Shard(index=1, saved_samples=4000)
    for lost_at, risk in ((None, "SavesOverdue"), (1.0, "Enough")):
        status = Status(
            shards=(Shard(index=0, lost_at=lost_at), saved),
            ledger=Ledger(total_samples=10_000, limit_sample_shards=2000),
            plan=plan,
            progress=Progress(samples=5000),
        )
        found = {finding.type: finding.reason for finding in budget(with_account(status, account_of(status)))}
        assert found["BudgetAtRisk"] == risk


def test_recovering_names_the_allowance_without_lost_shards() -> None:
    def said(*shards: Shard) -> str:
        recovery = Recovery(kind="ReplaceShards", since=1.0, reason="why")
        return recovering(Status(shards=shards, recovery=recovery, progress=Progress(samples=500)), {}).message

    there, lost = Shard(index=0), Shard(index=1, lost_at=1.0, allowance=800)
    assert said(there, lost) == "why; training continues up to sample 800"
    assert (
        said(lost.model_copy(update={"index": 0, "allowance": 700}), lost) == "why; training continues up to sample 700"
    )
    assert said(there.model_copy(update={"lost_at": 1.0}), lost) == "why", "training waits for the other one"
    assert said(there, lost.model_copy(update={"allowance": 500})) == "why", "it is used up"
