"""Processes of members that restarted in place, by reports and kubelets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cpr_contract.reports import ShardReport, TrainerReport
from cpr_operator.api.status import Recovery, Status
from cpr_operator.cluster.views import ContainerView
from cpr_operator.reconcile import second_round
from cpr_operator.reconcile.pipeline import reconcile
from cpr_operator.reconcile.types import Outcome, ReconcileInput
from simulation.control_plane.run import input_in_mid_training
from support.reconcile_inputs import with_pod, with_report, without_reports


async def with_process_counts(*counts: int, by: str = "shards") -> ReconcileInput:
    """Return a job with these counts of processes in the reports of shards, trainers or the leader."""
    observed = await input_in_mid_training(1)
    return again(observed, observed.job.status, *counts, by=by)


def again(observed: ReconcileInput, status: Status, *counts: int, by: str = "shards") -> ReconcileInput:
    """The next pass, five seconds later."""
    reports = dict(observed.reports)
    for uid, report in observed.reports.items():
        if isinstance(report, TrainerReport) and by in ("leader", "shards"):
            counters = replace(report.counters, roster=status.counters.roster)
            reports[uid] = replace(report, counters=counters, shard_lives=counts)
        if isinstance(report, ShardReport) and by == "shards" and counts:
            reports[uid] = replace(report, lives=counts[report.index])
        if isinstance(report, TrainerReport) and by == "trainers":
            reports[uid] = replace(report, lives=counts[report.index])
    return replace(observed, job=replace(observed.job, status=status), reports=reports, now=observed.now + 5)


def in_place(outcome: Outcome) -> list[tuple[str, int, int, int, bool]]:
    return [(f.tier, f.index, f.incarnation, f.process, f.counted) for f in outcome.status.failures]


async def test_restart_of_a_shard_is_an_event_and_a_failure_only() -> None:
    observed = await with_process_counts(1, 2, 1)
    outcome = reconcile(observed)
    assert in_place(outcome) == [("InPlace", 1, 1, 1, True)]
    (event,) = [each for each in outcome.events if each.reason == "RestartedInPlace"]
    assert "shard/1" in event.message
    status = outcome.status
    (failure,) = status.failures
    assert (failure.action, failure.lost_samples, failure.lost_row_updates) == ("RestartInPlace", 0, 0)
    assert failure.recovery_seconds is None, "no report has it yet"
    assert (status.recovery, status.restarts, status.phase) == (None, 0, "Running")
    assert [shard.reserved for shard in status.shards] == [(), (), ()]
    assert (outcome.creates, outcome.deletes) == ((), ())
    assert status.restart_times == (observed.now,)


async def test_restart_of_a_trainer_is_an_event_and_a_failure_only() -> None:
    observed = await with_process_counts(3, by="trainers")
    outcome = reconcile(observed)
    status = outcome.status
    assert [(f.role, f.tier, f.process, f.action, f.lost_samples) for f in status.failures] == [
        ("trainer", "InPlace", 1, "RestartInPlace", 0),
        ("trainer", "InPlace", 2, "RestartInPlace", 0),
    ]
    assert ["trainer/0" in e.message for e in outcome.events if e.reason == "RestartedInPlace"] == [True, True]
    assert (status.recovery, status.restarts, status.phase, status.trainers[0].processes) == (None, 0, "Running", 3)
    assert (outcome.creates, outcome.deletes) == ((), ())
    later = reconcile(again(observed, status, 3, by="trainers")).status
    assert later.failures == status.failures


async def test_restart_is_recorded_once() -> None:
    observed = await with_process_counts(1, 2, 1)
    first = reconcile(observed).status
    assert in_place(reconcile(again(observed, first, 1, 2, 1))) == [("InPlace", 1, 1, 1, True)]
    later = in_place(reconcile(again(observed, first, 1, 4, 1)))
    assert [(process, counted) for _, _, _, process, counted in later] == [(1, True), (2, True), (3, True)]


async def test_restart_in_the_leaders_report_polls_the_shard() -> None:
    observed = await with_process_counts(1, 2, 1, by="leader")
    assert observed.job.status.shards[1].pod in {pod.name for pod in second_round(observed)}
    assert in_place(reconcile(observed)) == []


@pytest.mark.parametrize("counts", [(1, 2, 1), (1, 3, 1)], ids=["one", "two in one pass"])
async def test_restarts_in_place_beyond_the_limit_fail_the_job(counts: tuple[int, ...]) -> None:
    observed = await with_process_counts(*counts)
    limit = observed.job.spec.failure_policy.restart_limit
    times = tuple(observed.now - 1 for _ in range(limit.count))
    observed = replace(observed, job=replace(observed.job, status=observed.job.status.evolve(restart_times=times)))
    status = reconcile(observed).status
    assert status.phase == "Failed"
    (condition,) = [c for c in status.conditions if c.reason == "RestartLimitReached"]
    assert f"the last: Crashed: the process ended and restarted in place with all rows: process {counts[1]}" in (
        condition.message
    )


def timed(observed: ReconcileInput, **in_place: tuple[tuple[int, float], ...]) -> ReconcileInput:
    """Return the input with the durations of restarts in reports, by member, such as shard_1."""
    members = {m.uid: m.name for m in observed.job.status.members}
    durations = {name.replace("_", "/"): times for name, times in in_place.items()}
    reports = {
        uid: replace(report, in_place_s=durations.get(members[uid], ())) if uid in members else report
        for uid, report in observed.reports.items()
    }
    return replace(observed, reports=reports)


async def test_restart_has_the_duration_in_the_pods_report() -> None:
    observed = timed(await with_process_counts(3, by="trainers"), trainer_0=((1, 0.25), (2, 1.5)))
    outcome = reconcile(observed)
    status = outcome.status
    assert [f.recovery_seconds for f in status.failures] == [0.25, 1.5]
    assert [e.message.partition("in place ")[2] for e in outcome.events if e.reason == "RestartedInPlace"] == [
        "after the last complete step within 0.25 s: process 2",
        "after the last complete step within 1.50 s: process 3",
    ]


async def test_restart_duration_of_a_later_report_is_set_once() -> None:
    observed = await with_process_counts(1, 2, 1)
    first = reconcile(observed).status
    assert [f.recovery_seconds for f in first.failures] == [None]
    over = first.evolve(recovery=Recovery(kind="ReplaceShards", since=observed.now - 60))
    finished = reconcile(again(observed, over, 1, 2, 1)).status
    assert finished.recovery is None
    assert [f.recovery_seconds for f in finished.failures] == [None]
    later = reconcile(timed(again(observed, finished, 1, 2, 1), shard_1=((1, 0.125),))).status
    assert [f.recovery_seconds for f in later.failures] == [0.125]
    last = timed(again(observed, later, 1, 2, 1), shard_1=((1, 9.0),))
    assert [f.recovery_seconds for f in reconcile(last).status.failures] == [0.125]


@pytest.mark.parametrize("nonsense", [-1.0, float("nan"), float("inf")])
async def test_restart_duration_that_is_invalid_is_ignored(nonsense: float) -> None:
    status = reconcile(timed(await with_process_counts(1, 2, 1), shard_1=((1, nonsense),))).status
    assert [f.recovery_seconds for f in status.failures] == [None]


async def test_restarted_members_are_polled_until_they_report_the_duration() -> None:
    calm, observed = await with_process_counts(1, 1, 1), await with_process_counts(1, 2, 1)
    polled = {pod.name for pod in second_round(calm)}
    victim = observed.job.status.shards[1].pod
    assert victim not in polled
    assert {pod.name for pod in second_round(observed)} == {*polled, victim}
    first = reconcile(observed).status
    assert {pod.name for pod in second_round(again(observed, first, 1, 2, 1))} == {*polled, victim}
    later = reconcile(timed(again(observed, first, 1, 2, 1), shard_1=((1, 0.125),))).status
    assert {pod.name for pod in second_round(again(observed, later, 1, 2, 1))} == polled


def with_restarts(observed: ReconcileInput, index: int, restarts: int, **changes: Any) -> ReconcileInput:
    """Return the input with `restarts` of a shard's container, the last one after it ran out of memory."""
    end = ContainerView("Terminated", "OOMKilled", "", 137)
    return with_pod(observed, f"shard/{index}", restarts=restarts, last_end=end, **changes)


def with_container_ends(observed: ReconcileInput, index: int) -> ReconcileInput:
    """Return the input with a shard's report that one of its processes ended with its container."""
    return with_report(observed, f"shard/{index}", restarts=1)


@pytest.mark.parametrize("reported_counts", [(), (1, 2, 1)])
async def test_container_restart_counts_with_and_without_the_shards_report(
    reported_counts: tuple[int, ...],
) -> None:
    observed = await with_process_counts(*reported_counts)
    observed = with_container_ends(observed, 1) if reported_counts else without_reports(observed, "shard/1")
    outcome = reconcile(with_restarts(observed, 1, 1))
    status = outcome.status
    assert in_place(outcome) == [("InPlace", 1, 1, 1, True)]
    (failure,) = status.failures
    assert (failure.kind, failure.exit_code, failure.reason) == ("OOMKilled", 137, "OOMKilled")
    assert "process 2" in failure.message
    assert (status.shards[1].processes, status.shards[1].restarts) == (2, 1)
    assert status.restart_times == (observed.now,)
    assert (outcome.creates, outcome.deletes, status.recovery) == ((), (), None)
    assert [event.reason for event in outcome.events if event.reason == "RestartedInPlace"] == ["RestartedInPlace"]
    later = with_container_ends(again(await with_process_counts(), status, 1, 2, 1), 1)
    again_reported = reconcile(with_restarts(later, 1, 1)).status
    assert again_reported.failures == status.failures, "it is recorded once"


Ends = list[tuple[int, str]]


def ends(observed: ReconcileInput, restarts: int) -> tuple[Status, Ends]:
    """Return the status after the kubelet has counted `restarts`, and the ends of processes in it."""
    status = reconcile(with_restarts(observed, 1, restarts)).status
    return status, [(f.process, str(f.kind)) for f in status.failures]


@pytest.mark.parametrize(
    ("counts", "first", "later_count", "last"),
    [
        pytest.param(2, [], None, [(1, "OOMKilled")], id="its container"),
        pytest.param(3, [(1, "Crashed")], None, [(1, "Crashed"), (2, "OOMKilled")], id="a server before its container"),
        pytest.param(2, [], 3, [(1, "OOMKilled"), (2, "Crashed")], id="a server after its container"),
    ],
)
async def test_container_restart_that_the_shard_reports_first_counts_once(
    counts: int, first: Ends, later_count: int | None, last: Ends
) -> None:
    """Only the kubelet has the exit code and the reason."""
    observed = with_container_ends(await with_process_counts(1, counts, 1), 1)
    status, found = ends(observed, 0)
    assert found == first
    status, found = ends(with_container_ends(again(observed, status, 1, counts, 1), 1), 1)
    if later_count is not None:
        status, found = ends(with_container_ends(again(observed, status, 1, later_count, 1), 1), 1)
    assert found == last


async def test_container_restarts_and_process_restarts_are_distinguished() -> None:
    _, found = ends(with_container_ends(await with_process_counts(1, 4, 1), 1), 1)
    assert found == [(1, "Crashed"), (2, "Crashed"), (3, "OOMKilled")]


async def test_restarting_container_is_awaited() -> None:
    observed = await with_process_counts()
    ended = ContainerView("Restarting", "OOMKilled", "", 137)
    outcome = reconcile(with_restarts(observed, 1, 0, container=ended))
    assert in_place(outcome) == []
    assert (outcome.creates, outcome.deletes) == ((), ())


async def test_shard_that_ends_after_a_restart_is_replaced_and_both_ends_count() -> None:
    observed = with_container_ends(await with_process_counts(1, 2, 1), 1)
    status = reconcile(with_restarts(observed, 1, 1)).status
    ended = ContainerView("Terminated", "OOMKilled", "", 137)
    later = with_container_ends(replace(again(observed, status, 1, 2, 1), now=observed.now + 60), 1)
    outcome = reconcile(with_restarts(later, 1, 1, container=ended))
    assert [(f.tier, f.process, f.counted) for f in outcome.status.failures] == [
        ("InPlace", 1, True),
        ("NewPod", 0, True),
    ]
    assert outcome.status.shards[1].incarnation == 2
    assert (outcome.status.shards[1].restarts, outcome.status.shards[1].processes) == (0, 0)
    assert len(outcome.status.restart_times) == 2


async def test_container_without_the_memory_of_the_last_one_is_replaced() -> None:
    """An image of an older release begins with nothing, as if it were the first process of its incarnation."""
    observed = await with_process_counts(1, 1, 1)
    outcome = reconcile(with_restarts(observed, 1, 1))
    assert outcome.status.shards[1].incarnation == 2
    assert outcome.status.failures[-1].reason == "MemoryLost"
