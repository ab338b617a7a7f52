"""Admission of a job in a queue of Kueue: it has no pods before, and releases its quota after them.

Kueue evicts a Workload by its condition `Evicted`, and waits until the quota is released. The job is suspended first,
so everything is saved and the pods are deleted. Then the Workload releases the quota, and Kueue queues it again.

A prebuilt Workload was created before the job, by MultiKueue. The job becomes its owner and does not replace it.
"""

from __future__ import annotations

from dataclasses import replace

from cpr_operator.api.base import format_time
from cpr_operator.api.frozen_settings import replay_policy, sparse_updates
from cpr_operator.api.status import TERMINAL_PHASES, Status
from cpr_operator.cluster.protocol import Event, Manifest
from cpr_operator.desired.pod import PodPlan, grace_s
from cpr_operator.desired.workload import digest_of, owned_workload, workload
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
    owner_of,
    queue_state,
    spares_in,
    true_condition,
    uses_quota,
    with_changed,
)
from cpr_operator.reconcile.publishing import is_unpublished
from cpr_operator.reconcile.recording import is_unrecorded
from cpr_operator.reconcile.types import (
    ApplyWorkload,
    DeleteWorkload,
    EventReason,
    Outcome,
    ReconcileInput,
    ReconcileState,
    WorkloadChange,
    WorkloadStatus,
)

#: Evictions after which Kueue queues a Workload again at once; after others it does so when their cause is over.
_AT_ONCE = frozenset({"Preempted", "NodeFailures"})
WITHOUT_PODS = frozenset({"Pending", "Suspended"})


def must_stop(observed: ReconcileInput) -> str:
    """Return why a job with pods must release its quota; empty if it may continue.

    Without access to Kueue, the operator does not stop a job.
    """
    queue = observed.queue
    runtime = observed.before.runtime
    # A job that started without a queue enters it at its next suspension.
    if queue is None or not queue.usable or runtime is None or runtime.quota is None:
        return ""
    if queue.workload is None:
        return f"the job's Workload is gone, so it has no quota in {queue.place.queue}"
    match queue_state(queue):
        case Evicted(reason=reason, message=message):
            return f"{queue.place.queue} takes the quota back ({reason}): {message}"
        case Admitted() | Waits():  # with fewer spares in its spec than in its quota the job continues
            requested, admitted = observed.job.spec.shards.spares, spares_in(queue.workload)
            change = f"{admitted} spares become {requested}, and {queue.place.queue} has to admit them"
            return change if requested > admitted else ""


def must_wait(observed: ReconcileInput) -> Waits | Evicted | None:
    """Return why a job without pods may not start or resume; None if it may."""
    queue = observed.queue
    if queue is None:
        return None
    if queue.usable and queue.workload is not None:
        outdated = _is_outdated(observed, queue, queue.workload)
        if queue.prebuilt and (refused := _unusable_prebuilt(observed, queue, queue.workload, outdated=outdated)):
            return refused
        if outdated:
            return Waits("Requeued", "the job requests other pods than before, so it enters the queue again")
    match queue_state(queue):
        case Waits() | Evicted() as state_in_queue:
            return state_in_queue
        case Admitted():
            return None


def await_quota(observed: ReconcileInput, state_in_queue: Waits | Evicted) -> Outcome:
    """Create no pods before the job is admitted."""
    state = ReconcileState(observed, observed.before)
    state = set_conditions(state, ConditionUpdate(RESERVED, "False", state_in_queue.reason, state_in_queue.message))
    old = next((c for c in observed.before.conditions if c.type == RESERVED), None)
    if old is None or (old.status, old.reason) != ("False", state_in_queue.reason):
        key = f"queued-{state_in_queue.reason}-{observed.job.spec_generation}-{observed.before.counters.group}"
        state = state.to(state.status, Event("Normal", EventReason.QUEUED, state_in_queue.message, key))
    return replace(outcome(state), wake_after_s=observed.timing.running_s)


def with_quota(state: ReconcileState) -> ReconcileState:
    """Set the condition QuotaReserved of a job that starts or resumes."""
    runtime = state.status.runtime
    if runtime is None or runtime.quota is None:
        return state
    message = f"{runtime.quota.cluster_queue} admitted the job"
    event = Event("Normal", EventReason.ADMITTED, message, f"admitted-{state.status.counters.group}")
    return set_conditions(state.to(state.status, event), ConditionUpdate(RESERVED, "True", "Admitted", message))


def without_quota(state: ReconcileState) -> ReconcileState:
    """Reset the condition QuotaReserved of a job that stops, once its pods are deleted."""
    held = any(c.type == RESERVED and c.status == "True" for c in state.status.conditions)
    if not held or state.status.phase != "Suspended":
        return state
    return set_conditions(state, ConditionUpdate(RESERVED, "False", "Suspended", "the job has no pods"))


def workload_change(observed: ReconcileInput, after: Status, *, idle: bool) -> WorkloadChange | None:
    """Return the change of the Workload. `idle`: a job without pods could not start even if it had quota.

    While a pod uses the quota the Workload keeps it. The next reconciliation repeats a lost change.
    """
    queue = observed.queue
    if queue is None or not queue.enabled or not queue.known:
        return None
    found = queue.workload
    if found is None:
        enters = after.phase in WITHOUT_PODS and not (idle or observed.job.deleting or queue.prebuilt)
        return ApplyWorkload(desired_workload(observed, queue)) if enters else None
    if is_deleted(found):
        return None
    if queue.prebuilt and owner_of(found) != observed.job.id.uid:
        takes_over = not owner_of(found) and not observed.job.deleting
        return ApplyWorkload(owned_workload(observed.job.id, found)) if takes_over else None
    return _own_change(observed, queue, found, after, idle=idle)


def _own_change(
    observed: ReconcileInput, queue: Queue, found: Manifest, after: Status, *, idle: bool
) -> WorkloadChange | None:
    """Return the change of a Workload that belongs to the job."""
    publishes = observed.job.spec.publish is not None and is_unpublished(after, observed.now)
    records = bool(queue.prebuilt) and is_unrecorded(observed, after)  # MultiKueue then deletes the job, and its pods
    if not (publishes or records) and not uses_quota((*observed.pods, *observed.publishers), observed.now):
        return _unused(observed, queue, found, after, idle=idle)
    # Kueue may evict a job that takes too long to start. It does not learn of later losses: the operator recovers them.
    ready = after.phase not in {"Starting", "Suspending"}
    if observed.job.deleting or ready == bool(true_condition(found, "PodsReady")):
        return None
    change = ("PodsReady", ready, "Started" if ready else "WaitForStart", "all pods run" if ready else "the pods start")
    return WorkloadStatus(found, {"conditions": with_changed(found, format_time(observed.now), change)})


def _unused(
    observed: ReconcileInput, queue: Queue, found: Manifest, after: Status, *, idle: bool
) -> WorkloadChange | None:
    """Return the change of a Workload without pods that use its quota."""
    finished, waits = bool(true_condition(found, "Finished")), after.phase in WITHOUT_PODS
    leaves = waits and not queue.prebuilt and (idle or finished or _is_outdated(observed, queue, found))
    if observed.job.deleting or leaves:
        return DeleteWorkload(found["metadata"]["name"])
    if after.phase in TERMINAL_PHASES and not finished:
        ends = (c.message for c in after.conditions if c.type in {"Complete", "Failed"} and c.status == "True")
        change = ("Finished", True, after.phase, next(ends, "") or after.phase)
        return WorkloadStatus(found, {"conditions": with_changed(found, format_time(observed.now), change)})
    return released_quota(observed, queue, found) if waits and not finished else None


def released_quota(observed: ReconcileInput, queue: Queue, found: Manifest) -> WorkloadStatus | None:
    """Return the change that releases the quota of an evicted job without pods; None if there is nothing to release.

    Kueue's own integrations do the same when their job has stopped.
    """
    why = queue_state(queue)
    if not isinstance(why, Evicted) or not holds_quota(found):
        return None
    conditions = with_changed(
        found,
        format_time(observed.now),
        (RESERVED, False, "Pending", why.message),
        ("Admitted", False, "NoReservation", "The workload has no reservation"),
        ("Requeued", why.reason in _AT_ONCE, why.reason, why.message),
    )
    return WorkloadStatus(found, {"admission": None, "conditions": conditions})


def _is_outdated(observed: ReconcileInput, queue: Queue, found: Manifest) -> bool:
    return digest_of(found) != digest_of(desired_workload(observed, queue))


def desired_workload(observed: ReconcileInput, queue: Queue) -> Manifest:
    """Return the Workload with the requests of the job's pods."""
    spec, before = observed.job.spec, observed.before.runtime
    replay = replay_policy(spec, None if before is None else before.replay)
    updates = sparse_updates(spec, before).mode
    plan = PodPlan(
        observed.job.id, spec, spec.image, job_spec="", grace_s=grace_s(None), replay=replay, updates=updates
    )
    return workload(plan, queue.place)


def _unusable_prebuilt(observed: ReconcileInput, queue: Queue, found: Manifest, *, outdated: bool) -> Waits | None:
    """Return why the job may not start with this prebuilt Workload; None if it may."""
    owner, name = owner_of(found), queue.prebuilt
    if owner not in {"", observed.job.id.uid}:
        return Waits("WorkloadInUse", f"the Workload {name} belongs to another job")
    if outdated:
        remedy = "run the same release of the operator in all clusters of MultiKueue, and change no job in a worker"
        return Waits("WorkloadDiffers", f"the Workload {name} requests other pods than the job: {remedy}")
    return None if owner else Waits("Queued", f"the job takes over the Workload {name}")
