"""Deletes a job with its saves (`snapshots.deleteWithJob`). A finalizer keeps the job until a pod has deleted them.

The job's pods are deleted first, because they write saves. Then cleanup pods try, one after another. The finalizer is
removed when one of them has succeeded. After ATTEMPTS or LIMIT_S it is removed in any case, and an event describes the
remaining objects and the command that removes them. The status holds only the begin of the deletion: attempts are
counted by their pods.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import ValidationError

from cpr_contract import env
from cpr_contract.reports import Deleted, ExitCode, Problem
from cpr_operator.api.snapshots_spec import Store
from cpr_operator.api.status import TERMINAL_PHASES
from cpr_operator.cluster.protocol import Event
from cpr_operator.cluster.views import JobView, PodView
from cpr_operator.desired.record import packed_record
from cpr_operator.desired.store_pod import cleanup_pod
from cpr_operator.failures import Trouble, classify, document
from cpr_operator.reconcile.effects import live_pods, pod_plan
from cpr_operator.reconcile.phases import template_hash
from cpr_operator.reconcile.restore_source import shares_store, source_anchor_in
from cpr_operator.reconcile.types import EventReason, Job, Outcome, PodDelete, ReconcileInput, ReconcileState

FINALIZER = f"{env.GROUP}/delete-saves"
#: The number of cleanup attempts. The pause doubles after each of them.
ATTEMPTS = 5
FIRST_PAUSE_S = 10.0
#: The maximum seconds of a deletion, whatever delays it.
LIMIT_S = 600.0
#: The grace period is short because nothing that pods save now is needed.
GRACE_S = 1


def delete(observed: ReconcileInput) -> Outcome:
    """Take the next step of deleting a job. The job no longer exists once its finalizer is removed."""
    job, before = observed.job, observed.before
    if not job.has_finalizer:
        return Outcome(before)
    if not job.spec.snapshots.delete_with_job or before.runtime is None:  # it never wrote a save
        return Outcome(before, release=True)
    since = observed.now if before.deleting_since is None else before.deleting_since
    return _step(ReconcileState(observed, before.evolve(deleting_since=since)), since)


def _step(state: ReconcileState, since: float) -> Outcome:
    """Return the next step of a deletion that was first seen at `since`: no job waits for it without end."""
    observed, status = state.observed, state.status
    live = (pod for pod in live_pods(observed.pods) if not pod.is_stuck(observed.now))
    writers = [pod for pod in live if pod.role != env.ROLE_CLEANUP]
    deletes = tuple(
        PodDelete(pod.name, pod.uid, "the job is being deleted", GRACE_S)
        for pod in writers
        if pod.deleting_until is None
    )
    attempts = (pod for pod in observed.pods if pod.role == env.ROLE_CLEANUP)
    newest = max(attempts, key=lambda pod: pod.incarnation, default=None)
    if newest and newest.ended and newest.container and newest.container.exit_code == ExitCode.OK:
        return Outcome(status, events=(_deleted(observed, document(Deleted, newest.container.message)),), release=True)
    if reason := _reason_to_give_up(observed, since, newest):
        return Outcome(status, deletes=deletes, events=(_left_of(observed.job, reason),), release=True)
    if writers or (newest and not newest.ended):
        return Outcome(status, deletes=deletes, wake_after_s=observed.timing.changing_s)
    if newest is None:
        return _attempt(state, 1)
    pause_s = newest.created + FIRST_PAUSE_S * 2.0 ** (newest.incarnation - 1) - observed.now
    return _attempt(state, newest.incarnation + 1) if pause_s <= 0 else Outcome(status, wake_after_s=pause_s)


def anchors_in_use(job: Job, others: Iterable[JobView]) -> tuple[str, ...]:
    """Return the anchors (keys) of a job that other jobs still need to start from.

    Any user may write a key into a job, so only jobs that have started from it count: those of the same
    namespace and store that have started, have not ended, and have no anchor of their own yet.
    """
    keys = set()
    for other in others:
        begun = "startTime" in other.status and not other.status.get("anchors")
        ends = other.deleting or other.status.get("phase") in TERMINAL_PHASES
        if begun and not ends and other.namespace == job.id.namespace and shares_store(job, other):
            keys.add(source_anchor_in(str(other.status.get("runtime", {}).get("jobSpec", ""))) or "")
    return tuple(sorted(key for key in keys if key.startswith(f"{job.id.uid}/")))


def location(store: Store) -> str:
    """Return the location of the saves, as arguments of `cprjob snapshots`."""
    inner = "/".join(part for part in (store.bucket, store.prefix.strip("/")) if part)
    if store.endpoint.startswith("file:"):
        return f"{store.endpoint.rstrip('/')}/{inner}"
    return f"s3://{inner} --endpoint {store.endpoint}"


def left_by(job: JobView, reason: str) -> Event:
    """Return the event of a job that is deleted but cannot be read, so its saves stay."""
    try:
        where = location(Store.model_validate(job.spec.get("snapshots", {}).get("store")))
    except (ValidationError, AttributeError):
        where = "STORE"  # spec.snapshots.store is invalid
    return _left(job.uid, where, reason)


def _attempt(state: ReconcileState, attempt: int) -> Outcome:
    """Create a cleanup pod. If that is impossible now, it stays impossible, so the job does not wait for it."""
    job, status, restriction = state.observed.job, state.status, state.observed.restriction
    # The template that the job started with is always allowed.
    started_with = status.runtime is not None and status.runtime.template_hash == template_hash(state.spec)
    if restriction and not started_with and (refusal := restriction.refuses_trainers(state.spec)):
        return Outcome(status, events=(_left_of(job, str(refusal)),), release=True)
    try:
        recording, record = state.observed.recording, None
        if recording is not None:
            record = packed_record(recording, status.to_dict(), (), state.observed.now)
        pod = cleanup_pod(pod_plan(job.id, job.spec, status), attempt, state.observed.anchors_in_use, record)
    except Exception as error:  # noqa: BLE001 -- whatever it is
        reason = f"the pod that would delete them cannot be made ({type(error).__name__}: {error})"
        return Outcome(status, events=(_left_of(job, reason),), release=True)
    return Outcome(status, creates=(pod,), wake_after_s=state.observed.timing.changing_s)


def _reason_to_give_up(observed: ReconcileInput, since: float, newest: PodView | None) -> str:
    """Return a reason to give up; empty if there is none."""
    if observed.terminating:
        return "the namespace is being deleted, so nothing can be created in it"
    if observed.now >= since + LIMIT_S:
        return f"they were not deleted within {LIMIT_S:.0f} s: {_trouble(observed, newest)}"
    if newest is not None and newest.ended and newest.incarnation >= ATTEMPTS:
        return f"{ATTEMPTS} attempts failed; the last one: {_trouble(observed, newest)}"
    return ""


def _deleted(observed: ReconcileInput, deleted: Deleted | None) -> Event:
    amount = f"{deleted.objects} objects, {deleted.size_bytes:,} bytes" if deleted else "all saves"
    unreadable = deleted.unreadable if deleted else ()
    retained = ", ".join(key for key in observed.anchors_in_use if key not in unreadable)
    message = f"deleted {amount}"
    message += f"; kept, because other jobs restore from them: {retained}" if retained else ""
    message += f"; not kept, because they are unreadable: {', '.join(unreadable)}" if unreadable else ""
    return Event("Normal", EventReason.SAVES_DELETED, message, "saves-deleted")


def _left_of(job: Job, reason: str) -> Event:
    return _left(job.id.uid, location(job.spec.snapshots.store), reason)


def _left(uid: str, where: str, reason: str) -> Event:
    message = (
        f"this job's saves remain in the store under {uid}/: {reason}; "
        f"delete them with: cprjob snapshots prune {where} --job {uid} --all --delete"
    )
    return Event("Warning", EventReason.SAVES_LEFT, message, "saves-left")


def _trouble(observed: ReconcileInput, newest: PodView | None) -> str:
    """Return why the newest attempt has not succeeded, as far as known."""
    if observed.refusals:
        return "; ".join(observed.refusals.values())
    if newest is None:
        return "pods of the job still exist"
    if newest.container and (problem := document(Problem, newest.container.message)):
        return f"{problem.message} {problem.remedy}"
    happened = classify(newest)
    if isinstance(happened, Trouble):
        return f"{happened.message}; {happened.remedy}"
    return happened.message if happened else f"pod {newest.name} is {newest.phase}"
