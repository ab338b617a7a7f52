"""The reads of a pass: the job, its pods, their reports, and the state of the cluster that decisions need."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cpr_contract import env
from cpr_contract.choices import Encryption
from cpr_contract.codec import ContractError, from_json, to_json
from cpr_contract.limits import max_report_bytes
from cpr_contract.published import PublisherReport
from cpr_contract.reports import ShardReport, TrainerReport
from cpr_contract.roster import seal
from cpr_operator.api.cprjob_spec import IssuerRef
from cpr_operator.api.crd import HASH_ANNOTATION, schema_hash
from cpr_operator.api.frozen_settings import is_encrypted, issuer_of
from cpr_operator.api.validate import InvalidSpecError, InvalidStatusError, check_new, parse_spec, parse_status
from cpr_operator.cluster.certificates import KeyPair, PodTLS, pod_tls
from cpr_operator.cluster.issued_ca import signing_request
from cpr_operator.cluster.protocol import (
    BusyError,
    Cluster,
    ClusterError,
    NotFoundError,
    Priority,
    RefusedError,
    UnavailableError,
)
from cpr_operator.cluster.views import JobView, PodView
from cpr_operator.controller.cache import JobCache
from cpr_operator.controller.certificate_requests import refusal_of
from cpr_operator.controller.quota import read_queue
from cpr_operator.desired.names import JobId
from cpr_operator.desired.record import Recording
from cpr_operator.desired.template import Restriction
from cpr_operator.reconcile import (
    AdmissionGate,
    Job,
    ReconcileInput,
    Report,
    Timing,
    first_round,
    missed_by_peers,
    second_round,
    spare_is_needed,
    suspects,
)
from cpr_operator.reconcile.deletion import FINALIZER, anchors_in_use
from cpr_operator.reconcile.issuance import due_request
from cpr_operator.reconcile.kueue import Queue
from cpr_operator.reconcile.polling import recorded_in, unexplained, unreported_ends
from cpr_operator.reconcile.publishing import publisher_to_read

logger = logging.getLogger(__name__)

#: Seconds for a pod's report, and for that of a pod that other members miss: most likely it never answers.
REPORT_DEADLINE_S, UNRESPONSIVE_DEADLINE_S = 2.0, 0.5
#: A report of at most this size is parsed in the event loop, a longer one in a thread.
SHORT_REPORT = 16 << 10
#: The rules of a model with at most this number of tables and features are evaluated in the event loop.
FEW_TABLES = 64
#: Seconds for which an answer about the installed CRD is valid.
CRD_FRESH_S = 10.0


class UnreadableJobError(Exception):
    """A job's spec or status cannot be parsed. `reason` is that of the condition, the text its message."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class JobReader:
    """Reads for passes over all jobs, with the options of `Controller`."""

    cluster: Cluster
    clock: Callable[[], float]
    timing: Timing
    admission_gate: Callable[[], Awaitable[AdmissionGate | None]] | None
    restart_rules: Callable[[], Awaitable[bool]] | None
    pod_groups: Callable[[], Awaitable[bool]] | None
    restriction: Restriction | None
    kueue: bool | None
    records: bool
    encryption: Encryption
    issuer: IssuerRef | None
    identity: Callable[[], Awaitable[KeyPair]]

    async def parse_job(self, view: JobView, cache: JobCache) -> Job:
        """Validate the job's spec and status. Raises UnreadableJobError.

        A version never changes, and most passes find that of the pass before. The rules of a spec are evaluated once
        per metadata.generation, for a large model in a thread: they would block the polls and probes of other jobs.
        """
        version = (view.uid, view.resource_version)
        if cache.job is not None and cache.read_version == version:
            return cache.job
        spec_generation = (view.uid, view.spec_generation)
        try:
            if cache.checked == spec_generation:
                job = job_of(view, checked=True)
            elif _tables_and_features(view.spec) > FEW_TABLES:
                job = await asyncio.to_thread(job_of, view)
            else:
                job = job_of(view)
        except InvalidSpecError as error:
            raise UnreadableJobError("InvalidSpec", f"{error}; correct spec, or create the job again") from error
        except InvalidStatusError as error:
            remedy = "run the version of the operator that wrote it, or undo the edit (--subresource=status)"
            raise UnreadableJobError("InvalidStatus", f"{error}; {remedy}") from error
        cache.checked, cache.job, cache.read_version = spec_generation, job, version
        return job

    async def list_pods(self, view: JobView, job: Job, cache: JobCache) -> tuple[PodView, ...]:
        """The job's pods: from the server's cache while no event points to a change, else as they are."""
        priority, events = cache.read_priority, cache.events
        if priority is Priority.REGULAR and not job.deleting and not job.spec.suspend:
            listed = await self.cluster.at(priority).list_pods(view, cached=True)
            if {member.uid for member in job.status.members} <= {pod.uid for pod in listed}:
                return listed
            # A pod that a cache lacks may still exist.
            priority = Priority.RECOVERY
        listed = await self.cluster.at(min(priority, Priority.BEGIN)).list_pods(view)
        cache.listed = events
        return listed

    async def observe(self, view: JobView, job: Job, listed: tuple[PodView, ...], cache: JobCache) -> ReconcileInput:
        """The input of the decision, with the reports of the pods that it depends on."""
        is_new = job.status.start_time is None
        may_start = job.status.phase in {"Pending", "Suspended"}
        own = cache.own_pods(view, listed, self.clock())
        observed = ReconcileInput(
            job=job,
            pods=tuple(pod for pod in own if pod.role not in {env.ROLE_PUBLISHER, env.ROLE_RECORDER}),
            publishers=tuple(pod for pod in own if pod.role == env.ROLE_PUBLISHER),
            recorders=tuple(pod for pod in own if pod.role == env.ROLE_RECORDER),
            recording=Recording(view, tuple(cache.recorded_events.values())) if self.records else None,
            reports={},
            now=self.clock(),
            refusals=cache.refusals | cache.prerequisites.refusals,
            admission_gate=await self.admission_gate() if self.admission_gate and is_new else None,
            anchors_in_use=anchors_in_use(job, await self.cluster.list_jobs((job.id.namespace,)))
            if job.deleting and job.has_finalizer
            else (),
            terminating=cache.terminating or cache.prerequisites.terminating,
            key_digest=cache.prerequisites.next_key.digest,
            encryption=self.encryption,
            issuer=self.issuer,
            restriction=self.restriction,
            source_jobs=await source_jobs_of(self.cluster, job),
            queue=await self._queue(view, job, cache),
            restart_rules=await self.restart_rules() if self.restart_rules and may_start else False,
            pod_groups=await self.pod_groups() if self.pod_groups and may_start else False,
            leader_unresponsive=cache.leader_unresponsive,
            watched_s=cache.watched_s(self.clock(), self.timing.running_s),
            timing=self.timing,
        )
        observed = await self._with_certificates(observed, cache)
        observed = await self._with_request(observed, cache)
        observed = await self._with_warnings(observed, cache)
        observed = await self._with_reports(observed, first_round(observed), cache)
        observed = await self._with_reports(observed, second_round(observed), cache)
        if (silent := suspects(observed)) and not any(await asyncio.gather(*map(self.cluster.reaches, silent))):
            observed = replace(observed, lost_node=silent[0].node)
        cache.leader_unresponsive = observed.leader_report is None
        observed = await self._with_published(observed, cache)
        return replace(observed, ending=cache.ending(unreported_ends(observed), observed.now))

    async def observe_queue(self, view: JobView, job: Job, cache: JobCache) -> ReconcileInput:
        """The input of the decision about a job that another cluster runs."""
        queue = await self._queue(view, job, cache)
        return ReconcileInput(job=job, pods=(), reports={}, now=self.clock(), queue=queue, timing=self.timing)

    async def _queue(self, view: JobView, job: Job, cache: JobCache) -> Queue | None:
        return await read_queue(self.cluster, view, job, enabled=self.kueue, refused=cache.workload_refused)

    async def _with_certificates(self, observed: ReconcileInput, cache: JobCache) -> ReconcileInput:
        """The input with the certificates of an encrypted job. Its key is lost if its pods accept another operator's.

        Without an answer about the identity the pods are not polled, and nothing follows from that.
        """
        runtime, uid = observed.before.runtime, observed.job.id.uid
        authority = runtime.ca if runtime else ""
        may_start = observed.before.phase in {"Pending", "Suspended"}
        if not authority and not (may_start and is_encrypted(observed.job.spec, self.encryption)):
            return observed
        next_ca = cache.prerequisites.next_key.authority(uid).certificate
        try:
            cache.identity, cache.identity_refused = await self.identity(), ""
        except RefusedError as error:
            if cache.identity_refused != str(error):
                logger.warning("%s: no pod is polled: %s", observed.job.id.name, error)
            cache.identity, cache.identity_refused = None, str(error)
            return replace(observed, next_ca=next_ca)
        digest = cache.identity.digest
        other = runtime is not None and bool(authority) and runtime.identity_digest not in {"", digest}
        return replace(observed, next_ca=next_ca, identity_digest=digest, key_lost=other)

    async def _with_request(self, observed: ReconcileInput, cache: JobCache) -> ReconcileInput:
        """The input with the CertificateRequest for the job's next or renewed CA."""
        job = observed.job.id
        may_start = observed.before.phase in {"Pending", "Suspended"}
        if may_start and issuer_of(observed.job.spec, self.encryption, self.issuer) is not None:
            next_authority = cache.prerequisites.next_key.authority(job.uid)
            observed = replace(observed, next_request=signing_request(next_authority, job.uid))
        request = due_request(observed)
        if request is None:
            return observed
        try:
            found = await self.cluster.read(request["kind"], job.namespace, request["metadata"]["name"])
        except RefusedError as error:
            return replace(observed, request_obstacle=refusal_of(error))
        return replace(observed, certificate_request=found, request_obstacle=cache.request_obstacle)

    async def _with_published(self, observed: ReconcileInput, cache: JobCache) -> ReconcileInput:
        """The input with the report of a publisher, if this pass reads one."""
        publisher = publisher_to_read(observed)
        if publisher is None or not _may_poll(observed, cache):
            return observed
        tls = _tls(observed, publisher, cache)
        answer = await self.cluster.fetch_report(publisher, UNRESPONSIVE_DEADLINE_S, SHORT_REPORT, tls=tls)
        with contextlib.suppress(ContractError):
            if answer is not None:
                return replace(observed, publisher_report=from_json(PublisherReport, answer))
        return observed

    async def _with_warnings(self, observed: ReconcileInput, cache: JobCache) -> ReconcileInput:
        """The input with the newest Warning events of pods that do not start."""
        pod = cache.to_look_up(unexplained(observed), observed.now)
        if pod is not None:
            warning = None
            # An older chart does not let the operator list events.
            with contextlib.suppress(RefusedError, UnavailableError, BusyError):
                warning = await self.cluster.at(Priority.REGULAR).newest_warning(pod)
            cache.warnings[pod.uid] = observed.now, warning
        found = {uid: warning for uid, (_, warning) in cache.warnings.items() if warning is not None}
        return replace(observed, warnings=found) if found else observed

    async def _with_reports(
        self, observed: ReconcileInput, pods: tuple[PodView, ...], cache: JobCache
    ) -> ReconcileInput:
        """The input with the reports of these pods. A pod without a valid answer is left out.

        All are polled concurrently. The first answers may name members that no longer respond.
        """
        if not _may_poll(observed, cache):
            return observed
        spec, members = observed.job.spec, len(observed.before.members)
        max_bytes = max_report_bytes(max(spec.shards.replicas + spec.trainers.replicas, members))
        # The recorded part of a trainer's reports, sealed with the job's key unless another operator made the key.
        runtime, recorded = observed.before.runtime, to_json(recorded_in(observed.before))
        key = cache.prerequisites.issued(runtime.key_digest) if runtime else None
        sealed = {pod.uid: seal(key, pod.name, recorded) for pod in pods if key and pod.role == env.ROLE_TRAINER}
        async with asyncio.TaskGroup() as group:
            parsing = asyncio.Lock()
            polls = {
                pod.uid: group.create_task(
                    self._report(pod, max_bytes, sealed.get(pod.uid, ""), _tls(observed, pod, cache), parsing)
                )
                for pod in pods
            }
            if polls:
                await asyncio.wait(polls.values(), timeout=UNRESPONSIVE_DEADLINE_S)
            superfluous = set(missed_by_peers(_answered(observed, polls)))
            spares = {pod.uid for pod in pods if pod.role == env.ROLE_SPARE}
            if spares and not spare_is_needed(observed):
                superfluous |= spares
            for uid in superfluous & polls.keys():
                polls[uid].cancel()
        return _answered(observed, polls)

    async def _report(
        self, pod: PodView, max_bytes: int, recorded: str, tls: PodTLS | None, parsing: asyncio.Lock
    ) -> Report | None:
        """One pod's report. Long ones are parsed in a thread, one of a job at a time: they would block other jobs."""
        answer = await self.cluster.fetch_report(pod, REPORT_DEADLINE_S, max_bytes, recorded, tls)
        if answer is None or len(answer) <= SHORT_REPORT:
            return None if answer is None else parse_report(pod, answer)
        async with parsing:
            return await asyncio.to_thread(parse_report, pod, answer)


class InstalledCrd:
    """Checks that the installed CRD is this operator's: under another one no new job starts.

    An older schema would silently drop fields that a user wrote, perhaps a limit. `read` reads the CRD's annotations;
    an answer is valid for `CRD_FRESH_S` by `clock` (seconds).
    """

    def __init__(self, read: Callable[[], Awaitable[Mapping[str, str]]], clock: Callable[[], float]) -> None:
        self._read = read
        self._clock = clock
        self._read_at: float | None = None
        self._gate: AdmissionGate | None = None
        self._reading = asyncio.Lock()

    async def admission_gate(self) -> AdmissionGate | None:
        """Why no new job may start now; None if it may. Concurrent callers share one read."""
        async with self._reading:
            now = self._clock()
            if self._read_at is None or now >= self._read_at + CRD_FRESH_S:
                found = await self._check()
                if found is not None and found != self._gate:
                    logger.warning("no new job starts: %s", found.message)
                self._read_at, self._gate = now, found
            return self._gate

    async def _check(self) -> AdmissionGate | None:
        try:
            annotations = await self._read()
        except ClusterError as error:
            remedy = "the operator retries; its ServiceAccount must be allowed to get the CRD"
            return AdmissionGate("Unknown", "Unknown", f"the CRD cannot be read: {error}; {remedy}")
        installed = annotations.get(HASH_ANNOTATION, "none")
        if installed == schema_hash():
            return None
        text = f"the installed CRD belongs to another release (schema {installed}, not {schema_hash()})"
        return AdmissionGate("True", "SchemaDiffers", f"{text}: upgrade the chart's CRD")


def job_of(view: JobView, *, checked: bool = False) -> Job:
    """The job with spec and status validated, or InvalidSpecError, InvalidStatusError. `checked`: see `parse_spec`."""
    identity = JobId(view.namespace, view.name, view.uid)
    status, spec = parse_status(view.status), parse_spec(view.spec, checked=checked)
    if status.runtime is None:  # Later the model cannot change, and at the limits this takes longer than reading it.
        check_new(spec)
    return Job(identity, view.spec_generation, view.deleting, spec, status, has_finalizer=FINALIZER in view.finalizers)


async def source_jobs_of(cluster: Cluster, job: Job) -> tuple[JobView, ...]:
    """The jobs from which `restoreFrom` of a job that has not started chooses an anchor; with `latestOf` all."""
    restore = job.spec.restore_from
    if restore is None or job.status.start_time is not None:
        return ()
    if restore.latest_of is not None:
        return await cluster.list_jobs((job.id.namespace,))
    with contextlib.suppress(NotFoundError):
        if restore.job is not None:
            return (await cluster.get_job(job.id.namespace, restore.job),)
    return ()


def _may_poll(observed: ReconcileInput, cache: JobCache) -> bool:
    """Return whether the operator has what the job's pods require of it."""
    runtime = observed.before.runtime
    return runtime is None or not runtime.ca or cache.identity is not None


def _tls(observed: ReconcileInput, pod: PodView, cache: JobCache) -> PodTLS | None:
    """How to connect to a pod of an encrypted job; None without encryption."""
    runtime, identity = observed.before.runtime, cache.identity
    return pod_tls(pod, runtime.ca, identity) if runtime and runtime.ca and identity else None


def parse_report(pod: PodView, answer: bytes) -> Report | None:
    """A pod's answer; None if it is not a report of its role."""
    try:
        return from_json(TrainerReport, answer) if pod.role == env.ROLE_TRAINER else from_json(ShardReport, answer)
    except ContractError as error:
        # As text: a log record that keeps the error would keep the whole parsed document.
        logger.warning("%s returned an invalid report: %s", pod.name, str(error))
        return None


def _tables_and_features(spec: Mapping[str, Any]) -> int:
    """The number of both in a spec that is not validated yet."""
    model = spec.get("model")
    lists = (model.get(part) for part in ("tables", "features")) if isinstance(model, Mapping) else ()
    return sum(len(each) for each in lists if isinstance(each, list))


def _answered(observed: ReconcileInput, polls: Mapping[str, asyncio.Task[Report | None]]) -> ReconcileInput:
    """The input with the reports that have arrived so far, by pod uid."""
    done = ((uid, task.result()) for uid, task in polls.items() if task.done() and not task.cancelled())
    reports = {uid: report for uid, report in done if report is not None}
    return replace(observed, reports={**observed.reports, **reports})
