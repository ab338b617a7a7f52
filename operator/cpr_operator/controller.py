"""The controller: one pass over one job. It lists, asks, decides by `reconcile`, writes the status, then acts.

Killed at any point, the next pass ends in the same place: status is written before anything is done, under the
version that was read; a create is never sent twice under one name; everything else is found lacking and done again.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

from cpr_contract.codec import ContractError, from_json
from cpr_contract.reports import ShardReport, TrainerReport
from cpr_operator.api.status import Status
from cpr_operator.api.validate import InvalidSpecError, InvalidStatusError, parse_spec, parse_status
from cpr_operator.cluster.protocol import (
    AlreadyExistsError,
    Cluster,
    ConflictError,
    Event,
    NotFoundError,
    RefusedError,
    TerminatingError,
)
from cpr_operator.cluster.views import JobView, PodView
from cpr_operator.desired.guards import Peers
from cpr_operator.desired.names import JobId
from cpr_operator.desired.restriction import Restriction
from cpr_operator.finalizer import hold, release, spared_by
from cpr_operator.guarding import Guarded, Guarding
from cpr_operator.reconcile import (
    Hold,
    Job,
    Outcome,
    Report,
    Timing,
    World,
    first_round,
    held_back,
    reconcile,
    second_round,
)
from cpr_operator.reconcile.conditions import Finding, amended
from cpr_operator.reconcile.deletion import FINALIZER, left_by
from cpr_operator.reconcile.world import EventReason

logger = logging.getLogger(__name__)

#: A pod has so long to answer for its report.
REPORT_DEADLINE_S = 2.0
#: After a conflict the pass is run again at once.
AGAIN_S = 0.1
#: A refused create is tried again after so long, doubling up to the last.
FIRST_RETRY_S, LAST_RETRY_S = 5.0, 60.0
#: Passes that are further apart than so many times what is usual leave a gap: the operator was away.
GAP = 3
#: The last words of so many pods are kept per job.
MAX_LAST_WORDS = 2048

#: Fields that change all the time: alone they are written only every `Timing.progress_s`.
VOLATILE = frozenset({"progress", "shown", "overhead", "policy"})


@dataclass(slots=True)
class _Memory:
    """What may be forgotten at any time, per job: a restart of the operator starts with none of it."""

    guarded: Guarded
    refusals: dict[str, str] = field(default_factory=dict)
    retry_at: float = 0.0
    retry_s: float = FIRST_RETRY_S
    last_words: dict[str, PodView] = field(default_factory=dict)
    progress_at: float = 0.0
    watched_since: float | None = None
    looked_at: float = 0.0
    terminating: bool = False


class Controller:
    """Runs passes over jobs.

    `hold` tells why no new job may start (None: they may); `gone` is told of a job that is not there any more;
    `peers` may reach the pods' HTTP port, everybody if None; `restriction` is what pod templates may say, anything if
    None; `new_key` makes a job's handshake key.
    """

    def __init__(  # noqa: PLR0913 -- one cluster, one clock, and what differs between their users
        self,
        cluster: Cluster,
        clock: Callable[[], float],
        *,
        hold: Callable[[], Awaitable[Hold | None]] | None = None,
        gone: Callable[[str, str], None] = lambda *_: None,
        timing: Timing | None = None,
        peers: Peers | None = None,
        restriction: Restriction | None = None,
        new_key: Callable[[], str] = lambda: secrets.token_hex(32),
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._hold = hold
        self._gone = gone
        self._timing = timing or Timing()
        self._restriction = restriction
        self._guarding = Guarding(cluster, clock, peers, new_key)
        self._memories: dict[tuple[str, str], _Memory] = {}

    def saw(self, namespace: str, name: str, pod: PodView) -> None:
        """A watch saw this pod of the job; if it has ended, its last words count, gone or not.

        Without them nothing goes wrong: a flush that nobody saw is reserved as a loss, until its successor tells.
        """
        words = self._memory((namespace, name)).last_words
        if pod.ended and len(words) < MAX_LAST_WORDS:
            words[pod.uid] = pod

    async def run_pass(self, namespace: str, name: str) -> float | None:
        """One pass; returns after how many seconds the next one is due, None if the job needs no more.

        Raises UnavailableError if the cluster cannot be asked: the next pass takes up where this one stopped.
        """
        try:
            view = await self._cluster.get_job(namespace, name)
            return await self._pass(view, self._memory((namespace, name)))
        except NotFoundError:
            self._memories.pop((namespace, name), None)
            self._gone(namespace, name)
            return None
        except ConflictError:
            return AGAIN_S

    async def _pass(self, view: JobView, memory: _Memory) -> float | None:
        job = await self._read(view)
        if job is None:
            return self._timing.running_s
        view, job = await hold(self._cluster, view, job)
        listed = await self._cluster.list_pods(view)
        world = World(
            job=job,
            pods=_own_pods(view, listed, memory),
            reports={},
            now=self._clock(),
            refusals=memory.refusals | memory.guarded.refusals,
            hold=await self._hold() if self._hold and job.status.start_time is None else None,
            spared=await spared_by(self._cluster, job),
            terminating=memory.terminating or memory.guarded.terminating,
            key_digest=memory.guarded.digest,
            restriction=self._restriction,
            watched_s=self._watched_s(memory),
            timing=self._timing,
        )
        world = await self._ask(world, first_round(world))
        world = await self._ask(world, second_round(world))
        # In a thread: the decision over a large job takes a while, in which other jobs' polls and probes go on.
        outcome = await asyncio.to_thread(reconcile, world)
        if await self._guarding.key_is_lost(job.id, outcome, memory.guarded):
            outcome = await asyncio.to_thread(reconcile, replace(world, key_lost=True))
        if words := await self._guarding.refusal(job, outcome):
            outcome = held_back(world, "CreateRefused", words)
        written = await self._write(view, job.status, outcome, memory)
        _forget_words(memory, listed, outcome.status)
        await self._guarding.keep(job.id, outcome, listed, memory.guarded)
        await self._act(written, job, outcome, memory)
        if memory.refusals:
            return min(outcome.wake_after_s or LAST_RETRY_S, max(memory.retry_at - self._clock(), AGAIN_S))
        return outcome.wake_after_s

    async def _read(self, view: JobView) -> Job | None:
        """The job as the core reads it; None, with a condition, if it cannot be read: its pods are left alone then."""
        identity = JobId(view.namespace, view.name, view.uid)
        try:
            status, spec = parse_status(view.status), parse_spec(view.spec)
            return Job(identity, view.generation, view.deleting, spec, status, held=FINALIZER in view.finalizers)
        except InvalidSpecError as error:
            await self._tell_unreadable(view, "InvalidSpec", f"{error}; correct spec, or create the job anew")
        except InvalidStatusError as error:
            remedy = "run the version of the operator that wrote it, or undo the edit (--subresource=status)"
            await self._tell_unreadable(view, "InvalidStatus", f"{error}; {remedy}")
        return None

    async def _tell_unreadable(self, view: JobView, reason: str, message: str) -> None:
        """A condition; or of a job that is being deleted an event that names its saves, and it may go."""
        if view.deleting:
            if FINALIZER in view.finalizers:
                await self._emit(view, left_by(view, f"the job cannot be read: {message}"))
                await release(self._cluster, view)
            return
        finding = Finding("PodsReady", "False", reason, message)
        after = amended(view.status, view.generation, self._clock(), finding)
        if after["conditions"] == view.status.get("conditions"):
            return
        try:
            view = await self._cluster.write_status(view, after)
        except RefusedError as error:  # the installed CRD does not know this status either
            logger.warning("%s: the condition is refused: %s", view.name, error)
        await self._emit(view, Event("Warning", EventReason.INVALID, message, f"invalid-{view.generation}"))

    def _watched_s(self, memory: _Memory) -> float:
        """How long passes over this job have followed each other as they should."""
        now = self._clock()
        if memory.watched_since is None or now > memory.looked_at + GAP * self._timing.running_s:
            memory.watched_since = now
        memory.looked_at = now
        return now - memory.watched_since

    async def _ask(self, world: World, pods: tuple[PodView, ...]) -> World:
        """The world with the answers of these pods; one that does not answer, or not in our words, is left out."""
        answers = await asyncio.gather(*(self._report(pod) for pod in pods))
        reports = {pod.uid: report for pod, report in zip(pods, answers, strict=True) if report is not None}
        return replace(world, reports={**world.reports, **reports})

    async def _report(self, pod: PodView) -> Report | None:
        """One pod's report, read as it comes in: reading those of a large job in one go would hold up all others."""
        answer = await self._cluster.fetch_report(pod, REPORT_DEADLINE_S)
        return None if answer is None else read_report(pod, answer)

    async def _write(self, view: JobView, before: Status, outcome: Outcome, memory: _Memory) -> JobView:
        """Write the status, if it changed. Raises ConflictError: then nothing of the outcome is done."""
        after, now = outcome.status, self._clock()
        if after == before:
            return view
        if now < memory.progress_at + self._timing.progress_s and _lasting(after) == _lasting(before):
            return view
        memory.progress_at = now
        return await self._cluster.write_status(view, after.to_dict())

    async def _act(self, view: JobView, job: Job, outcome: Outcome, memory: _Memory) -> None:
        if outcome.creates and self._clock() >= memory.retry_at:
            await self._create(outcome, memory)
        for delete in outcome.deletes:
            logger.info("%s: delete %s: %s", job.id.name, delete.name, delete.reason)
            await self._cluster.delete_pod(job.id.namespace, delete.name, delete.uid, delete.grace_s)
        for patch in outcome.rosters:
            try:
                await self._cluster.annotate_pod(job.id.namespace, patch.name, patch.uid, patch.annotations)
            except NotFoundError:
                logger.info("%s: %s is gone before it was told", job.id.name, patch.name)
        for event in outcome.events:
            await self._emit(view, event)
        if outcome.delete_job:
            await self._cluster.delete_job(view)
        if outcome.release:
            await release(self._cluster, view)

    async def _emit(self, view: JobView, event: Event) -> None:
        logger.info("%s: %s: %s", view.name, event.reason, event.message)
        try:
            await self._cluster.emit(view, event)
        except RefusedError as error:  # of a namespace that is being deleted, perhaps: the log has it
            logger.warning("%s: the event is refused: %s", view.name, error)

    async def _create(self, outcome: Outcome, memory: _Memory) -> None:
        """Create pods. What exists by that name is seen by the next pass; what is refused is tried again later."""
        refused: dict[str, str] = {}
        for manifest in outcome.creates:
            name = manifest["metadata"]["name"]
            if memory.guarded.blocked and outcome.guarded:
                refused[name] = memory.guarded.blocked
                continue
            try:
                await self._cluster.create_pod(manifest)
            except AlreadyExistsError:
                logger.info("%s exists", name)
            except RefusedError as error:
                refused[name] = str(error)
                memory.terminating = isinstance(error, TerminatingError)
        memory.refusals = refused
        memory.retry_s = min(2 * memory.retry_s, LAST_RETRY_S) if refused else FIRST_RETRY_S
        memory.retry_at = self._clock() + memory.retry_s if refused else 0.0

    def _memory(self, key: tuple[str, str]) -> _Memory:
        if key not in self._memories:
            self._memories[key] = _Memory(self._guarding.begin())
        return self._memories[key]


def read_report(pod: PodView, answer: bytes) -> Report | None:
    """A pod's answer; None if it is not a report of its role."""
    try:
        return from_json(ShardReport, answer) if pod.role == "shard" else from_json(TrainerReport, answer)
    except ContractError as error:
        logger.warning("%s answers what is no report: %s", pod.name, error)
        return None


def _own_pods(view: JobView, listed: tuple[PodView, ...], memory: _Memory) -> tuple[PodView, ...]:
    """This job's pods, and those that are gone but left their last words. An earlier job's pods of the name are not."""
    present = {pod.uid for pod in listed}
    gone = tuple(pod for uid, pod in memory.last_words.items() if uid not in present)
    return tuple(pod for pod in (*listed, *gone) if pod.owner_uid == view.uid)


def _forget_words(memory: _Memory, listed: tuple[PodView, ...], status: Status) -> None:
    """Last words are kept while somebody's entry still names their pod."""
    named = {m.uid for m in (*status.shards, *status.trainers)}
    named |= {shard.predecessor.uid for shard in status.shards if shard.predecessor}
    present = {pod.uid for pod in listed}
    memory.last_words = {uid: pod for uid, pod in memory.last_words.items() if uid in named or uid in present}


def _lasting(status: Status) -> Mapping[str, object]:
    return {name: value for name, value in status if name not in VOLATILE}
