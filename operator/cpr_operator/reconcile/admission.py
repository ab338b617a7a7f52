"""Admission of a job in a queue of Kueue: it has no pods before, and releases its quota after them.

Kueue evicts a Workload by its condition `Evicted`, and waits until the quota is released. The job is suspended first,
so everything is saved and the pods are deleted. Then the Workload releases the quota, and Kueue queues it again.
"""

from __future__ import annotations

from dataclasses import replace

from cpr_operator.api.base import format_time
from cpr_operator.api.frozen_settings import replay_policy, sparse_updates
from cpr_operator.api.status import TERMINAL_PHASES, Status
from cpr_operator.cluster.protocol import Event, Manifest
from cpr_operator.desired.pod import PodPlan, grace_s
from cpr_operator.desired.workload import digest_of, workload
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
    spares_in,
    true_condition,
    uses_quota,
    with_changed,
)
from cpr_operator.reconcile.publishing import is_unpublished
from cpr_operator.reconcile.types import (
    CreateWorkload,
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
_WITHOUT_PODS = frozenset({"Pending", "Suspended"})


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
    if queue.usable and queue.workload is not None and _is_outdated(observed, queue, queue.workload):
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
        enters = after.phase in _WITHOUT_PODS and not idle and not observed.job.deleting
        return CreateWorkload(_desired(observed, queue)) if enters else None
    if is_deleted(found):
        return None
    publishes = observed.job.spec.publish is not None and is_unpublished(after, observed.now)
    if not publishes and not uses_quota((*observed.pods, *observed.publishers), observed.now):
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
    finished, waits = bool(true_condition(found, "Finished")), after.phase in _WITHOUT_PODS
    if observed.job.deleting or (waits and (idle or finished or _is_outdated(observed, queue, found))):
        return DeleteWorkload(found["metadata"]["name"])
    stamp, why = format_time(observed.now), queue_state(queue)
    if after.phase in TERMINAL_PHASES and not finished:
        ends = (c.message for c in after.conditions if c.type in {"Complete", "Failed"} and c.status == "True")
        change = ("Finished", True, after.phase, next(ends, "") or after.phase)
        return WorkloadStatus(found, {"conditions": with_changed(found, stamp, change)})
    if not (waits and isinstance(why, Evicted) and holds_quota(found)):
        return None
    conditions = with_changed(  # release the quota, as Kueue's own integrations do when their job has stopped
        found,
        stamp,
        (RESERVED, False, "Pending", why.message),
        ("Admitted", False, "NoReservation", "The workload has no reservation"),
        ("Requeued", why.reason in _AT_ONCE, why.reason, why.message),
    )
    return WorkloadStatus(found, {"admission": None, "conditions": conditions})


def _is_outdated(observed: ReconcileInput, queue: Queue, found: Manifest) -> bool:
    return digest_of(found) != digest_of(_desired(observed, queue))


def _desired(observed: ReconcileInput, queue: Queue) -> Manifest:
    spec, before = observed.job.spec, observed.before.runtime
    replay = replay_policy(spec, None if before is None else before.replay)
    updates = sparse_updates(spec, before).mode
    plan = PodPlan(
        observed.job.id, spec, spec.image, job_spec="", grace_s=grace_s(None), replay=replay, updates=updates
    )
    return workload(plan, queue.place)
