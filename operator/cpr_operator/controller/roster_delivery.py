"""Rosters on their way to pods: as annotations, which kubelets show as files, and sent ahead of those.

The leader gets what the status holds of its reports in both ways, too: it deletes saves by that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from cpr_contract import env
from cpr_contract.codec import to_json
from cpr_contract.reports import RosterNote
from cpr_contract.roster import seal, signature
from cpr_operator.api.status import Status
from cpr_operator.cluster.protocol import Cluster, NotFoundError, PodPatch
from cpr_operator.cluster.views import PodView
from cpr_operator.controller.cache import JobCache
from cpr_operator.controller.prerequisites import PodPrerequisites
from cpr_operator.desired.description import is_spoken, version_of
from cpr_operator.desired.names import JobId
from cpr_operator.desired.rosters import Rosters
from cpr_operator.reconcile import Outcome, ReconcileInput
from cpr_operator.reconcile.observe import leader_of, recorded_in

logger = logging.getLogger(__name__)

#: A pod has so long to take a roster that is sent to it; the annotation follows.
SEND_DEADLINE_S = 0.2
#: So many rosters of one job are written at once, as many as its namespace may hold places for writes.
AT_ONCE = 8


async def send_rosters(cluster: Cluster, observed: ReconcileInput, outcome: Outcome, guarded: PodPrerequisites) -> None:
    """Send the pass's rosters to running pods, which need not wait until their kubelets show the annotations.

    Only an operator that has made the job's key can sign. Pods of others read the annotations alone.
    """
    runtime = outcome.status.runtime
    key = guarded.key_named(runtime.key_digest) if runtime else None
    if key is None:
        return
    sends = []
    for patch in outcome.rosters:
        pod, roster = observed.pods_by_uid[patch.uid], patch.annotations[env.ANNOTATION_ROSTER]
        if pod.phase == "Running" and pod.host:
            told = signature(key, pod.name, roster.encode())
            sends.append(cluster.send_roster(pod, roster, told, SEND_DEADLINE_S))
    await asyncio.gather(*sends)


def sealer(observed: ReconcileInput, guarded: PodPrerequisites) -> Callable[[PodView], str]:
    """Return what gives the header for a pod's report; empty for a shard, and if this operator cannot seal it."""
    runtime = observed.before.runtime
    key = guarded.key_named(runtime.key_digest) if runtime else None
    recorded = to_json(recorded_in(observed.before))
    return lambda pod: seal(key, pod.name, recorded) if key and pod.role == env.ROLE_TRAINER else ""


async def write_recorded(cluster: Cluster, observed: ReconcileInput, after: Status, memory: JobCache) -> None:
    """Write what the status holds into the annotation of the leader's roster, if this operator has no key to seal it.

    An operator that has begun after the job has none, because a Secret is never read back. What it finds at its first
    look is what the leader was told before.
    """
    recorded, leader = recorded_in(after), leader_of(after)
    pod = observed.pods_by_uid.get(leader.uid) if leader else None
    if leader is None or pod is None or pod.phase != "Running" or pod.roster_version < leader.roster:
        return
    has_key = after.runtime is None or memory.prerequisites.key_named(after.runtime.key_digest) is not None
    if has_key or not is_spoken(version_of(after)):
        return
    if memory.noted not in {None, (pod.uid, recorded)}:
        annotations = Rosters(after).document(leader, leader.incarnation).with_note(RosterNote(recorded)).annotations
        await write_rosters(cluster, observed.job.id, (PodPatch(pod.name, pod.uid, annotations),))
    memory.noted = (pod.uid, recorded)


async def write_rosters(cluster: Cluster, job: JobId, patches: tuple[PodPatch, ...]) -> None:
    """Write rosters, several at once, in their order. Raises what one of them raises; then no more are begun."""
    left = iter(patches)

    async def write() -> None:
        for patch in left:
            try:
                await cluster.patch_pod(job.namespace, patch)
            except NotFoundError:
                logger.info("%s: %s is gone before its roster was updated", job.name, patch.name)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in patches[:AT_ONCE]:
                group.create_task(write())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from errors
