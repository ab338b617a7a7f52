"""The recorder of a job that has ended: a pod that puts the job's last state into its store. Nothing depends on it."""

from __future__ import annotations

from dataclasses import replace

from cpr_contract.reports import ExitCode
from cpr_operator.api.status import TERMINAL_PHASES, Status
from cpr_operator.clocks import elapsed_s
from cpr_operator.cluster.views import PodView
from cpr_operator.desired.record import packed_record
from cpr_operator.desired.rosters import is_supported, version_of
from cpr_operator.desired.store_pod import recorder_pod
from cpr_operator.reconcile.effects import LIVE_PHASES, pod_plan, works
from cpr_operator.reconcile.types import Outcome, PodDelete, ReconcileInput

#: Seconds after the end of a job in which it is recorded, also if its time to live is shorter; and the attempts.
LAST_S, ATTEMPTS = 60.0, 2


def with_recorder(observed: ReconcileInput, outcome: Outcome) -> Outcome:
    """Return the outcome with a recorder's pod, once the job has ended.

    A job that is to be deleted waits for it, at most LAST_S.
    """
    status, recording = outcome.status, observed.recording
    if recording is None or not _is_recorded(observed, status):
        return outcome
    newest = _newest(observed)
    if not is_unrecorded(observed, status):
        # A sidecar of the template may still run.
        left = (pod for pod in observed.recorders if pod.phase in LIVE_PHASES and pod.deleting_until is None)
        deletes = tuple(PodDelete(pod.name, pod.uid, "the recording of the job is over") for pod in left)
        return replace(outcome, deletes=(*outcome.deletes, *deletes))
    creates = outcome.creates
    if newest is None or not works(newest):
        number = 1 if newest is None else newest.incarnation + 1
        record = packed_record(recording, status.to_dict(), outcome.events, observed.now)
        if not record:
            return outcome
        creates += (recorder_pod(pod_plan(observed.job.id, observed.job.spec, status), number, record),)
    wake_s = min(outcome.wake_after_s or LAST_S, observed.timing.running_s)
    return replace(outcome, creates=creates, wake_after_s=wake_s, delete_job=False)


def is_unrecorded(observed: ReconcileInput, status: Status) -> bool:
    """Return whether the end of a job is still to be recorded."""
    over = _is_over(_newest(observed)) or elapsed_s(status.completion_time or observed.now, observed.now) >= LAST_S
    return _is_recorded(observed, status) and not over


def _is_recorded(observed: ReconcileInput, status: Status) -> bool:
    """Return whether the job has ended, and its end is one that pods record."""
    ended = status.completion_time is not None and status.phase in TERMINAL_PHASES and not observed.job.deleting
    supported = status.runtime is not None and is_supported(version_of(status))
    return observed.recording is not None and ended and supported


def _newest(observed: ReconcileInput) -> PodView | None:
    return max(observed.recorders, key=lambda pod: pod.incarnation, default=None)


def _is_over(newest: PodView | None) -> bool:
    """Return whether the job is recorded, or no attempt is left."""
    if newest is None or works(newest):
        return False
    done = newest.container is not None and newest.container.exit_code == ExitCode.OK
    return done or newest.incarnation >= ATTEMPTS
