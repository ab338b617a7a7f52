"""Rosters on their way to pods: as annotations, which kubelets show as files, and sent ahead of those."""

from __future__ import annotations

import asyncio
import logging

from cpr_contract import env
from cpr_contract.roster import signature
from cpr_operator.cluster.protocol import Cluster, NotFoundError, PodPatch
from cpr_operator.desired.names import JobId
from cpr_operator.guarding import Guarded
from cpr_operator.reconcile import Outcome, PassInput

logger = logging.getLogger(__name__)

#: A pod has so long to take a roster that is sent to it; the annotation follows.
SEND_DEADLINE_S = 0.2
#: So many rosters of one job are written at once, as many as its namespace may hold places for writes.
AT_ONCE = 8


async def send_rosters(cluster: Cluster, observed: PassInput, outcome: Outcome, guarded: Guarded) -> None:
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
