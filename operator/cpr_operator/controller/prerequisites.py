"""Ensures what pods need before they are created: the CRD, a server that accepts them, objects around them.

The objects are the key, the network policy and the disruption budgets. Users may delete or edit
them, so they are checked every `GUARD_S` seconds, and the key before each pod is created. A check
costs four requests per job: a server-side apply of three objects, and a dry run of the Secret's
creation, which needs no right to read Secrets.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from cpr_contract import env
from cpr_contract.roster import key_digest
from cpr_operator.api.crd import HASH_ANNOTATION, schema_hash
from cpr_operator.cluster.protocol import BusyError, Cluster, ClusterError, Manifest, RefusedError, TerminatingError
from cpr_operator.cluster.views import PodView
from cpr_operator.desired.guards import Peers, disruption_budgets, key_secret, network_policy
from cpr_operator.desired.names import JobId
from cpr_operator.reconcile import AdmissionGate, Job, Outcome
from cpr_operator.reconcile.conditions import REFUSAL_REMEDY

#: Seconds between two checks of the objects, and after a refusal.
GUARD_S, RETRY_S = 300.0, 10.0


@dataclass(slots=True)
class PodPrerequisites:
    """What is remembered of one job's objects: the key of its next Secret, that of the last, and what was applied last.

    `blocked` says why no pod may be created, `refused` which other object the server refused. Both are
    the server's messages.
    """

    key: str
    issued: str = ""
    up: bool | None = None
    applied: tuple[Manifest, ...] = ()
    due: float = 0.0
    blocked: str = ""
    refused: str = ""
    terminating: bool = False

    @property
    def digest(self) -> str:
        """The digest that names the next key."""
        return key_digest(self.key.encode())

    def key_named(self, digest: str) -> bytes | None:
        """The pods' key, if this operator has made it: a Secret is never read back."""
        key = self.issued.encode()
        return key if key and key_digest(key) == digest else None

    @property
    def refusals(self) -> dict[str, str]:
        """The server's message, in the form of a pass's refusals."""
        message = self.blocked or self.refused
        return {"guards": message} if message else {}


class PrerequisiteWriter:
    """Keeps these objects for all jobs. `peers` may reach the pods' HTTP port; `new_key` makes a handshake key.

    After a start of the operator it checks the objects of training jobs one job at a time, spread over
    `GUARD_S`, because the API server could not take all at once. `rng` draws the time of each job.

    Each call takes the `cluster` with the priority of its pass. If the API server has no room, a later
    pass does the work. That happens only to jobs that train, and these have their objects already.
    """

    def __init__(
        self, clock: Callable[[], float], peers: Peers | None, new_key: Callable[[], str], rng: random.Random
    ) -> None:
        self._clock = clock
        self._peers = peers
        self._new_key = new_key
        self._rng = rng

    def begin(self) -> PodPrerequisites:
        """The initial state of a new job."""
        return PodPrerequisites(self._new_key(), due=self._clock() + self._rng.uniform(0, GUARD_S))

    async def key_is_lost(self, cluster: Cluster, job: JobId, outcome: Outcome, guarded: PodPrerequisites) -> bool:
        """Whether the pods' Secret is gone. Without a clear answer from the server, it is assumed to exist."""
        runtime = outcome.status.runtime
        if not outcome.needs_prerequisites or runtime is None or runtime.key_digest == guarded.digest:
            return False
        if not outcome.creates and self._clock() < guarded.due:
            return False
        try:
            return not await cluster.has_secret(key_secret(job, guarded.key, runtime.key_digest))
        except (RefusedError, BusyError):
            return False

    async def refusal(self, cluster: Cluster, job: Job, outcome: Outcome) -> str:
        """The server's objection to a pod of either role, at start or resumption; empty if it accepts both."""
        if outcome.status.phase != "Starting" or job.status.phase not in {"Pending", "Suspended"}:
            return ""
        roles = {manifest["metadata"]["labels"][env.LABEL_ROLE]: manifest for manifest in outcome.creates}
        for role, manifest in roles.items():
            try:
                await cluster.check_pod(manifest)
            except RefusedError as error:
                return f"{role}: {error}; {REFUSAL_REMEDY}"
        return ""

    async def keep(
        self, cluster: Cluster, job: JobId, outcome: Outcome, pods: tuple[PodView, ...], guarded: PodPrerequisites
    ) -> None:
        """Apply the objects, or delete them if they are not wanted.

        Afterwards `guarded.blocked` says why no pod may be created; empty if pods may be.
        """
        if outcome.needs_prerequisites:
            with suppress(BusyError):
                await self._put_up(cluster, job, outcome, pods, guarded)
        elif guarded.up or (guarded.up is None and outcome.status.start_time is not None):
            guarded.up, guarded.applied, guarded.blocked, guarded.refused = False, (), "", ""
            try:
                for budget in disruption_budgets(job, outcome.status, by_uid=True):
                    await cluster.delete(budget["kind"], job.namespace, budget["metadata"]["name"])
            except RefusedError as error:
                guarded.up, guarded.refused = None, str(error)

    async def _put_up(
        self, cluster: Cluster, job: JobId, outcome: Outcome, pods: tuple[PodView, ...], guarded: PodPrerequisites
    ) -> None:
        runtime = outcome.status.runtime
        by_uid = all(pod.job_uid for pod in pods if pod.owner_uid == job.uid and not pod.ended)
        policy = network_policy(job, self._peers, by_uid=by_uid)
        budgets = disruption_budgets(job, outcome.status, by_uid=by_uid)
        new_key = runtime is not None and runtime.key_digest == guarded.digest
        may_wait = guarded.up is None and not outcome.creates
        same = (policy, *budgets) == guarded.applied
        if (same or may_wait) and not new_key and self._clock() < guarded.due:
            return
        blocked = refused = ""
        try:
            if new_key:
                await cluster.create_secret(key_secret(job, guarded.key, guarded.digest))
                guarded.issued, guarded.key = guarded.key, self._new_key()
            await cluster.apply(policy)
        except RefusedError as error:
            blocked, guarded.terminating = str(error), isinstance(error, TerminatingError)
        try:
            for budget in budgets:
                await cluster.apply(budget)
        except RefusedError as error:
            refused = str(error)
        guarded.blocked, guarded.refused = blocked, refused
        guarded.up, guarded.applied = True, (policy, *budgets)
        guarded.due = self._clock() + (RETRY_S if blocked or refused else GUARD_S)


# Whether the installed CRD is this operator's own: under another one no new job starts.
#
# An older schema would silently drop fields that a user wrote, a limit perhaps.


logger = logging.getLogger(__name__)

#: An answer counts for so many seconds. Then the CRD may be another one, or can be read again.
FRESH_S = 10.0


class InstalledCrd:
    """Reads the CRD's annotations when the last answer is too old by `clock` (seconds)."""

    def __init__(self, read: Callable[[], Awaitable[Mapping[str, str]]], clock: Callable[[], float]) -> None:
        self._read = read
        self._clock = clock
        self._asked: float | None = None
        self._admission_gate: AdmissionGate | None = None
        self._asking = asyncio.Lock()

    async def admission_gate(self) -> AdmissionGate | None:
        """Why no new job may start now; None if it may."""
        async with self._asking:  # whoever comes meanwhile waits for the same answer
            now = self._clock()
            if self._asked is None or now >= self._asked + FRESH_S:
                found = await self._ask()
                if found is not None and found != self._admission_gate:
                    logger.warning("no new job starts: %s", found.message)
                self._asked, self._admission_gate = now, found
            return self._admission_gate

    async def _ask(self) -> AdmissionGate | None:
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
