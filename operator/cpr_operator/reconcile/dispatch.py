"""A job that MultiKueue runs in another cluster (`spec.managedBy`): here it has a Workload, and no pods. Pure.

Kueue copies the Workload and the job to a worker cluster, and the job's status back, as a whole. Until there is such a
status the operator shows here why the job waits. Later it writes no status, because the worker's operator does, until
the copy of the job is gone.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

from cpr_contract import env
from cpr_operator.api.base import epoch
from cpr_operator.api.status import TERMINAL_PHASES, Status
from cpr_operator.clocks import elapsed_s
from cpr_operator.cluster.protocol import Manifest
from cpr_operator.reconcile.admission import WITHOUT_PODS, await_quota, desired_workload, released_quota
from cpr_operator.reconcile.completion import clean_up
from cpr_operator.reconcile.conditions import ConditionUpdate, set_conditions
from cpr_operator.reconcile.effects import outcome
from cpr_operator.reconcile.kueue import (
    RESERVED,
    Admitted,
    Evicted,
    Queue,
    Waits,
    holds_quota,
    is_deleted,
    queue_state,
    true_condition,
)
from cpr_operator.reconcile.types import (
    ApplyWorkload,
    DeleteWorkload,
    Outcome,
    ReconcileInput,
    ReconcileState,
    WorkloadChange,
)

#: Seconds after an eviction in which the worker suspends the job. Kueue's default for a lost worker is the same.
SUSPENDED_WITHIN_S = 900.0
#: The digest of the job's spec in its Workload: Kueue copies another spec only with another Workload.
ANNOTATION_SPEC = f"{env.GROUP}/spec"
_NO_QUEUE = Waits("NoQueue", "MultiKueue takes jobs from queues: give the job the label kueue.x-k8s.io/queue-name")


def dispatch(observed: ReconcileInput) -> Outcome:
    """Return the status and the Workload of a job in the cluster in which it is submitted."""
    if observed.job.deleting:
        return Outcome(observed.before)
    if observed.before.phase in TERMINAL_PHASES:
        return _ended(observed)
    change = _change(observed)
    if observed.before.start_time is not None and _runs_nowhere(observed):
        observed = replace(observed, job=replace(observed.job, status=Status()))
    return replace(_shown(observed), workload=change)


def _ended(observed: ReconcileInput) -> Outcome:
    """Delete the job after its time to live. Kueue finishes its Workload once the worker needs no pods any more."""
    result, queue = replace(clean_up(observed), status=observed.before), observed.queue
    if queue is None:
        return result
    found = queue.workload
    is_over = queue.known and (found is None or bool(true_condition(found, "Finished")))
    return result if is_over else replace(result, delete_job=False, wake_after_s=observed.timing.running_s)


def _runs_nowhere(observed: ReconcileInput) -> bool:
    """Return whether the status is that of a deleted copy: Kueue deletes it once the job has no quota here."""
    queue = observed.queue
    if queue is None or not queue.usable or not queue.known:
        return False
    found = queue.workload
    return found is None or not (holds_quota(found) or is_deleted(found) or true_condition(found, "Finished"))


def _shown(observed: ReconcileInput) -> Outcome:
    """Return the status until a worker has started the job: why it waits, or that a worker has it."""
    if observed.before.start_time is not None:
        return Outcome(observed.before, wake_after_s=observed.timing.running_s)
    waits = _waits(observed.queue)
    if isinstance(waits, Admitted):
        admitted = ConditionUpdate(RESERVED, "True", "Admitted", f"{waits.quota.cluster_queue} admitted the job")
        shown = outcome(set_conditions(ReconcileState(observed, observed.before), admitted))
        return replace(shown, wake_after_s=observed.timing.running_s)
    return await_quota(observed, waits)


def _waits(queue: Queue | None) -> Admitted | Waits | Evicted:
    if queue is None:
        return _NO_QUEUE
    found = queue_state(queue)
    if isinstance(found, Admitted) and not ((queue.workload or {}).get("status") or {}).get("clusterName"):
        name = found.quota.cluster_queue
        return Waits("NoWorkers", f"the ClusterQueue {name} has no admission check of MultiKueue")
    return found


def _change(observed: ReconcileInput) -> WorkloadChange | None:
    """Return the change of the Workload.

    An evicted job is suspended in its worker cluster first. The quota here is released after that, because Kueue then
    deletes the job there. A worker that is out of reach cannot show its suspension.
    """
    queue, before = observed.queue, observed.before
    if queue is None or not queue.enabled or not queue.known:
        return None
    found, desired = queue.workload, _with_spec(observed, desired_workload(observed, queue))
    if found is None:
        return ApplyWorkload(desired)
    if is_deleted(found) or true_condition(found, "Finished"):
        return None
    if before.start_time is None and not _annotations(desired).items() <= _annotations(found).items():
        return DeleteWorkload(found["metadata"]["name"])
    evicted = epoch(true_condition(found, "Evicted").get("lastTransitionTime"))
    overdue = evicted is not None and elapsed_s(evicted, observed.now) >= SUSPENDED_WITHIN_S
    return released_quota(observed, queue, found) if before.phase in WITHOUT_PODS or overdue else None


def _with_spec(observed: ReconcileInput, manifest: Manifest) -> Manifest:
    """Return the Workload with the digest of the job's spec."""
    text = json.dumps(observed.job.spec.to_dict(), sort_keys=True)
    digest = {ANNOTATION_SPEC: hashlib.sha256(text.encode()).hexdigest()[:16]}
    meta = manifest["metadata"]
    return {**manifest, "metadata": {**meta, "annotations": {**meta["annotations"], **digest}}}


def _annotations(workload: Manifest) -> dict[str, str]:
    """Return the annotations of a Workload."""
    return dict(workload["metadata"].get("annotations") or {})
