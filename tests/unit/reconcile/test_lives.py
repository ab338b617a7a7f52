"""Processes of members that ended and went on in their pods, as reports tell it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpr_contract.reports import ShardReport, TrainerReport
from cpr_operator.api.status import Status
from cpr_operator.reconcile.pass_ import Outcome, PassInput
from cpr_operator.reconcile.pipeline import reconcile
from support.driver import world_in_mid_training


async def told(*lives: int, by: str = "leader", **changes: int) -> PassInput:
    """A job whose leader, or whose shards, tell these lives. changes: of the counters that the leader reports."""
    world = await world_in_mid_training(1)
    return again(world, world.job.status, *lives, by=by, **changes)


def again(world: PassInput, status: Status, *lives: int, by: str = "leader", **changes: int) -> PassInput:
    """The next pass, five seconds later."""
    reports = dict(world.reports)
    for uid, report in world.reports.items():
        if isinstance(report, TrainerReport) and by == "leader":
            counters = replace(report.counters, roster=status.counters.roster, **changes)
            reports[uid] = replace(report, counters=counters, shard_lives=lives)
        if isinstance(report, ShardReport) and by == "shards":
            reports[uid] = replace(report, lives=lives[report.index])
        if isinstance(report, TrainerReport) and by == "trainers":
            reports[uid] = replace(report, lives=lives[report.index])
    return replace(world, job=replace(world.job, status=status), reports=reports, now=world.now + 5)


def in_place(outcome: Outcome) -> list[tuple[str, int, int, int, bool]]:
    status = outcome.status
    assert status is not None
    return [(f.tier, f.index, f.incarnation, f.life, f.counted) for f in status.failures]


@pytest.mark.parametrize("by", ["leader", "shards"])
async def test_a_life_that_ended_is_an_event_and_a_failure_and_nothing_else(by: str) -> None:
    world = await told(1, 2, 1, by=by)
    outcome = reconcile(world)
    assert in_place(outcome) == [("InPlace", 1, 1, 1, True)]
    (event,) = [each for each in outcome.events if each.reason == "RestartedInPlace"]
    assert "shard/1" in event.message
    status = outcome.status
    assert status is not None
    (failure,) = status.failures
    assert (failure.action, failure.lost_samples, failure.lost_row_updates) == ("RestartInPlace", 0, 0)
    assert (status.recovery, status.restarts, status.phase) == (None, 0, "Running")
    assert [shard.reserved for shard in status.shards] == [(), (), ()]
    assert (outcome.creates, outcome.deletes) == ((), ())
    assert status.restart_times == (world.now,)


async def test_a_life_of_a_trainer_that_ended_is_an_event_and_a_failure_and_nothing_else() -> None:
    world = await told(3, by="trainers")
    outcome = reconcile(world)
    status = outcome.status
    assert status is not None
    assert [(f.role, f.tier, f.life, f.action, f.lost_samples) for f in status.failures] == [
        ("trainer", "InPlace", 1, "RestartInPlace", 0),
        ("trainer", "InPlace", 2, "RestartInPlace", 0),
    ]
    assert ["trainer/0" in e.message for e in outcome.events if e.reason == "RestartedInPlace"] == [True, True]
    assert (status.recovery, status.restarts, status.phase, status.trainers[0].lives) == (None, 0, "Running", 3)
    assert (outcome.creates, outcome.deletes) == ((), ())
    later = reconcile(again(world, status, 3, by="trainers")).status
    assert later is None or later.failures == status.failures


async def test_a_life_is_recorded_once_and_each_one_is() -> None:
    world = await told(1, 2, 1)
    first = reconcile(world).status
    assert first is not None
    assert in_place(reconcile(again(world, first, 1, 2, 1))) == [("InPlace", 1, 1, 1, True)]
    later = in_place(reconcile(again(world, first, 1, 4, 1)))
    assert [(life, counted) for _, _, _, life, counted in later] == [(1, True), (2, True), (3, True)]


async def test_a_leader_that_follows_another_roster_is_not_believed() -> None:
    world = await told(1, 2, 1)
    (uid,) = [uid for uid, report in world.reports.items() if isinstance(report, TrainerReport)]
    report = world.reports[uid]
    stale = replace(report, counters=replace(report.counters, roster=report.counters.roster - 1))
    assert in_place(reconcile(replace(world, reports={**world.reports, uid: stale}))) == []


async def test_a_shard_that_goes_on_too_often_ends_the_job() -> None:
    world = await told(1, 2, 1)
    limit = world.job.spec.failure_policy.restart_limit
    times = tuple(world.now - 1 for _ in range(limit.count))
    world = replace(world, job=replace(world.job, status=world.job.status.evolve(restart_times=times)))
    status = reconcile(world).status
    assert status is not None
    assert status.phase == "Failed"
    assert any(c.reason == "RestartLimitReached" for c in status.conditions)
