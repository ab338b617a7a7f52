"""The objects that a job's pods need before they are created: key, network policy, PodGroup, disruption budgets.

Users may delete or edit them, so they are checked every `CHECK_S` seconds, and the key before each pod is created.
A check costs four requests per job: a server-side apply of three objects, and a dry run of the Secret's creation,
which needs no right to read Secrets.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from cpr_contract.roster import key_digest
from cpr_operator.cluster.certificates import KeyPair, new_authority
from cpr_operator.cluster.protocol import BusyError, Cluster, Manifest, RefusedError, TerminatingError
from cpr_operator.cluster.views import PodView
from cpr_operator.desired.job_objects import (
    Certificates,
    IngressSources,
    disruption_budgets,
    key_secret,
    network_policy,
    pod_group,
)
from cpr_operator.desired.names import JobId
from cpr_operator.reconcile import Job, Outcome

#: Seconds between two checks of the objects, and after a refusal.
CHECK_S, RETRY_S = 300.0, 10.0


@dataclass(slots=True)
class JobKey:
    """A handshake key, and the CA of the Secret that has both. The CA is made when it is first needed."""

    text: str
    _authority: tuple[str, KeyPair] | None = field(default=None, repr=False)

    @property
    def digest(self) -> str:
        """The digest that names the Secret."""
        return key_digest(self.text.encode())

    def authority(self, job_uid: str) -> KeyPair:
        """The CA of the job with this uid, which is the same at each call."""
        if self._authority is None or self._authority[0] != job_uid:
            self._authority = job_uid, new_authority(job_uid)
        return self._authority[1]


@dataclass(slots=True)
class PodPrerequisites:
    """The state of one job's objects.

    next_key: the key of the next Secret. issued_key: that of the last one, empty before it.
    present: whether the objects exist; None after a start of the operator.
    applied: the manifests of the last apply. check_at: the time of the next check.
    blocked, refused: the server's message about an object that pods need, and about another object.
    """

    next_key: JobKey
    issued_key: str = ""
    present: bool | None = None
    applied: tuple[Manifest, ...] = ()
    check_at: float = 0.0
    blocked: str = ""
    refused: str = ""
    terminating: bool = False

    def issued(self, digest: str) -> bytes | None:
        """The pods' key of this digest; None if another operator made it, because a Secret is never read back."""
        key = self.issued_key.encode()
        return key if key and key_digest(key) == digest else None

    @property
    def refusals(self) -> dict[str, str]:
        """The server's message, in the form of a pass's refusals."""
        message = self.blocked or self.refused
        return {"prerequisites": message} if message else {}


@dataclass(frozen=True, slots=True)
class PrerequisiteWriter:
    """Applies the prerequisites of all jobs. `sources` may reach the pods' HTTP port; `new_key` makes a handshake key.

    `identity` returns the operator's: its certificate is among the files of an encrypted job's pods.
    After a start of the operator the objects of training jobs are checked at times that `rng` spreads over `CHECK_S`,
    because the API server could not take all at once. If it has no capacity, a later pass does the work: only training
    jobs are deferred, and their objects exist already.
    """

    clock: Callable[[], float]
    sources: IngressSources | None
    new_key: Callable[[], str]
    identity: Callable[[], Awaitable[KeyPair]]
    rng: random.Random

    def begin(self) -> PodPrerequisites:
        """The initial state of a new job."""
        return PodPrerequisites(JobKey(self.new_key()), check_at=self.clock() + self.rng.uniform(0, CHECK_S))

    async def key_is_lost(self, cluster: Cluster, job: JobId, outcome: Outcome, state: PodPrerequisites) -> bool:
        """Return True if the pods' Secret does not exist. Without a clear answer from the server, it does."""
        runtime = outcome.status.runtime
        if not outcome.needs_prerequisites or runtime is None or runtime.key_digest == state.next_key.digest:
            return False
        if not outcome.creates and self.clock() < state.check_at:
            return False
        try:
            return not await cluster.has_secret(key_secret(job, state.next_key.text, runtime.key_digest))
        except (RefusedError, BusyError):
            return False

    async def write(
        self, cluster: Cluster, job: Job, outcome: Outcome, pods: tuple[PodView, ...], state: PodPrerequisites
    ) -> None:
        """Apply the objects, or delete them if the outcome does not need them.

        Afterwards `state.blocked` is the reason why no pod may be created; empty if pods may be.
        """
        if outcome.needs_prerequisites:
            with suppress(BusyError):
                await self._apply(cluster, job, outcome, pods, state)
        elif state.present or (state.present is None and outcome.status.start_time is not None):
            state.present, state.applied, state.blocked, state.refused = False, (), "", ""
            group = pod_group(job.id, job.spec, outcome.status)
            try:
                for each in (*disruption_budgets(job.id, outcome.status, by_uid=True), *filter(None, [group])):
                    await cluster.delete(each["kind"], job.id.namespace, each["metadata"]["name"])
            except RefusedError as error:
                state.present, state.refused = None, str(error)

    async def _apply(
        self, cluster: Cluster, job: Job, outcome: Outcome, pods: tuple[PodView, ...], state: PodPrerequisites
    ) -> None:
        runtime = outcome.status.runtime
        by_uid = all(pod.job_uid for pod in pods if pod.owner_uid == job.id.uid and not pod.ended)
        needed = (network_policy(job.id, self.sources, by_uid=by_uid), pod_group(job.id, job.spec, outcome.status))
        before_pods = tuple(filter(None, needed))
        budgets = disruption_budgets(job.id, outcome.status, by_uid=by_uid)
        is_new_key = runtime is not None and runtime.key_digest == state.next_key.digest
        may_wait = state.present is None and not outcome.creates
        unchanged = (*before_pods, *budgets) == state.applied
        if (unchanged or may_wait) and not is_new_key and self.clock() < state.check_at:
            return
        blocked = refused = ""
        try:
            if is_new_key:
                key, certificates = state.next_key, None
                if runtime is not None and runtime.ca:
                    authority = KeyPair(runtime.ca, key.authority(job.id.uid).key)  # an issuer may have signed it
                    chain = runtime.issued.chain if runtime.issued else ""
                    certificates = Certificates(authority, (await self.identity()).certificate, chain)
                await cluster.create_secret(key_secret(job.id, key.text, key.digest, certificates))
                state.issued_key, state.next_key = key.text, JobKey(self.new_key())
            for each in before_pods:
                await cluster.apply(each)
        except RefusedError as error:
            blocked, state.terminating = str(error), isinstance(error, TerminatingError)
        try:
            for budget in budgets:
                await cluster.apply(budget)
        except RefusedError as error:
            refused = str(error)
        state.blocked, state.refused = blocked, refused
        state.present, state.applied = True, (*before_pods, *budgets)
        state.check_at = self.clock() + (RETRY_S if blocked or refused else CHECK_S)
