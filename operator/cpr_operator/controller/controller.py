"""A pass over one job in three blocks: read the cluster, decide by `reconcile`, write the outcome.

A pass is idempotent: a crash at any point leaves the next pass the same work. The status is written first, under the
version that was read; no pod's name is used for a second create.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace

from cpr_contract.choices import Encryption
from cpr_operator.api.cprjob_spec import IssuerRef
from cpr_operator.api.status import Status
from cpr_operator.cluster.certificates import KeyPair
from cpr_operator.cluster.identity import OperatorIdentity, in_memory
from cpr_operator.cluster.protocol import BusyError, Cluster, ConflictError, NotFoundError, Priority
from cpr_operator.cluster.views import JobView, PodView
from cpr_operator.controller.cache import LAST_RETRY_S, JobCache
from cpr_operator.controller.job_reader import JobReader, UnreadableJobError
from cpr_operator.controller.job_writer import JobWriter, pod_refusal
from cpr_operator.controller.prerequisites import PrerequisiteWriter
from cpr_operator.controller.priority import request_priority, wake_after_s
from cpr_operator.desired.job_objects import IngressSources
from cpr_operator.desired.template import Restriction
from cpr_operator.desired.workload import MULTIKUEUE
from cpr_operator.reconcile import AdmissionGate, Job, Outcome, ReconcileInput, Timing, reconcile, refuse_pods
from cpr_operator.reconcile.dispatch import dispatch

#: Decisions over at most this number of pods and of ranges of lost samples take a few milliseconds
#: (`cprjob bench scale --curve passes`): no more than handing them over to a thread.
FEW_PODS, FEW_RANGES = 64, 1024
#: Seconds until a pass that met a conflict is repeated.
CONFLICT_RETRY_S = 0.1
#: Seconds until a regular pass is repeated for which the API server has no capacity.
BUSY_RETRY_S = 1.0

#: Called with what a pass has read, and the status that it has written.
OnWritten = Callable[[ReconcileInput, Status], None]


class Controller:
    """Runs passes over jobs.

    admission_gate: returns why no new job may start; None: they may.
    restart_rules: returns whether the cluster restarts containers in their pods; without it, it does not.
    pod_groups: returns whether the cluster has PodGroups; without it, it has none.
    on_deleted: called with the namespace and name of a job that does not exist any more.
    on_written: called after each write of a status. It must not block.
    sources: may reach the pods' HTTP port; None: every pod of the cluster.
    restriction: limits pod templates; None: no limits.
    kueue: whether jobs may stand in queues of Kueue; None: there are none.
    records: whether pods put records of jobs into their stores.
    new_key: makes a job's handshake key.
    encryption, issuer: those of jobs that state none.
    identity: returns the operator's for encrypted jobs; without it, one that ends with the process.
    rng: spreads work over time.
    """

    def __init__(  # noqa: PLR0913 -- one cluster, one clock, and what differs between their users
        self,
        cluster: Cluster,
        clock: Callable[[], float],
        *,
        admission_gate: Callable[[], Awaitable[AdmissionGate | None]] | None = None,
        restart_rules: Callable[[], Awaitable[bool]] | None = None,
        pod_groups: Callable[[], Awaitable[bool]] | None = None,
        on_deleted: Callable[[str, str], None] = lambda *_: None,
        on_written: OnWritten = lambda *_: None,
        timing: Timing | None = None,
        sources: IngressSources | None = None,
        restriction: Restriction | None = None,
        kueue: bool | None = None,
        records: bool = False,
        new_key: Callable[[], str] = lambda: secrets.token_hex(32),
        encryption: Encryption = "None",
        issuer: IssuerRef | None = None,
        identity: Callable[[], Awaitable[KeyPair]] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._on_deleted = on_deleted
        self._on_written = on_written
        self._timing = timing or Timing()
        self._rng = rng or random.Random()
        identity = identity or OperatorIdentity(in_memory, clock).get
        self._reader = JobReader(
            cluster,
            clock,
            self._timing,
            admission_gate,
            restart_rules,
            pod_groups,
            restriction,
            kueue,
            records,
            encryption,
            issuer,
            identity,
        )
        self._writer = JobWriter(cluster, clock, self._timing.progress_s)
        self._prerequisites = PrerequisiteWriter(clock, sources, new_key, identity, self._rng)
        self._caches: dict[tuple[str, str], JobCache] = {}
        self._training: set[tuple[str, str]] = set()  # jobs without effects and changes at their last pass

    def on_pod_event(self, namespace: str, name: str, pod: PodView) -> None:
        """Record a pod event of a watch, with the termination message of an ended pod.

        Losing the message is safe: an unseen flush is reserved as a loss until the replacement reports.
        """
        self._cache((namespace, name)).on_pod_event(pod)

    def on_running(self, namespace: str, name: str) -> None:
        """Record a listed job in phase Running, so that the first pass over it is a regular one."""
        if (namespace, name) not in self._caches:
            self._cache((namespace, name)).priority = Priority.REGULAR
            self._training.add((namespace, name))

    async def run_pass(self, namespace: str, name: str) -> float | None:
        """One pass. Returns the seconds until the next one is due, None if the job needs no more.

        Raises UnavailableError if the cluster does not answer; the next pass continues.
        """
        key = (namespace, name)
        cache = self._cache(key)
        try:
            # Steady-state jobs may be read from a cache; the status write still uses the version read here.
            cached = cache.priority is Priority.REGULAR
            view = await self._cluster.at(cache.read_priority).get_job(namespace, name, cached=cached)
            return await self._pass(key, view, cache)
        except BusyError:
            return BUSY_RETRY_S
        except NotFoundError:
            self._caches.pop(key, None)
            self._training.discard(key)
            self._on_deleted(namespace, name)
            return None
        except ConflictError:
            return CONFLICT_RETRY_S

    async def _pass(self, key: tuple[str, str], view: JobView, cache: JobCache) -> float | None:
        # Read: the job, its pods, their reports.
        dispatched = self._reader.kueue is not None and view.spec.get("managedBy") == MULTIKUEUE
        try:
            job = await self._reader.parse_job(view, cache)
        except UnreadableJobError as error:
            if not dispatched or "startTime" not in view.status:  # then the status is another cluster's
                await self._writer.report_unreadable(view, error)
            return self._timing.running_s
        if dispatched:
            return await self._dispatch(view, job, cache)
        view, job = await self._writer.sync_finalizer(view, job)
        is_first = cache.watched_since is None
        listed = await self._reader.list_pods(view, job, cache)
        observed = await self._reader.observe(view, job, listed, cache)

        # Decide: again if the job's key is lost, and refuse a start if the server refuses the pods.
        outcome = await decide(observed)
        cluster = self._cluster.at(request_priority(job.status, outcome))
        if await self._prerequisites.key_is_lost(cluster, job.id, outcome, cache.prerequisites):
            outcome = await decide(replace(observed, key_lost=True))
        if refusal := await pod_refusal(self._cluster, job, outcome, cache):
            outcome = refuse_pods(observed, "CreateRefused", refusal)

        # Write: the status first, then what pods need, then pods, rosters and events.
        cache.priority = request_priority(job.status, outcome)
        if cache.priority is Priority.REGULAR:
            self._training.add(key)
            cache.job = None  # the next pass of such a job is far off
        else:
            self._training.discard(key)
        written = await self._writer.write_status(view, job.status, outcome, cache, len(self._training))
        if written is not view:
            self._on_written(observed, outcome.status)
        view = written
        cache.forget_ended(listed, job.status, outcome.status)
        cluster = self._cluster.at(cache.priority)
        await self._prerequisites.write(cluster, job, outcome, listed, cache.prerequisites)
        await self._writer.write_effects(view, observed, outcome, cache)
        await self._writer.write_record(observed, outcome, cache, len(self._training))
        return self._wake_after_s(outcome, cache, is_first=is_first)

    async def _dispatch(self, view: JobView, job: Job, cache: JobCache) -> float | None:
        """A pass over a job that another cluster runs."""
        self._training.discard((view.namespace, view.name))
        observed = await self._reader.observe_queue(view, job, cache)
        outcome = dispatch(observed)
        view = await self._writer.write_status(view, job.status, outcome, cache, len(self._training))
        await self._writer.write_effects(view, observed, outcome, cache)
        return outcome.wake_after_s

    def _wake_after_s(self, outcome: Outcome, cache: JobCache, *, is_first: bool) -> float | None:
        requested_s = outcome.wake_after_s
        if cache.refusals:
            return min(requested_s or LAST_RETRY_S, max(cache.retry_at - self._clock(), CONFLICT_RETRY_S))
        if requested_s is None:
            return None
        until_s = wake_after_s(requested_s, cache.priority, len(self._training))
        # First passes run together after a start; this spreads those that follow.
        return self._rng.uniform(requested_s, until_s) if is_first else until_s

    def _cache(self, key: tuple[str, str]) -> JobCache:
        if key not in self._caches:
            self._caches[key] = JobCache(self._prerequisites.begin())
        return self._caches[key]


async def decide(observed: ReconcileInput) -> Outcome:
    """`reconcile`, for a large job in a thread: it would block the polls and probes of other jobs."""
    spec, ranges = observed.job.spec, sum(len(report.lost) for report in observed.reports.values())
    pods = max(len(observed.pods), spec.shards.replicas + spec.trainers.replicas)
    if pods <= FEW_PODS and ranges <= FEW_RANGES:
        return reconcile(observed)
    return await asyncio.to_thread(reconcile, observed)
