"""Kueue's Workload of a job: read, changed, and released once no pod uses its quota. `reconcile.kueue` decides."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import assert_never

from cpr_contract import env
from cpr_operator.clocks import FirstSeen
from cpr_operator.cluster.protocol import (
    BusyError,
    Cluster,
    ConflictError,
    Manifest,
    NotFoundError,
    Priority,
    RefusedError,
    UnavailableError,
)
from cpr_operator.cluster.views import JobView
from cpr_operator.desired.workload import PREBUILT, PRIORITY_LABEL, QUEUE_LABEL, QUOTA_FINALIZER, Place
from cpr_operator.reconcile import Job, Outcome
from cpr_operator.reconcile.kueue import Queue, awaits_release, flavors_of, uses_quota
from cpr_operator.reconcile.types import ApplyWorkload, DeleteWorkload, WorkloadStatus

logger = logging.getLogger(__name__)

#: Maximum seconds for a read, because the server needs Kueue to convert Workloads, and a recovery may be due.
READ_S = 2.0
#: Seconds between two reads of pods that still end.
RELEASE_S = 2.0


async def read_queue(cluster: Cluster, view: JobView, job: Job, *, enabled: bool | None, refused: str) -> Queue | None:
    """Read the state of the job in its queue; None if it stands in none, or there are none (`enabled` is None).

    A job that has started stays in its queue although it loses the label, because its quota is in use. `refused`: the
    server's message if it refused the last change of the Workload. Raises BusyError.
    """
    runtime = job.status.runtime
    started = runtime.quota.queue if runtime is not None and runtime.quota is not None else ""
    name = view.labels.get(QUEUE_LABEL, "") or started
    if not name or enabled is None:
        return None
    # Kueue writes a name that is too long for a label, or by a feature each name, into an annotation.
    prebuilt = view.labels.get(PREBUILT, "") or view.annotations.get(PREBUILT, "")
    if not enabled:
        return Queue(Place(name), prebuilt, enabled=False)
    try:
        async with asyncio.timeout(READ_S):
            queue = await _read(cluster, view, job, Queue(Place(name), prebuilt))
    except BusyError:
        raise
    except (RefusedError, UnavailableError) as error:
        return Queue(Place(name), prebuilt, known=False, refused=str(error))
    except TimeoutError:
        message = f"the API server did not show the Workload within {READ_S:g} s"
        return Queue(Place(name), prebuilt, known=False, refused=message)
    return queue if queue.workload is not None else replace(queue, refused=refused)


async def change_workload(cluster: Cluster, job: Job, outcome: Outcome) -> str:
    """Make the outcome's change of the job's Workload. Returns the server's message if it refuses.

    The next pass decides again about a change that was refused, or met another one. Raises UnavailableError.
    """
    try:
        match outcome.workload:
            case ApplyWorkload(manifest=manifest):
                await cluster.apply(manifest)
            case DeleteWorkload(name=name):
                await cluster.delete("Workload", job.id.namespace, name)
            case WorkloadStatus(read=read, status=status):
                await cluster.merge_status(read, status)
            case None:
                pass
            case change:
                assert_never(change)
    except (ConflictError, NotFoundError):
        return ""
    except RefusedError as error:
        logger.warning("%s: the Workload was not changed: %s", job.id.name, error)
        return str(error)
    return ""


class QuotaRelease:
    """Removes our finalizer from Workloads that are deleted or finished, once no pod of their jobs uses the quota."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self._cluster = cluster.at(Priority.START)
        self._clock = clock
        self._first_seen: dict[tuple[str, str], FirstSeen] = {}

    async def run_pass(self, namespace: str, name: str) -> float | None:
        """Check one Workload, also of a deleted job. Returns the seconds until the next check; None after the last.

        Raises ConflictError, RefusedError, UnavailableError.
        """
        found = await self._cluster.read("Workload", namespace, name)
        if found is None or not awaits_release(found):
            self._first_seen.pop((namespace, name), None)
            return None
        labels = found["metadata"]["labels"]
        job = JobView(namespace, labels[env.LABEL_JOB], labels[env.LABEL_JOB_UID], 0, "", 0.0, deleting=True)
        first_seen = self._first_seen.setdefault((namespace, name), FirstSeen())
        for cached in (True, False):  # a pod that the cache lacks may exist
            listed = await self._cluster.list_pods(job, cached=cached)
            pods = first_seen.own((pod for pod in listed if pod.owner_uid == job.uid), self._clock())
            if uses_quota(pods, self._clock()):
                return RELEASE_S
        with suppress(NotFoundError):
            await self._cluster.remove_finalizer(found, QUOTA_FINALIZER)
        self._first_seen.pop((namespace, name), None)
        return None


async def _read(cluster: Cluster, view: JobView, job: Job, queue: Queue) -> Queue:
    found = await cluster.read("Workload", job.id.namespace, queue.prebuilt or job.id.stem)
    # Existing pods have their flavors already.
    names = flavors_of(found) if found is not None and job.status.phase in {"Pending", "Suspended"} else ()
    flavors = {each: await cluster.read("ResourceFlavor", "", each) for each in names}
    return replace(
        queue,
        place=await _place(cluster, queue.place.queue, view.labels.get(PRIORITY_LABEL, ""), found),
        workload=found,
        flavors={each: flavor for each, flavor in flavors.items() if flavor is not None},
    )


async def _place(cluster: Cluster, queue: str, priority_class: str, workload: Manifest | None) -> Place:
    """The priority is read once for a Workload, which keeps it. Raises RefusedError."""
    if not priority_class:
        return Place(queue)
    spec = workload["spec"] if workload is not None else {}
    if (spec.get("priorityClassRef") or {}).get("name") == priority_class:
        return Place(queue, priority_class, int(spec.get("priority", 0)))
    found = await cluster.read("WorkloadPriorityClass", "", priority_class)
    if found is None:
        raise RefusedError(f"the WorkloadPriorityClass {priority_class} does not exist")
    return Place(queue, priority_class, int(found["value"]))
