"""The conditions for a new plan, and for its event."""

import logging

import pytest

from cpr_operator.api.cprjob_spec import CPRJobSpec
from cpr_operator.api.status import Counters, Ledger, Plan, Policy, Shard, Status
from cpr_operator.api.validate import parse_spec
from cpr_operator.reconcile.conditions import budget
from cpr_operator.reconcile.save_plan import plan_events, planned
from cpr_operator.recovery.account import account_of, with_account
from simulation.control_plane.failpoints import kill
from simulation.control_plane.run import Simulation
from simulation.control_plane.workload import Scenario, spec, trained

SPEC = parse_spec(
    spec(
        accuracyBudget__portionOfLostSamples=0.1,
        snapshots__interval={"mode": "Auto"},
        failurePolicy__expectedJobMtbfSeconds=36000,
    )
)
LEARNT = Policy(
    save_stall_seconds=0.5, commit_seconds=2, load_seconds=4, reschedule_seconds=6, samples_per_second=10_000
)


def status(spent: int = 0, learnt: Policy = LEARNT) -> Status:
    shards = tuple(Shard(index=i) for i in range(4))
    ledger = Ledger(
        total_samples=10**9, limit_sample_shards=4 * 10**8, ranges=(((0, spent),) if spent else (), (), (), ())
    )
    whole = Status(shards=shards, ledger=ledger, policy=learnt)
    return with_account(whole, account_of(whole))


def plan_of(job: CPRJobSpec, before: Status, *, renew: bool) -> Plan:
    plan = planned(job, before, renew=renew).plan
    assert plan is not None
    return plan


def test_plan_stays_until_a_cost_changes() -> None:
    first = planned(SPEC, status(), renew=False)
    slower = first.model_copy(update={"policy": LEARNT.model_copy(update={"samples_per_second": 9_000})})
    assert planned(SPEC, slower, renew=False).plan == first.plan
    assert planned(SPEC, slower, renew=True).plan != first.plan


def test_plan_that_hardly_differs_keeps_its_interval_with_new_inputs() -> None:
    first = planned(SPEC, status(), renew=False)
    assert first.plan is not None
    in_force = {
        "inputs": {name: 2 * value for name, value in first.plan.inputs.items()},  # all of them have moved since
        "interval_seconds": 1.01 * first.plan.interval_seconds,
        "reason": "as it was before",
    }
    held = first.model_copy(update={"plan": first.plan.model_copy(update=in_force)})
    plan = plan_of(SPEC, held, renew=False)
    assert (plan.interval_seconds, plan.reason) == (in_force["interval_seconds"], "as it was before")
    assert plan.inputs == first.plan.inputs


def test_fixed_interval_reports_an_exhausted_budget() -> None:
    fixed = parse_spec(spec(snapshots__interval={"mode": "Fixed", "seconds": 2}))
    before = status(spent=399_999_999)
    unknown = before.model_copy(update={"policy": Policy()})
    first = planned(fixed, unknown, renew=False)
    known = planned(fixed, first.model_copy(update={"policy": LEARNT}), renew=False)
    found = [{finding.type: finding.status for finding in budget(each)} for each in (first, known)]
    assert [each["BudgetExhausted"] for each in found] == ["False", "True"]
    slower = first.model_copy(update={"policy": LEARNT.model_copy(update={"save_stall_seconds": 5.0})})
    assert first.plan is not None
    assert plan_of(SPEC, slower, renew=False).interval_seconds > first.plan.interval_seconds


def test_plan_event_has_the_reason_of_a_different_plan() -> None:
    first = planned(SPEC, status(), renew=True)
    (event,) = plan_events(status(), first)
    assert first.plan is not None
    assert (event.reason, event.message) == ("Planned", first.plan.reason)
    assert plan_events(first, first) == ()
    poorer = planned(SPEC, status(spent=399_999_000), renew=True)
    assert poorer.plan is not None
    assert [each.message for each in plan_events(first, poorer)] == [poorer.plan.reason]


def test_plan_event_needs_a_different_interval() -> None:
    plan = Plan(mode="Partial", interval_seconds=100)
    for interval_s, news in ((104, 0), (94, 1)):
        after = Status(plan=plan.model_copy(update={"interval_seconds": interval_s}))
        assert len(plan_events(Status(plan=plan), after)) == news
    assert len(plan_events(Status(plan=plan), Status(plan=plan.model_copy(update={"mode": "Full"})))) == 1
    assert len(plan_events(Status(plan=plan), Status(plan=plan.model_copy(update={"stored_bits": 4})))) == 1


@pytest.mark.parametrize(
    ("mode", "strategy", "fraction", "portion"),
    [
        ("Partial", "MFU", 0.125, 0.125),
        ("Partial", "SSU", 0.5, 0.5),
        ("Partial", "Full", 0.125, 0),
        ("Full", "MFU", 0.125, 0),
    ],
)
def test_priority_interval_is_a_fraction_in_partial_mode(
    mode: str, strategy: str, fraction: float, portion: float
) -> None:
    desired = parse_spec(spec(recovery__mode=mode, snapshots__strategy=strategy, snapshots__fraction=fraction))
    plan = plan_of(desired, status(), renew=True)
    assert plan.mode == mode
    assert plan.priority_interval_seconds == portion * plan.interval_seconds


RESTORED = status().model_copy(
    update={"shards": tuple(shard.model_copy(update={"incarnation": 4}) for shard in status().shards)}
)


@pytest.mark.parametrize(
    ("quantisation", "before", "bits"),
    [
        ({}, status(), 32),
        ({"mode": "Fixed", "bits": 4}, status(), 4),
        ({"mode": "Auto"}, status(), 2),
        ({"mode": "Auto"}, RESTORED, 4),  # rows that were restored often take more bits
        ({"mode": "Auto"}, RESTORED.model_copy(update={"counters": Counters(generation=19)}), 8),
    ],
)
def test_plan_has_the_stated_bits(quantisation: dict[str, object], before: Status, bits: int) -> None:
    desired = parse_spec(spec(snapshots__quantisation=quantisation))
    assert plan_of(desired, before, renew=True).stored_bits == bits


async def test_plan_has_the_same_reason_in_status_event_and_log(caplog: pytest.LogCaptureFixture) -> None:
    job = spec(snapshots__interval={"mode": "Auto"}, failurePolicy__expectedJobMtbfSeconds=20)
    with caplog.at_level(logging.INFO, "cpr_operator"):
        run = await Simulation(
            Scenario("struck", ((trained(1200), kill("shard", 1)),), job, replaced=("shard/1",))
        ).run()
    plans = [status.plan for each in run.cluster.statuses if (status := Status.model_validate(each)).plan is not None]
    announced = [event.message for event in run.cluster.events.values() if event.reason == "Planned"]
    # At the start, when the speed is known, and after the failure.
    assert len({plan.interval_seconds for plan in plans}) >= 3
    assert len(announced) >= 3
    assert announced[0] == plans[0].reason
    assert set(announced) <= {plan.reason for plan in plans}
    logged = [message.removeprefix("job: Planned: ") for message in caplog.messages if ": Planned: " in message]
    assert logged == announced
    for plan in plans:
        assert plan.reason
        assert plan.inputs["shards"] == 3
