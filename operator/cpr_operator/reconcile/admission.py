"""A job in a queue of Kueue: no pods before it is admitted, and its quota goes back when its pods are gone.

Kueue takes quota back by the condition `Evicted` of the Workload, and waits until it is released. So the job is
suspended first: all is saved, and the pods go. Only then the Workload gives the quota up, and waits for its next turn.
"""

from __future__ import annotations

from dataclasses import replace

from cpr_operator.api.model import format_time
from cpr_operator.api.status import TERMINAL_PHASES, Status
from cpr_operator.cluster.protocol import Event, Manifest
from cpr_operator.desired.pod import PodPlan, grace_s
from cpr_operator.desired.workload import digest_of, workload
from cpr_operator.reconcile.conditions import ConditionUpdate, set_conditions
from cpr_operator.reconcile.effects import outcome
from cpr_operator.reconcile.observe import is_stuck
from cpr_operator.reconcile.pass_ import (
    CreateWorkload,
    DeleteWorkload,
    Draft,
    EventReason,
    Outcome,
    PassInput,
    WorkloadChange,
    WorkloadStatus,
)
from cpr_operator.reconcile.queue import (
    RESERVED,
    Admitted,
    Evicted,
    Queue,
    Waits,
    holds_quota,
    standing,
    true_condition,
    with_changed,
)

#: Evictions after which Kueue queues a Workload again at once. After others it does so when their cause is over.
_AT_ONCE = frozenset({"Preempted", "NodeFailures"})


def must_stop(observed: PassInput) -> str:
    """Why a job with pods has to give its quota back; empty if it may go on.

    An operator that cannot ask Kueue does not stop what trains.
    """
    queue = observed.queue
    runtime = observed.before.runtime
    # One that began without a queue enters it when it is suspended the next time.
    if queue is None or not queue.usable or runtime is None or runtime.quota is None:
        return ""
    if queue.workload is None:
        return f"the job's Workload was deleted, so it has no quota in {queue.place.queue}"
    match standing(queue):
        case Evicted(reason=reason, message=message):
            return f"{queue.place.queue} takes the quota back ({reason}): {message}"
        case Admitted() | Waits():
            return ""


def must_wait(observed: PassInput) -> Waits | Evicted | None:
    """Why a job without pods may not start or resume; None if it may."""
    queue = observed.queue
    if queue is None:
        return None
    found = queue.workload if queue.enabled else None
    if found is not None and digest_of(found) != digest_of(_wanted(observed, queue)):
        return Waits("Requeued", "the job asks for other pods than before, so it enters the queue again")
    match standing(queue):
        case Waits() | Evicted() as verdict:
            return verdict
        case Admitted():
            return None


def await_quota(observed: PassInput, verdict: Waits | Evicted) -> Outcome:
    """Create no pods before the job is admitted."""
    draft = Draft(observed, observed.before)
    draft = set_conditions(draft, ConditionUpdate(RESERVED, "False", verdict.reason, verdict.message))
    if _changed(observed.before, draft.status):
        key = f"queued-{verdict.reason}-{observed.job.generation}-{observed.before.counters.group}"
        draft = draft.to(draft.status, Event("Normal", EventReason.QUEUED, verdict.message, key))
    return replace(outcome(draft), wake_after_s=observed.timing.running_s)


def with_quota(observed: PassInput, draft: Draft) -> Draft:
    """The draft of a job that starts or resumes, with the condition that says by which quota."""
    runtime = draft.status.runtime
    if observed.queue is None or runtime is None or runtime.quota is None:
        return draft
    message = f"{runtime.quota.cluster_queue} admitted the job"
    event = Event("Normal", EventReason.ADMITTED, message, f"admitted-{draft.status.counters.group}")
    return set_conditions(draft.to(draft.status, event), ConditionUpdate(RESERVED, "True", "Admitted", message))


def without_quota(draft: Draft) -> Draft:
    """The draft of a job that stops, with the condition that says so once its pods are gone."""
    held = any(c.type == RESERVED and c.status == "True" for c in draft.status.conditions)
    if not held or draft.status.phase != "Suspended":
        return draft
    return set_conditions(draft, ConditionUpdate(RESERVED, "False", "Suspended", "the job has no pods"))


def workload_change(observed: PassInput, after: Status) -> WorkloadChange | None:
    """What becomes of the Workload now: a lost change is found again by the next pass."""
    queue = observed.queue
    # A pod that is being deleted still uses what it has, unless its node is lost.
    in_use = any(not pod.ended and not is_stuck(observed, pod) for pod in observed.pods)
    if queue is None or not queue.enabled or observed.job.deleting or in_use:
        return None
    found = queue.workload
    if after.phase in TERMINAL_PHASES:
        return None if found is None or true_condition(found, "Finished") else _finished(observed, found, after)
    if after.phase not in {"Pending", "Suspended"}:
        return None
    wanted = _wanted(observed, queue)
    idle = observed.job.spec.suspend or (after.resume_at is not None and observed.now < after.resume_at)
    if found is None:
        return None if idle else CreateWorkload(wanted)
    if idle or true_condition(found, "Finished") or digest_of(found) != digest_of(wanted):
        return DeleteWorkload(found["metadata"]["name"])
    verdict = standing(queue)
    return _released(observed, found, verdict) if isinstance(verdict, Evicted) and holds_quota(found) else None


def _wanted(observed: PassInput, queue: Queue) -> Manifest:
    spec = observed.job.spec
    plan = PodPlan(observed.job.id, spec, spec.image, job_spec="", grace_s=grace_s(None))
    return workload(plan, queue.place)


def _released(observed: PassInput, found: Manifest, why: Evicted) -> WorkloadStatus:
    """Give the quota back, as Kueue's own integrations do when their job has stopped."""
    conditions = with_changed(
        found,
        format_time(observed.now),
        (RESERVED, False, "Pending", why.message),
        ("Admitted", False, "NoReservation", "The workload has no reservation"),
        ("Requeued", why.reason in _AT_ONCE, why.reason, why.message),
    )
    return WorkloadStatus(found, {"admission": None, "conditions": conditions})


def _finished(observed: PassInput, found: Manifest, after: Status) -> WorkloadStatus:
    message = next((c.message for c in after.conditions if c.type in {"Complete", "Failed"} and c.status == "True"), "")
    change = ("Finished", True, after.phase, message or after.phase)
    return WorkloadStatus(found, {"conditions": with_changed(found, format_time(observed.now), change)})


def _changed(before: Status, after: Status) -> bool:
    old, new = (next((c for c in s.conditions if c.type == RESERVED), None) for s in (before, after))
    return new is not None and (old is None or (old.status, old.reason) != (new.status, new.reason))
