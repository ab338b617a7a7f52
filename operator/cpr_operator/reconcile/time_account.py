"""`status.goodput`: the activity of a job, and the observation of a pass for the account in `cpr_operator.goodput`."""

from __future__ import annotations

from cpr_operator.api.goodput_status import Activity
from cpr_operator.api.status import TERMINAL_PHASES, Phase, Status
from cpr_operator.goodput import Observation, account
from cpr_operator.reconcile.observe import takes_part
from cpr_operator.reconcile.types import ReconcileState

#: The activities of phases that have only one.
_BY_PHASE: dict[Phase, Activity] = {
    "Pending": "Queued",
    "Starting": "Starting",
    "Recovering": "Recovering",
    "RollingBack": "Recovering",
    "Finishing": "Finishing",
}


def with_goodput(state: ReconcileState, status: Status) -> Status:
    """Return the status with the time up to now attributed, if the pass changes the status anyway.

    The clock alone changes nothing: a job that is queued for days causes no writes.
    """
    before = state.before
    if status == before and before.goodput is not None:
        return status
    return status.evolve(goodput=account(before.goodput, state.now, _observation(state, status)))


def activity_of(state: ReconcileState, status: Status) -> Activity | None:
    """Return the activity of a job with this status; None once it has ended."""
    phase = status.phase
    if phase in TERMINAL_PHASES:
        return None
    if phase in {"Suspending", "Suspended"}:
        waits = status.resume_at is not None or state.observed.queue is not None
        return "Queued" if waits and not state.spec.suspend else "Suspended"
    if phase in _BY_PHASE:
        return _BY_PHASE[phase]
    if not status.progress.samples and status.counters.generation == 1:
        return "Starting"
    if status.trainers[status.leader or 0].state == "Paused":
        return "Recovering"
    return "WaitingForData" if _has_caught_up(state, status) else "Training"


def _has_caught_up(state: ReconcileState, status: Status) -> bool:
    """Return whether all data that has arrived is trained, but for the batch that may end the data."""
    follow, data = state.spec.data.follow, status.data
    if follow is None or data is None or data.ended:
        return False
    return data.lag_samples <= (state.spec.data.batch_size if follow.may_end else 0)


def _observation(state: ReconcileState, status: Status) -> Observation:
    before, report = state.before, state.leader_report
    reported = None
    if report is not None and takes_part(report) and report.counters.generation == before.counters.generation:
        reported = report.samples
    if status.phase == "Succeeded":
        reported = status.progress.samples
    rolled_back = status.counters.generation > before.counters.generation > 0
    known = {each.identity for each in before.failures if each.recovery_seconds is not None}
    in_place = (each.recovery_seconds or 0.0 for each in status.failures if each.process and each.identity not in known)
    return Observation(
        activity=activity_of(state, status),
        reported=reported,
        rolled_back=status.progress.samples if rolled_back else None,
        speed=before.policy.samples_per_second or status.policy.samples_per_second,
        saving_s=max(status.overhead.save_seconds - before.overhead.save_seconds, 0.0),
        in_place_s=sum(in_place),
    )
