"""A job that MultiKueue runs in another cluster (`spec.managedBy`): here it has a Workload, and no pods. Pure.

Kueue copies the Workload and the job to a worker cluster, and the job's status back, as a whole. Until there is such a
status the operator shows here why the job waits. Later it writes no status: the worker's operator does.
"""

from __future__ import annotations

from dataclasses import replace

from cpr_operator.api.status import TERMINAL_PHASES
from cpr_operator.reconcile.admission import (
    WITHOUT_PODS,
    await_quota,
    desired_workload,
    is_outdated,
    released_quota,
)
from cpr_operator.reconcile.completion import clean_up
from cpr_operator.reconcile.kueue import Admitted, Evicted, Waits, is_deleted, queue_state, true_condition
from cpr_operator.reconcile.types import ApplyWorkload, DeleteWorkload, Outcome, ReconcileInput, WorkloadChange

_NO_QUEUE = Waits("NoQueue", "MultiKueue takes jobs from queues: give the job the label kueue.x-k8s.io/queue-name")


def dispatch(observed: ReconcileInput) -> Outcome:
    """Return the status and the Workload of a job in the cluster in which it is submitted."""
    before = observed.before
    if observed.job.deleting:
        return Outcome(before)
    if before.phase in TERMINAL_PHASES:  # its Workload is Kueue's to finish
        return replace(clean_up(observed), status=before)
    waits = _waits(observed)
    if waits is not None and before.start_time is None:
        result = await_quota(observed, waits)
    else:
        result = Outcome(before, wake_after_s=observed.timing.running_s)
    return replace(result, workload=_change(observed))


def _waits(observed: ReconcileInput) -> Waits | Evicted | None:
    if observed.queue is None:
        return _NO_QUEUE
    state_in_queue = queue_state(observed.queue)
    return None if isinstance(state_in_queue, Admitted) else state_in_queue


def _change(observed: ReconcileInput) -> WorkloadChange | None:
    """Return the change of the Workload.

    An evicted job is suspended in its worker cluster first. The quota here is released after that, because Kueue then
    deletes the job there.
    """
    queue, before = observed.queue, observed.before
    if queue is None or not queue.enabled or not queue.known:
        return None
    found = queue.workload
    if found is None:
        return ApplyWorkload(desired_workload(observed, queue))
    if is_deleted(found) or true_condition(found, "Finished"):
        return None
    if before.start_time is None and is_outdated(observed, queue, found):
        return DeleteWorkload(found["metadata"]["name"])
    return released_quota(observed, queue, found) if before.phase in WITHOUT_PODS else None
