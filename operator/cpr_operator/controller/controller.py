"""The controller: one pass over one job. It lists, asks, decides by `reconcile`, writes the status, then acts.

Killed at any point, the next pass ends in the same place: status is written before anything is done, under the
version that was read; a create is never sent twice under one name; everything else is found lacking and done again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from cpr_contract import env
from cpr_contract.codec import ContractError, from_json
from cpr_contract.limits import longest_report
from cpr_contract.reports import ShardReport, TrainerReport
from cpr_operator.api.status import Status
from cpr_operator.api.validate import InvalidSpecError, InvalidStatusError
from cpr_operator.cluster.protocol import (
    AlreadyExistsError,
    BusyError,
    Cluster,
    ConflictError,
    Event,
    NotFoundError,
    Priority,
    RefusedError,
    TerminatingError,
    UnavailableError,
)
from cpr_operator.cluster.views import JobView, PodView
from cpr_operator.controller.cache import LAST_RETRY_S, JobCache
from cpr_operator.controller.finalizer import kept_for_others, release, set_finalizer
from cpr_operator.controller.prerequisites import PrerequisiteWriter
from cpr_operator.controller.priority import all_seen, pause_s, request_priority, status_priority, wake_s
from cpr_operator.controller.quota import change_workload, queue_of
from cpr_operator.controller.reader import read_job, source_jobs_of
from cpr_operator.controller.roster_delivery import sealer, send_rosters, write_recorded, write_rosters
from cpr_operator.desired.guards import Peers
from cpr_operator.desired.template import Restriction
from cpr_operator.reconcile import (
    AdmissionGate,
    Job,
    Outcome,
    ReconcileInput,
    Report,
    Timing,
    first_round,
    missed_by_peers,
    reconcile,
    refuse_pods,
    second_round,
    spare_is_needed,
    suspects,
)
from cpr_operator.reconcile.conditions import ConditionUpdate, amended
from cpr_operator.reconcile.deletion import FINALIZER, left_by
from cpr_operator.reconcile.observe import leader_report, unexplained, unreported_ends
from cpr_operator.reconcile.types import EventReason

logger = logging.getLogger(__name__)

#: A pod has so long to answer for its report, and one that others call silent so long: most likely it never answers.
REPORT_DEADLINE_S, SILENT_DEADLINE_S = 2.0, 0.5
#: Decisions over so many pods take a few milliseconds (benchmarks/scripts/passes.py): no more than handing them over.
FEW_PODS = 64
#: The same of so many ranges of lost samples, and of a report of so many bytes.
FEW_RANGES, SHORT_REPORT = 1024, 16 << 10
#: After a conflict the pass is run again at once.
AGAIN_S = 0.1
#: A regular pass for which the API server has no room is put off so long.
BUSY_S = 1.0


class Controller:
    """Runs passes over jobs.

    `admission_gate` returns why no new job may start (None: they may); `restart_rules` returns whether the cluster
    restarts containers in their pods (None: it does not); `on_deleted` is told of a job that is not there any more;
    `peers` may reach the pods' HTTP port, everybody if None; `restriction` is what pod templates may say, anything if
    None; `kueue` says whether jobs may stand in queues of Kueue, and None that there are none; `new_key` makes a job's
    handshake key; `rng` spreads over time what need not be done at once.
    """

    def __init__(  # noqa: PLR0913 -- one cluster, one clock, and what differs between their users
        self,
        cluster: Cluster,
        clock: Callable[[], float],
        *,
        admission_gate: Callable[[], Awaitable[AdmissionGate | None]] | None = None,
        restart_rules: Callable[[], Awaitable[bool]] | None = None,
        on_deleted: Callable[[str, str], None] = lambda *_: None,
        timing: Timing | None = None,
        peers: Peers | None = None,
        restriction: Restriction | None = None,
        kueue: bool | None = None,
        new_key: Callable[[], str] = lambda: secrets.token_hex(32),
        rng: random.Random | None = None,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._admission_gate = admission_gate
        self._restart_rules = restart_rules
        self._on_deleted = on_deleted
        self._timing = timing or Timing()
        self._restriction = restriction
        self._kueue = kueue
        self._rng = rng or random.Random()
        self._guarding = PrerequisiteWriter(clock, peers, new_key, self._rng)
        self._memories: dict[tuple[str, str], JobCache] = {}
        self._regular: set[tuple[str, str]] = set()  # the jobs that trained on at their last pass

    def on_pod_event(self, namespace: str, name: str, pod: PodView) -> None:
        """Record a pod that a watch saw. If it has ended, its termination message is kept.

        Losing the message is safe: an unseen flush is reserved as a loss until the replacement reports.
        """
        self._memory((namespace, name)).on_pod_event(pod)

    def on_running(self, namespace: str, name: str) -> None:
        """Record that a job trains, as a watch lists it. The first pass over it is a regular one, then."""
        if (namespace, name) not in self._memories:
            self._memory((namespace, name)).priority = Priority.REGULAR
            self._regular.add((namespace, name))

    async def run_pass(self, namespace: str, name: str) -> float | None:
        """One pass; returns after how many seconds the next one is due, None if the job needs no more.

        Raises UnavailableError if the cluster cannot be asked: the next pass takes up where this one stopped.
        """
        memory = self._memory((namespace, name))
        try:
            # Of a job that trained on at the last pass. What the pass finds is written under the version that it read.
            cached = memory.priority is Priority.REGULAR
            view = await self._cluster.at(memory.reading).get_job(namespace, name, cached=cached)
            return await self._pass(view, memory)
        except BusyError:
            return BUSY_S
        except NotFoundError:
            self._memories.pop((namespace, name), None)
            self._regular.discard((namespace, name))
            self._on_deleted(namespace, name)
            return None
        except ConflictError:
            return AGAIN_S

    async def _pass(self, view: JobView, memory: JobCache) -> float | None:
        job = await self._read(view, memory)
        if job is None:
            return self._timing.running_s
        view, job = await set_finalizer(self._cluster, view, job)
        first = memory.watched_since is None
        listed = await self._list(view, job, memory)
        observed = ReconcileInput(
            job=job,
            pods=memory.own_pods(view, listed, self._clock()),
            reports={},
            now=self._clock(),
            refusals=memory.refusals | memory.prerequisites.refusals,
            admission_gate=await self._admission_gate()
            if self._admission_gate and job.status.start_time is None
            else None,
            kept_anchors=await kept_for_others(self._cluster, job),
            terminating=memory.terminating or memory.prerequisites.terminating,
            key_digest=memory.prerequisites.digest,
            restriction=self._restriction,
            source_jobs=await source_jobs_of(self._cluster, job),
            queue=await queue_of(self._cluster, view, job, enabled=self._kueue, refused=memory.workload_refused),
            restart_rules=await self._begins_containers_again(job),
            leader_unresponsive=memory.leader_unresponsive,
            watched_s=memory.watched_s(self._clock(), self._timing.running_s),
            timing=self._timing,
        )
        observed = await self._explain(observed, memory)
        observed = await self._ask(observed, first_round(observed), memory)
        observed = await self._ask(observed, second_round(observed), memory)
        observed = await self._probe(observed, suspects(observed))
        memory.leader_unresponsive = leader_report(observed) is None
        observed = replace(observed, ending=memory.ending(unreported_ends(observed), observed.now))
        outcome = await decide(observed)
        if await self._guarding.key_is_lost(self._at(job, outcome), job.id, outcome, memory.prerequisites):
            outcome = await decide(replace(observed, key_lost=True))
        if words := await self._guarding.refusal(self._cluster, job, outcome):
            outcome = refuse_pods(observed, "CreateRefused", words)
        memory.priority = request_priority(job.status, outcome)
        self._count(view, memory)
        written = await self._write(view, job.status, outcome, memory)
        memory.forget_ended(listed, job.status, outcome.status)
        await self._guarding.keep(self._at(job, outcome), job.id, outcome, listed, memory.prerequisites)
        await self._act(written, observed, outcome, memory)
        if memory.refusals:
            return min(outcome.wake_after_s or LAST_RETRY_S, max(memory.retry_at - self._clock(), AGAIN_S))
        wanted_s = outcome.wake_after_s
        if wanted_s is None:
            return None
        until_s = wake_s(wanted_s, memory.priority, len(self._regular))
        # The first passes come together, those after them are not to.
        return self._rng.uniform(wanted_s, until_s) if first else until_s

    async def _begins_containers_again(self, job: Job) -> bool:
        """Whether the cluster does, as far as it matters: the job may start, or resume."""
        if self._restart_rules is None or job.status.phase not in {"Pending", "Suspended"}:
            return False
        return await self._restart_rules()

    def _count(self, view: JobView, memory: JobCache) -> None:
        """Note whether the job trains on. What was read of such a job is not kept: its next pass is far off."""
        if memory.priority is Priority.REGULAR:
            self._regular.add((view.namespace, view.name))
            memory.job = None
        else:
            self._regular.discard((view.namespace, view.name))

    async def _read(self, view: JobView, memory: JobCache) -> Job | None:
        """The job as the core reads it; None, with a condition, if it cannot be read: its pods are left alone then."""
        version = (view.uid, view.resource_version)
        # A version never changes, and most passes find the one of the pass before.
        if memory.job is not None and memory.read_version == version:
            return memory.job
        try:
            memory.job, memory.read_version = await read_job(view, memory), version
        except InvalidSpecError as error:
            await self._tell_unreadable(view, "InvalidSpec", f"{error}; correct spec, or create the job again")
        except InvalidStatusError as error:
            remedy = "run the version of the operator that wrote it, or undo the edit (--subresource=status)"
            await self._tell_unreadable(view, "InvalidStatus", f"{error}; {remedy}")
        else:
            return memory.job
        return None

    async def _tell_unreadable(self, view: JobView, reason: str, message: str) -> None:
        """A condition; or of a job that is being deleted an event that names its saves, and it may go."""
        if view.deleting:
            if FINALIZER in view.finalizers:
                await self._emit(self._cluster, view, left_by(view, f"the job cannot be read: {message}"))
                await release(self._cluster, view)
            return
        finding = ConditionUpdate("PodsReady", "False", reason, message)
        after = amended(view.status, view.spec_generation, self._clock(), finding)
        if after["conditions"] == view.status.get("conditions"):
            return
        try:
            view = await self._cluster.write_status(view, after)
        except RefusedError as error:  # the installed CRD does not know this status either
            logger.warning("%s: condition rejected: %s", view.name, error)
        await self._emit(
            self._cluster, view, Event("Warning", EventReason.INVALID, message, f"invalid-{view.spec_generation}")
        )

    async def _list(self, view: JobView, job: Job, memory: JobCache) -> tuple[PodView, ...]:
        """The job's pods: from the server's cache while nothing points to a change, else as they are."""
        urgency, events = memory.reading, memory.events
        if urgency is Priority.REGULAR and not job.deleting and not job.spec.suspend:
            listed = await self._cluster.at(urgency).list_pods(view, cached=True)
            if all_seen(job.status, listed):
                return listed
            urgency = Priority.RECOVERY
        listed = await self._cluster.at(min(urgency, Priority.BEGIN)).list_pods(view)
        memory.listed = events
        return listed

    def _at(self, job: Job, outcome: Outcome) -> Cluster:
        return self._cluster.at(request_priority(job.status, outcome))

    async def _ask(self, observed: ReconcileInput, pods: tuple[PodView, ...], memory: JobCache) -> ReconcileInput:
        """The input with the reports of these pods. A pod that does not answer with one is left out.

        All are asked side by side. Those who answer first may be the ones who call others silent.
        """
        spec, known = observed.job.spec, len(observed.before.members)
        max_bytes = longest_report(max(spec.shards.replicas + spec.trainers.replicas, known))
        recorded_for = sealer(observed, memory.prerequisites)
        async with asyncio.TaskGroup() as group:
            reading = asyncio.Lock()
            reports = {pod.uid: self._report(pod, max_bytes, recorded_for(pod), reading) for pod in pods}
            asked = {uid: group.create_task(report) for uid, report in reports.items()}
            if asked:
                await asyncio.wait(asked.values(), timeout=SILENT_DEADLINE_S)
            hopeless = set(missed_by_peers(heard(observed, asked)))
            spares = {pod.uid for pod in pods if pod.role == env.ROLE_SPARE}
            if spares and not spare_is_needed(observed):
                hopeless |= spares
            for uid in hopeless & asked.keys():
                asked[uid].cancel()
        return heard(observed, asked)

    async def _explain(self, observed: ReconcileInput, memory: JobCache) -> ReconcileInput:
        """The input with the newest Warning events of pods that do not start. Nothing else depends on them."""
        pod = memory.to_look_up(unexplained(observed), observed.now)
        if pod is not None:
            warning = None
            # An older chart does not let the operator list events.
            with contextlib.suppress(RefusedError, UnavailableError, BusyError):
                warning = await self._cluster.at(Priority.REGULAR).newest_warning(pod)
            memory.warnings[pod.uid] = observed.now, warning
        found = {uid: warning for uid, (_, warning) in memory.warnings.items() if warning is not None}
        return replace(observed, warnings=found) if found else observed

    async def _probe(self, observed: ReconcileInput, pods: tuple[PodView, ...]) -> ReconcileInput:
        """The input with the node of these pods as lost, if none of them can be reached."""
        if any(await asyncio.gather(*(self._cluster.reaches(pod) for pod in pods))):
            return observed
        return replace(observed, lost_node=pods[0].node if pods else "")

    async def _report(self, pod: PodView, max_bytes: int, recorded: str, reading: asyncio.Lock) -> Report | None:
        """One pod's report, read as it comes in: reading those of a large job in one go would hold up all others.

        Long ones are read in a thread, one of a job at a time.
        """
        answer = await self._cluster.fetch_report(pod, REPORT_DEADLINE_S, max_bytes, recorded)
        if answer is None or len(answer) <= SHORT_REPORT:
            return None if answer is None else read_report(pod, answer)
        async with reading:
            return await asyncio.to_thread(read_report, pod, answer)

    async def _write(self, view: JobView, before: Status, outcome: Outcome, memory: JobCache) -> JobView:
        """Write the status, if it changed. Raises ConflictError: then nothing of the outcome is done."""
        after, now = outcome.status, self._clock()
        if after == before:
            return view
        pause = pause_s(before, after, memory.priority, self._timing.progress_s, len(self._regular))
        # An operator before this one may have written them lately, unless its clock was ahead.
        updated = before.progress.updated or 0.0
        if now < memory.written_at + pause or 0.0 <= now - updated < pause:
            return view
        cluster = self._cluster.at(status_priority(before, memory.priority))
        try:
            written = await cluster.write_status(view, after.to_dict())
        except BusyError:  # nothing else is to be done, so the next pass finds all of it again
            return view
        memory.written_at = now
        return written

    async def _act(self, view: JobView, observed: ReconcileInput, outcome: Outcome, memory: JobCache) -> None:
        cluster, job = self._cluster.at(memory.priority), observed.job
        if any(patch.labels for patch in outcome.rosters):  # a spare takes a place
            await send_rosters(cluster, observed, outcome, memory.prerequisites)
        if outcome.creates and self._clock() >= memory.retry_at:
            await self._create(cluster, outcome, memory)
        for delete in outcome.deletes:
            logger.info("%s: delete %s: %s", job.id.name, delete.name, delete.reason)
            await cluster.delete_pod(job.id.namespace, delete.name, delete.uid, delete.grace_s)
        rosters_at = self._cluster.at(max(memory.priority, Priority.ROSTER))
        await write_rosters(rosters_at, job.id, outcome.rosters)
        await write_recorded(rosters_at, observed, outcome.status, memory)
        for event in outcome.events:
            await self._emit(cluster, view, event)
        if outcome.delete_job:
            await cluster.delete_job(view)
        if outcome.release:
            await release(cluster, view)
        # Last, because Kueue may be away: its webhook answers for the API server.
        memory.workload_refused = await change_workload(cluster, job, outcome)

    async def _emit(self, cluster: Cluster, view: JobView, event: Event) -> None:
        logger.info("%s: %s: %s", view.name, event.reason, event.message)
        try:
            await cluster.emit(view, event)
        except RefusedError as error:  # of a namespace that is being deleted, perhaps: the log has it
            logger.warning("%s: event rejected: %s", view.name, error)

    async def _create(self, cluster: Cluster, outcome: Outcome, memory: JobCache) -> None:
        """Create pods. What exists by that name is seen by the next pass; what is refused is tried again later."""
        refused: dict[str, str] = {}
        for manifest in outcome.creates:
            name = manifest["metadata"]["name"]
            if memory.prerequisites.blocked and outcome.needs_prerequisites:
                refused[name] = memory.prerequisites.blocked
                continue
            try:
                await cluster.create_pod(manifest)
            except AlreadyExistsError:
                logger.info("%s exists", name)
            except RefusedError as error:
                refused[name] = str(error)
                memory.terminating = isinstance(error, TerminatingError)
        memory.were_refused(refused, self._clock())

    def _memory(self, key: tuple[str, str]) -> JobCache:
        if key not in self._memories:
            self._memories[key] = JobCache(self._guarding.begin())
        return self._memories[key]


async def decide(observed: ReconcileInput) -> Outcome:
    """`reconcile`. Over a large job it takes a while, so it runs in a thread: other jobs' polls and probes go on."""
    spec, ranges = observed.job.spec, sum(len(report.lost) for report in observed.reports.values())
    pods = max(len(observed.pods), spec.shards.replicas + spec.trainers.replicas)
    if pods <= FEW_PODS and ranges <= FEW_RANGES:
        return reconcile(observed)
    return await asyncio.to_thread(reconcile, observed)


def heard(observed: ReconcileInput, asked: Mapping[str, asyncio.Task[Report | None]]) -> ReconcileInput:
    """The input with the reports that have come in by now, by pod uid."""
    came = ((uid, task.result()) for uid, task in asked.items() if task.done() and not task.cancelled())
    return replace(
        observed, reports={**observed.reports, **{uid: report for uid, report in came if report is not None}}
    )


def read_report(pod: PodView, answer: bytes) -> Report | None:
    """A pod's answer; None if it is not a report of its role."""
    try:
        return from_json(TrainerReport, answer) if pod.role == env.ROLE_TRAINER else from_json(ShardReport, answer)
    except ContractError as error:
        # As text: where a log keeps its records, the error would keep all that was parsed.
        logger.warning("%s returned an invalid report: %s", pod.name, str(error))
        return None
