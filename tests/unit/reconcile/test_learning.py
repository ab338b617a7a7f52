"""Measurements of a job: each save and each failure once, across leaders and restarts of the operator."""

from dataclasses import replace
from typing import Any

import pytest

from cpr_contract.reports import TrainerReport, TrainerState
from cpr_contract.roster import Counters
from cpr_operator.api.cprjob_spec import CPRJobSpec
from cpr_operator.api.status import Policy, Progress, Recovery, Shard, Status, Trainer
from cpr_operator.api.validate import parse_spec
from cpr_operator.reconcile.save_plan import (
    after_failure,
    after_recovery,
    after_replay,
    after_report,
    after_resharding,
    failure_estimate,
    plan_inputs,
)
from simulation.control_plane.workload import spec

NOW = 5000.0


@pytest.fixture
def job() -> CPRJobSpec:
    return parse_spec(spec(failurePolicy__expectedJobMtbfSeconds=100))


def report(**fields: Any) -> TrainerReport:
    """Return a report of the leader, in the middle of training at 100 samples/s."""
    base = TrainerReport(
        1,
        "job",
        0,
        1,
        Counters(1, 1, 1),
        TrainerState.TRAINING,
        step=10,
        samples=1000,
        samples_started=1100,
        total_samples=2000,
        waiting_for=(),
        silent=(),
        lost=(),
        problem=None,
        samples_per_s=100.0,
    )
    return replace(base, **fields)


def seen(job: CPRJobSpec, status: Status, *reports: TrainerReport) -> Status:
    for each in reports:
        status = after_report(job, status, each, NOW)
        status = status.model_copy(update={"progress": Progress(samples=each.samples)})
    return status


def test_first_estimate_is_the_users_and_weighs_one_failure(job: CPRJobSpec) -> None:
    estimate = failure_estimate(job, Status())
    assert (estimate.alpha, estimate.beta_s, estimate.lost_per_failure) == (1, 100, 1)


def test_first_estimate_of_lost_shards_is_the_fullest_node(job: CPRJobSpec) -> None:
    nodes = ("a", "b", "b", "b")
    shards = tuple(Shard(index=i, node=node) for i, node in enumerate(nodes))
    assert failure_estimate(job, Status(shards=shards)).lost_per_failure == 3
    alone = tuple(Shard(index=i, node="a") for i in range(4))
    assert failure_estimate(job, Status(shards=alone, trainers=(Trainer(index=0, node="a"),))).lost_per_failure == 1


def test_quiet_time_is_the_training_between_two_reports(job: CPRJobSpec) -> None:
    status = Status(progress=Progress(samples=400))
    learnt = seen(job, status, report(samples=1000), report(samples=1000), report(samples=1500)).policy
    assert (learnt.alpha, learnt.beta_seconds, learnt.updated) == (1, 100 + 6 + 5, NOW)


def test_quiet_time_includes_an_operators_absence_without_pauses(job: CPRJobSpec) -> None:
    status = Status(progress=Progress(samples=400))
    paused = report(samples=400, state=TrainerState.PAUSED)
    late = after_report(job, seen(job, status, paused), report(samples=1900), NOW + 3600)
    assert late.policy.beta_seconds == 100 + 15


def test_quiet_time_counts_repeated_training_after_a_rollback(job: CPRJobSpec) -> None:
    status = seen(job, Status(), report(samples=1000))
    sent_back = status.model_copy(update={"progress": Progress(samples=600)})
    assert seen(job, sent_back, report(samples=900)).policy.beta_seconds == 100 + 10 + 3


def test_save_is_measured_once_at_its_commit(job: CPRJobSpec) -> None:
    status = seen(job, Status(), report(saves=0, save_stall_s=0.3))
    assert status.policy.save_stall_seconds is None
    first = report(saves=1, save_stall_s=0.4, commit_s=2.0)
    status = seen(job, status, first, first, first)
    assert (status.policy.save_stall_seconds, status.policy.commit_seconds) == (0.4, 2.0)
    assert status.overhead.save_seconds == 0.4
    status = seen(job, status, report(saves=3, save_stall_s=0.4))
    assert status.policy.save_stall_seconds == pytest.approx(0.4 * 0.7**2), "a running mean"


def test_speed_is_a_running_mean_over_saves(job: CPRJobSpec) -> None:
    status = seen(job, Status(), report(samples_per_s=100.0), report(samples_per_s=900.0))
    assert status.policy.samples_per_second == 100.0
    status = seen(job, status, report(samples_per_s=200.0, saves=1))
    assert status.policy.samples_per_second == pytest.approx(130.0)


@pytest.mark.parametrize(
    "other",
    [
        {"index": 1, "saves": 3, "save_stall_s": 3.0},
        {"incarnation": 2, "saves": 3, "save_stall_s": 3.0},
        {"counters": Counters(9, 1, 2), "saves": 3, "save_stall_s": 3.0},
        {"saves": 1, "save_stall_s": 3.0},  # led before, and leads again
    ],
)
def test_counters_of_a_new_leader_begin_at_0(job: CPRJobSpec, other: dict[str, object]) -> None:
    status = seen(job, Status(), report(saves=2, save_stall_s=2.0), report(**other))
    assert status.overhead.save_seconds == 5.0


def recovering(lost: tuple[int, ...]) -> Status:
    return Status(recovery=Recovery(kind="ReplaceShards", since=NOW - 10, lost_shards=lost, load_seconds=4))


def test_recovery_counts_as_one_failure_of_all_its_lost_shards(job: CPRJobSpec) -> None:
    learnt = after_recovery(job, recovering((1, 3)), NOW).policy
    assert (learnt.alpha, learnt.beta_seconds, learnt.lost_per_failure) == (2, 100, 1.5)
    assert (learnt.load_seconds, learnt.reschedule_seconds) == (4, 6)


def test_recovery_without_a_loss_is_no_failure_and_costs_time(job: CPRJobSpec) -> None:
    status = after_recovery(job, recovering(()), NOW)
    assert (status.policy.alpha, status.policy.load_seconds) == (None, None)
    assert (status.overhead.load_seconds, status.overhead.reschedule_seconds) == (4, 6)


def test_failure_during_a_suspension_counts_without_costs(job: CPRJobSpec) -> None:
    status = after_failure(job, recovering((0,)), NOW)
    assert (status.policy.alpha, status.policy.load_seconds, status.overhead.load_seconds) == (2, None, 0)


def test_replay_ratio_is_a_running_mean(job: CPRJobSpec) -> None:
    """100 samples a second: 400 of them are 4 s of training."""
    learnt = Policy(samples_per_second=100.0)
    first = after_replay(learnt, 400, 0.4)
    assert first.replay_ratio == pytest.approx(0.1)
    assert after_replay(first, 200, 0.4).replay_ratio == pytest.approx(0.1 + 0.3 * 0.1)
    assert after_resharding(first, before=4, after=2).replay_ratio == pytest.approx(0.2)
    assert plan_inputs(job, Status(policy=first)).rho is None, "this job does not replay"


@pytest.mark.parametrize(("speed", "samples"), [(100.0, 99), (None, 400)])
def test_replay_ratio_ignores_short_replays(speed: float | None, samples: int) -> None:
    learnt = Policy(samples_per_second=speed)
    assert after_replay(learnt, samples, 0.4) == learnt


def test_measurements_survive_serialization(job: CPRJobSpec) -> None:
    status = after_recovery(job, seen(job, recovering((1,)), report(saves=2, save_stall_s=0.5)), NOW)
    assert failure_estimate(job, Status.model_validate(status.to_dict())) == failure_estimate(job, status)


def test_degraded_samples_count_once_across_leaders(job: CPRJobSpec) -> None:
    status = Status()
    for each in (
        report(),
        report(degraded_samples=300),
        report(degraded_samples=300),
        report(degraded_samples=500),
        report(index=1, degraded_samples=400),  # it leads now, and was there when the others were counted
        report(index=1, degraded_samples=450),
    ):
        status = after_report(job, status, each, NOW)
    assert status.progress.degraded_samples == 550


def test_overhead_excludes_degraded_training(job: CPRJobSpec) -> None:
    """10 s, in which 600 samples were trained at 100 a second; 50 had been trained so before."""
    recovery = Recovery(kind="ReplaceShards", since=NOW - 10, load_seconds=1, lost_shards=(0,), degraded_before=50)
    status = seen(job, Status(), report()).model_copy(
        update={"recovery": recovery, "progress": Progress(samples=1000, degraded_samples=650)}
    )
    after = after_recovery(job, status, NOW)
    assert (after.overhead.load_seconds, after.overhead.reschedule_seconds) == (1, 3)
    assert after.policy.reschedule_seconds == 3
