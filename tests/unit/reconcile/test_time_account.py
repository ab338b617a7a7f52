"""The activity that the time of a job is attributed to, by its status, its spec and its queue."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cpr_operator.api.data_spec import Follow
from cpr_operator.api.goodput_status import Activity
from cpr_operator.api.status import PinnedData, Status
from cpr_operator.desired.workload import Place
from cpr_operator.reconcile.kueue import Queue
from cpr_operator.reconcile.time_account import activity_of
from cpr_operator.reconcile.types import ReconcileInput, ReconcileState
from simulation.control_plane.run import input_in_mid_training
from simulation.control_plane.workload import BATCH
from support.reconcile_inputs import with_spec


def activity(observed: ReconcileInput, **changes: Any) -> Activity | None:
    status: Status = observed.job.status.model_copy(update=changes)
    return activity_of(ReconcileState(observed, status), status)


def suspending(observed: ReconcileInput) -> ReconcileInput:
    return replace(observed, job=replace(observed.job, spec=observed.job.spec.model_copy(update={"suspend": True})))


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        ("Pending", "Queued"),
        ("Starting", "Starting"),
        ("Running", "Training"),
        ("Recovering", "Recovering"),
        ("RollingBack", "Recovering"),
        ("Suspending", "Suspended"),
        ("Suspended", "Suspended"),
        ("Finishing", "Finishing"),
        ("Succeeded", None),
        ("Failed", None),
    ],
)
async def test_phase_has_an_activity(phase: str, expected: Activity | None) -> None:
    assert activity(await input_in_mid_training(1), phase=phase) == expected


@pytest.mark.parametrize("phase", ["Suspending", "Suspended"])
async def test_job_without_pods_is_queued_unless_its_user_suspends_it(phase: str) -> None:
    observed = await input_in_mid_training(1)
    queued = replace(observed, queue=Queue(Place("team")))
    assert activity(queued, phase=phase) == "Queued"
    assert activity(observed, phase=phase, resume_at=observed.now + 300) == "Queued"
    for each in (suspending(queued), suspending(observed)):
        assert activity(each, phase=phase) == "Suspended"


async def test_running_job_starts_until_its_first_sample_and_recovers_while_its_leader_is_paused() -> None:
    observed = await input_in_mid_training(1)
    (leader,), progress = observed.job.status.trainers, observed.job.status.progress
    assert activity(observed, progress=progress.evolve(samples=0)) == "Starting"
    assert activity(observed, trainers=(leader.evolve(state="Paused"),)) == "Recovering"


@pytest.mark.parametrize(
    ("follow", "lag", "ended", "expected"),
    [
        (Follow(), 0, False, "WaitingForData"),
        (Follow(), 1, False, "Training"),
        (Follow(), 0, True, "Training"),
        (Follow(idle="Finish"), BATCH, False, "WaitingForData"),
        (Follow(idle="Finish"), BATCH + 1, False, "Training"),
        (None, 0, False, "Training"),
    ],
)
async def test_job_waits_for_data_once_it_has_trained_all_but_a_batch_that_may_end_it(
    follow: Follow | None, lag: int, *, ended: bool, expected: Activity
) -> None:
    observed = with_spec(await input_in_mid_training(1), "data", follow=follow)
    data = PinnedData(pins=1, pinned_samples=1000, void_samples=0, lag_samples=lag, ended=ended)
    assert activity(observed, data=data) == expected
