"""The writes of a pass: finalizer, status, pods, rosters and events.

A roster reaches a pod as an annotation, which the kubelet shows as a file, and over HTTP ahead of that. The leader gets
what the status holds of its reports in the same two ways: it deletes saves by that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from cpr_contract import env
from cpr_contract.reports import RosterNote
from cpr_contract.roster import signature
from cpr_operator.api.status import Status
from cpr_operator.cluster.certificates import pod_tls
from cpr_operator.cluster.protocol import (
    AlreadyExistsError,
    BusyError,
    Cluster,
    Event,
    NotFoundError,
    PodPatch,
    Priority,
    RefusedError,
    TerminatingError,
)
from cpr_operator.cluster.views import JobView
from cpr_operator.controller.cache import JobCache
from cpr_operator.controller.certificate_requests import change_requests
from cpr_operator.controller.job_reader import UnreadableJobError
from cpr_operator.controller.priority import record_pause_s, status_pause_s, status_priority
from cpr_operator.controller.quota import change_workload
from cpr_operator.desired.names import JobId
from cpr_operator.desired.record import packed_record, recorded
from cpr_operator.desired.rosters import Rosters, is_supported, version_of
from cpr_operator.reconcile import Job, Outcome, ReconcileInput
from cpr_operator.reconcile.conditions import REFUSAL_REMEDY, ConditionUpdate, amended
from cpr_operator.reconcile.deletion import FINALIZER, left_by
from cpr_operator.reconcile.polling import recorded_in
from cpr_operator.reconcile.types import EventReason, leader_of

logger = logging.getLogger(__name__)

#: Seconds for a pod to take a roster over HTTP; the annotation follows.
SEND_DEADLINE_S = 0.2
#: The maximum number of concurrent roster writes of one job: as many as its namespace may have requests in flight.
MAX_ROSTER_WRITES = 8


@dataclass(frozen=True, slots=True)
class JobWriter:
    """Writes for passes over all jobs. `progress_s`: minimum seconds between two writes of progress alone."""

    cluster: Cluster
    clock: Callable[[], float]
    progress_s: float

    async def sync_finalizer(self, view: JobView, job: Job) -> tuple[JobView, Job]:
        """Add the finalizer to a job with `deleteWithJob` before it can have saves, and remove it from any other.

        Raises ConflictError, NotFoundError, UnavailableError.
        """
        needed = job.spec.snapshots.delete_with_job
        if job.deleting or job.has_finalizer == needed:
            return view, job
        others = _other_finalizers(view)
        view = await self.cluster.set_finalizers(view, (*others, FINALIZER) if needed else others)
        return view, replace(job, has_finalizer=needed)

    async def report_unreadable(self, view: JobView, error: UnreadableJobError) -> None:
        """Set a condition on a job that cannot be read; its pods are left alone.

        A job under deletion gets an event that names its saves, and loses the finalizer.
        """
        if view.deleting:
            if FINALIZER in view.finalizers:
                await self._emit(self.cluster, view, left_by(view, f"the job cannot be read: {error}"))
                await _release(self.cluster, view)
            return
        condition = ConditionUpdate("PodsReady", "False", error.reason, str(error))
        after = amended(view.status, view.spec_generation, self.clock(), condition)
        if after["conditions"] == view.status.get("conditions"):
            return
        try:
            view = await self.cluster.write_status(view, after)
        except RefusedError as refusal:  # the installed CRD does not have the fields of this status either
            logger.warning("%s: condition rejected: %s", view.name, refusal)
        event = Event("Warning", EventReason.INVALID, str(error), f"invalid-{view.spec_generation}")
        await self._emit(self.cluster, view, event)

    async def write_status(
        self, view: JobView, before: Status, outcome: Outcome, cache: JobCache, running_jobs: int
    ) -> JobView:
        """Write the status, if it changed. Raises ConflictError: then no effect of the outcome may follow."""
        after, now = outcome.status, self.clock()
        if after == before:
            return view
        pause_s = status_pause_s(before, after, cache.priority, self.progress_s, running_jobs)
        # An operator before this one may have written it lately, unless its clock was ahead.
        updated = before.progress.updated or 0.0
        if now < cache.written_at + pause_s or 0.0 <= now - updated < pause_s:
            return view
        cluster = self.cluster.at(status_priority(before, cache.priority))
        try:
            written = await cluster.write_status(view, after.to_dict())
        except BusyError:  # only a status without effects has the priority that is refused; the next pass writes it
            return view
        cache.written_at = now
        return written

    async def write_effects(self, view: JobView, observed: ReconcileInput, outcome: Outcome, cache: JobCache) -> None:
        """Create, delete and patch pods, emit events, change CertificateRequests and the Workload, in this order."""
        cluster, job = self.cluster.at(cache.priority), observed.job
        if any(patch.labels for patch in outcome.rosters):  # a spare is promoted
            await _send_rosters(cluster, observed, outcome, cache)
        if outcome.creates and self.clock() >= cache.retry_at:
            await self._create_pods(cluster, outcome, cache)
        for delete in outcome.deletes:
            logger.info("%s: delete %s: %s", job.id.name, delete.name, delete.reason)
            await cluster.delete_pod(job.id.namespace, delete.name, delete.uid, delete.grace_s)
        rosters_at = self.cluster.at(max(cache.priority, Priority.ROSTER))
        await _write_annotations(rosters_at, job.id, outcome.rosters)
        await _write_roster_note(rosters_at, observed, outcome.status, cache)
        with contextlib.suppress(BusyError):  # hours remain for them
            await _write_annotations(self.cluster.at(Priority.REGULAR), job.id, outcome.renewals)
        for event in outcome.events:
            await self._emit(cluster, view, event)
            cache.record_event(recorded(event, self.clock()))
        if outcome.delete_job:
            await cluster.delete_job(view)
        if outcome.release:
            await _release(cluster, view)
        cache.request_obstacle = await change_requests(cluster, job, outcome)
        # Last, because Kueue may not answer: the API server calls its webhook.
        cache.workload_refused = await change_workload(cluster, job, outcome)

    async def write_record(
        self, observed: ReconcileInput, outcome: Outcome, cache: JobCache, running_jobs: int
    ) -> None:
        """Give the record of a training job to its leader, which stores it. No recovery waits for that."""
        status, now, leader = outcome.status, self.clock(), leader_of(outcome.status)
        if observed.recording is None or leader is None or cache.priority is not Priority.REGULAR:
            return
        if cache.recorded_at is None:  # a new operator does not begin with the records of all jobs
            cache.recorded_at = now
        pod = observed.pods_by_uid.get(leader.uid)
        if pod is None or pod.phase != "Running" or now < cache.recorded_at + record_pause_s(running_jobs):
            return
        cache.recorded_at = now
        record = packed_record(observed.recording, status.to_dict(), outcome.events, now)
        if not record:
            return
        with contextlib.suppress(BusyError, NotFoundError, RefusedError):
            patch = PodPatch(pod.name, pod.uid, {env.ANNOTATION_HISTORY: record})
            await self.cluster.at(Priority.REGULAR).patch_pod(observed.job.id.namespace, patch)

    async def _create_pods(self, cluster: Cluster, outcome: Outcome, cache: JobCache) -> None:
        """Create pods. The next pass lists those that exist already; refused ones are retried later."""
        refused: dict[str, str] = {}
        for manifest in outcome.creates:
            name = manifest["metadata"]["name"]
            if cache.prerequisites.blocked and outcome.needs_prerequisites:
                refused[name] = cache.prerequisites.blocked
                continue
            try:
                await cluster.create_pod(manifest)
            except AlreadyExistsError:
                logger.info("%s exists", name)
            except RefusedError as error:
                refused[name] = str(error)
                cache.terminating = isinstance(error, TerminatingError)
        cache.set_refusals(refused, self.clock())

    async def _emit(self, cluster: Cluster, view: JobView, event: Event) -> None:
        logger.info("%s: %s: %s", view.name, event.reason, event.message)
        try:
            await cluster.emit(view, event)
        except RefusedError as error:  # for example in a namespace that is being deleted; the log has the event
            logger.warning("%s: event rejected: %s", view.name, error)


async def pod_refusal(cluster: Cluster, job: Job, outcome: Outcome, cache: JobCache) -> str:
    """The server's objection to a pod of either role, at start or resumption; empty if it accepts both.

    Pods of an encrypted job are not created either while the operator cannot read its identity.
    """
    if outcome.status.phase != "Starting" or job.status.phase not in {"Pending", "Suspended"}:
        return ""
    if cache.identity_refused and outcome.status.runtime is not None and outcome.status.runtime.ca:
        return cache.identity_refused
    roles = {manifest["metadata"]["labels"][env.LABEL_ROLE]: manifest for manifest in outcome.creates}
    for role, manifest in roles.items():
        try:
            await cluster.check_pod(manifest)
        except RefusedError as error:
            return f"{role}: {error}; {REFUSAL_REMEDY}"
    return ""


def _other_finalizers(view: JobView) -> tuple[str, ...]:
    return tuple(each for each in view.finalizers if each != FINALIZER)


async def _release(cluster: Cluster, view: JobView) -> None:
    """Remove the finalizer, so that the job is deleted."""
    if FINALIZER in view.finalizers:
        await cluster.set_finalizers(view, _other_finalizers(view))


async def _send_rosters(cluster: Cluster, observed: ReconcileInput, outcome: Outcome, cache: JobCache) -> None:
    """Send the pass's rosters to running pods, which need not wait until their kubelets show the annotations.

    Only the operator that made the job's key can sign. Pods of others read the annotations alone.
    """
    runtime = outcome.status.runtime
    key = cache.prerequisites.issued(runtime.key_digest) if runtime else None
    if runtime is None or key is None:
        return
    sends = []
    for patch in outcome.rosters:
        pod, roster = observed.pods_by_uid[patch.uid], patch.annotations[env.ANNOTATION_ROSTER]
        if pod.phase == "Running" and pod.host:
            signed = signature(key, pod.name, roster.encode())
            if not runtime.ca:
                sends.append(cluster.send_roster(pod, roster, signed, SEND_DEADLINE_S))
            elif cache.identity is not None:
                tls = pod_tls(pod, runtime.ca, cache.identity)
                sends.append(cluster.send_roster(pod, roster, signed, SEND_DEADLINE_S, tls))
    await asyncio.gather(*sends)


async def _write_annotations(cluster: Cluster, job: JobId, patches: tuple[PodPatch, ...]) -> None:
    """Write annotations concurrently, beginning in their order. After an error no more are begun, and it is raised."""
    remaining = iter(patches)

    async def write() -> None:
        for patch in remaining:
            try:
                await cluster.patch_pod(job.namespace, patch)
            except NotFoundError:
                logger.info("%s: %s is gone before it was updated", job.name, patch.name)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in patches[:MAX_ROSTER_WRITES]:
                group.create_task(write())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors


async def _write_roster_note(cluster: Cluster, observed: ReconcileInput, after: Status, cache: JobCache) -> None:
    """Write what the status holds into the annotation of the leader's roster, if the job's key is another operator's.

    At the first pass the annotation has the note of the operator before.
    """
    recorded, leader = recorded_in(after), leader_of(after)
    pod = observed.pods_by_uid.get(leader.uid) if leader else None
    if leader is None or pod is None or pod.phase != "Running" or pod.roster_version < leader.roster:
        return
    has_key = after.runtime is None or cache.prerequisites.issued(after.runtime.key_digest) is not None
    if has_key or not is_supported(version_of(after)):
        return
    if cache.roster_note not in {None, (pod.uid, recorded)}:
        annotations = Rosters(after).document(leader, leader.incarnation).with_note(RosterNote(recorded)).annotations
        await _write_annotations(cluster, observed.job.id, (PodPatch(pod.name, pod.uid, annotations),))
    cache.roster_note = (pod.uid, recorded)
