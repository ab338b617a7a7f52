"""Ends of jobs that lose members, with the real controller on a simulated cluster."""

from fractions import Fraction
from itertools import pairwise

import pytest

from cpr_operator.api.status import Status
from cpr_operator.reconcile.phases import TRANSITIONS
from simulation.control_plane.checker import missing_portion
from simulation.control_plane.run import RunResult, Simulation
from simulation.control_plane.scenarios import SCENARIOS
from simulation.control_plane.workload import BATCH, Scenario

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
FINISHED: dict[str, RunResult] = {}


async def live(name: str) -> RunResult:
    """The scenario's end. It runs once."""
    if name not in FINISHED:
        FINISHED[name] = await Simulation(BY_NAME[name]).run()
    return FINISHED[name]


def lost(finished: RunResult) -> tuple[int, ...]:
    return tuple(sum(end - first for first, end in ranges) for ranges in finished.status.ledger.ranges)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
async def test_every_scenario_ends_as_expected_by_documented_steps(scenario: Scenario) -> None:
    finished = await live(scenario.name)
    assert finished.status.phase == scenario.phase
    if scenario.phase == "Succeeded":
        assert finished.status.progress.auc == 1.0, "the AUC of the last step"
    steps = {(old, new) for old, new in pairwise(["Pending", *finished.phases]) if new not in {old, "Pending"}}
    fresh = {("Running", "Starting")} if scenario.name == "deleted and applied again" else set()
    assert {(old, new) for old, new in steps if new not in TRANSITIONS[old]} <= fresh  # type: ignore[index]
    names = [name for name, _ in finished.cluster.history]
    assert len(names) == len(set(names)), "no name is used twice"


async def test_without_a_failure_nothing_is_lost_and_no_member_replaced() -> None:
    finished = await live("no failure")
    assert (lost(finished), finished.status.restarts, finished.status.counters.generation) == ((0, 0, 0), 0, 1)
    assert finished.status.result is not None
    assert finished.status.result.samples == finished.cluster.total
    assert {event.reason for event in finished.cluster.events.values() if event.type == "Warning"} == set()


async def test_a_killed_shard_goes_back_alone() -> None:
    finished = await live("a shard is killed")
    assert [s.incarnation for s in finished.status.shards] == [1, 2, 1]
    assert [t.incarnation for t in finished.status.trainers] == [1, 1]
    assert lost(finished) == (0, 100, 0)
    (failure,) = finished.status.failures
    assert (failure.role, failure.index, failure.incarnation, failure.kind) == ("shard", 1, 1, "Killed")
    assert (failure.lost_samples, failure.action, failure.counted) == (100, "ReplaceShards", True)
    assert (failure.lost_row_updates, failure.lost_row_updates_exact) == (100 / BATCH, True)
    assert [shard.lost_row_updates for shard in finished.status.shards] == [0, 100 / BATCH, 0]
    assert finished.status.lost_row_updates_exact
    assert failure.recovery_seconds is not None


async def test_a_drained_shard_loses_nothing_and_one_that_dies_again_while_it_restores_is_charged_once() -> None:
    finished = await live("a shard is drained")
    assert (lost(finished), finished.status.restart_times, finished.status.failures[0].lost_samples) == (
        (0, 0, 0),
        (),
        0,
    )
    finished = await live("a shard is killed again while it restores")
    assert (lost(finished), [f.incarnation for f in finished.status.failures]) == ((0, 100, 0), [1, 2])


async def test_a_lost_leader_is_replaced_in_a_new_group_and_another_leads() -> None:
    finished = await live("the leader is killed")
    assert (finished.status.leader, finished.status.counters.group, finished.status.counters.generation) == (1, 2, 1)
    assert lost(finished) == (0, 0, 0)


async def test_the_only_trainers_loss_is_charged_to_every_shard() -> None:
    finished = await live("the only trainer is killed")
    assert len(set(lost(finished))) == 1
    assert lost(finished)[0] > 0
    assert finished.status.failures[0].lost_samples == lost(finished)[0]


@pytest.mark.parametrize(
    "name",
    [
        "a loss does not fit",
        "the second of two losses does not fit",
        "full recovery",
        "no budget",
        "all members are killed",
    ],
)
async def test_a_rollback_takes_back_every_loss(name: str) -> None:
    finished = await live(name)
    assert (lost(finished), finished.status.counters.generation) == ((0, 0, 0), 2)
    assert finished.status.budget is not None
    assert finished.status.budget.rollbacks == 1
    assert finished.status.forks[-1].anchor is not None


async def test_an_anchor_that_is_damaged_gives_way_to_the_one_before() -> None:
    finished = await live("the newest anchor is damaged")
    first, second = (fork.anchor for fork in finished.status.forks[1:])
    assert first is not None
    assert second is not None
    assert second.samples < first.samples


async def test_a_damaged_save_is_charged_in_full() -> None:
    assert lost(await live("the newest save is damaged"))[1] == 500


async def test_the_restart_limit_ends_the_job_with_a_reason() -> None:
    finished = await live("the restart limit is reached")
    condition = next(c for c in finished.status.conditions if c.type == "Failed")
    assert (condition.status, condition.reason) == ("True", "RestartLimitReached")
    assert [f.action for f in finished.status.failures] == ["ReplaceShards", "Fail"]


async def test_permanent_failure_fails_the_job_with_the_termination_message() -> None:
    finished = await live("data that is none")
    condition = next(c for c in finished.status.conditions if c.type == "Failed")
    assert condition.reason == "BadData"
    assert "line 3" in condition.message


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("suspended and resumed", 2),
        ("resumed while it is being suspended", 2),
        ("suspended again before it trains again", 3),
        ("suspended before anything is trained", 2),
        ("suspended when it is all but trained", 2),
    ],
)
async def test_suspend_and_resume_lose_nothing(name: str, groups: int) -> None:
    finished = await live(name)
    assert (lost(finished), finished.status.counters.generation, finished.status.counters.group) == (
        (0, 0, 0),
        1,
        groups,
    )
    assert finished.status.failures == ()
    reasons = [event.reason for event in finished.cluster.events.values()]
    assert [reason for reason in reasons if reason in {"Suspending", "Suspended", "Resumed"}] == [
        "Suspending",
        "Suspended",
        "Resumed",
    ] * (groups - 1)


async def test_a_suspended_job_has_no_member_that_seems_to_run() -> None:
    finished = await live("suspended and resumed")
    suspended = [Status.model_validate(s) for s in finished.cluster.statuses if s["phase"] == "Suspended"]
    assert suspended
    assert {shard.state for status in suspended for shard in status.shards} == {"Pending"}
    assert {trainer.state for status in suspended for trainer in status.trainers} == {"Pending"}
    flushing = [Status.model_validate(s) for s in finished.cluster.statuses if s["phase"] == "Suspending"]
    assert "Training" not in {t.state for status in flushing for t in status.trainers}


@pytest.mark.parametrize("name", ["suspended while a shard hangs", "suspended while a shard's node is lost"])
async def test_member_that_does_not_stop_is_given_up_and_charged(name: str) -> None:
    finished = await live(name)
    assert lost(finished) == (0, 100, 0)
    assert finished.status.counters.generation == 1


async def test_job_with_other_shards_continues_from_its_suspension() -> None:
    finished = await live("resumed with fewer shards, then with more")
    status, plane = finished.status, finished.cluster.plane()
    assert not [kind for kind, *_ in finished.cluster.objects if kind == "PodDisruptionBudget"]
    assert [fork.anchor and fork.anchor.samples for fork in status.forks] == [None, 600, 1400]
    assert (lost(finished), status.failures, status.restarts) == ((0, 0, 0), (), 0)
    assert [shard.incarnation for shard in status.shards] == [3, 3, 3]
    assert status.budget is not None
    assert (status.budget.spent, status.budget.rollbacks) == (0, 0)
    assert status.ledger.limit_sample_shards == 60
    assert plane.spec.shards == 3
    assert missing_portion(finished) == 0
    messages = [event.message for event in finished.cluster.events.values() if event.reason == "Resumed"]
    assert messages == [
        "3 shards become 1; all members continue from the anchor of step 6",
        "1 shards become 3; all members continue from the anchor of step 14",
    ]


async def test_earlier_losses_are_charged_to_other_shards_as_a_portion() -> None:
    finished = await live("resumed with fewer shards after a loss")
    status = finished.status
    assert lost(finished) == (0, 0)
    assert status.ledger.carried_sample_shards == 67  # 100 of one of 3, as of 2 and rounded up
    assert missing_portion(finished) == Fraction(100, 3 * finished.cluster.total)
    assert status.budget is not None
    assert status.budget.spent >= missing_portion(finished)


async def test_other_shards_go_back_to_an_earlier_anchor_without_one_of_the_suspension() -> None:
    finished = await live("resumed with fewer shards after one did not save")
    status = finished.status
    assert [fork.anchor and fork.anchor.samples for fork in status.forks] == [None, 800]
    assert status.budget is not None
    assert (status.budget.spent, status.budget.rollbacks, missing_portion(finished)) == (0, 1, 0)
    (message,) = [event.message for event in finished.cluster.events.values() if event.reason == "Resumed"]
    assert message.startswith(
        "3 shards become 2; all members continue from the anchor of step 8; what was trained since then"
    )


async def test_a_shard_killed_before_its_first_save_comes_back_from_the_anchor_of_other_shards() -> None:
    finished = await live("resumed with more shards, and one is killed at once")
    assert (finished.status.counters.generation, lost(finished), missing_portion(finished)) == (2, (0, 0, 0), 0)
    assert [shard.incarnation for shard in finished.status.shards] == [2, 2, 3]


async def test_other_shards_go_back_to_an_anchor_that_was_written_before_them() -> None:
    finished = await live("resumed with fewer shards from an anchor that is damaged")
    assert [fork.anchor and fork.anchor.samples for fork in finished.status.forks] == [None, 1400, 1200]
    assert (lost(finished), missing_portion(finished)) == ((0, 0), 0)


async def test_learnt_costs_belong_to_a_number_of_shards() -> None:
    finished = await live("resumed with fewer shards")
    statuses = [Status.model_validate(document) for document in finished.cluster.statuses]
    before, after = next((a, b) for a, b in pairwise(statuses) if len(a.shards) != len(b.shards))
    assert (len(before.shards), len(after.shards)) == (3, 2)
    assert before.policy.commit_seconds is not None
    assert after.policy.commit_seconds == pytest.approx(1.5 * before.policy.commit_seconds)
    assert after.policy.alpha == before.policy.alpha
    assert after.plan is not None
    assert after.plan.inputs["shards"] == 2


async def test_unschedulable_pods_fail_the_job_with_the_schedulers_message() -> None:
    finished = await live("unschedulable for ever")
    condition = next(c for c in finished.status.conditions if c.type == "Failed")
    assert condition.reason == "StartupDeadlineExceeded"
    assert "0/3 nodes" in condition.message
    (message,) = {event.message for event in finished.cluster.events.values() if event.reason == "PodStuck"}
    remedy = "add capacity, or change resources and selectors in the pod template"
    assert message.startswith(f"shard/0: 0/3 nodes are available; {remedy} (NoGang: ")


async def test_refused_create_is_reported_and_its_number_reused() -> None:
    finished = await live("a replacement is refused for a while")
    assert finished.status.shards[1].incarnation == 2
    (message,) = {event.message for event in finished.cluster.events.values() if event.reason == "Refused"}
    assert "quota" in message
    assert "free quota, or correct the pod template" in message
    assert not [event for event in finished.cluster.events.values() if event.reason == "PodStuck"]
