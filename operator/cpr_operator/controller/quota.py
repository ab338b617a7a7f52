"""Reads what Kueue says of a job, changes its Workload, and lets that go. `reconcile.admission` decides."""

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
from cpr_operator.desired.workload import PRIORITY_LABEL, QUEUE_LABEL, QUOTA_FINALIZER, Place
from cpr_operator.reconcile import Job, Outcome
from cpr_operator.reconcile.kueue import Queue, awaits_release, flavors_of, uses_quota
from cpr_operator.reconcile.types import CreateWorkload, DeleteWorkload, WorkloadStatus

logger = logging.getLogger(__name__)

#: The server asks Kueue to convert Workloads. A pass waits no longer for it: a recovery may be due.
READ_S = 2.0
#: Seconds between two looks at pods that still end.
RELEASE_S = 2.0


async def read_queue(cluster: Cluster, view: JobView, job: Job, *, enabled: bool | None, refused: str) -> Queue | None:
    """What Kueue says of the job; None if it stands in no queue, or there are none (`enabled` is None).

    A job that has started stays in its queue although it loses the label, because its quota is in use. `refused`: the
    server's words about the last change of the Workload, if it did not take it. Raises BusyError.
    """
    runtime = job.status.runtime
    started = runtime.quota.queue if runtime is not None and runtime.quota is not None else ""
    name = view.labels.get(QUEUE_LABEL, "") or started
    if not name or enabled is None:
        return None
    if not enabled:
        return Queue(Place(name), enabled=False)
    try:
        async with asyncio.timeout(READ_S):
            queue = await _read(cluster, view, job, name)
    except BusyError:
        raise
    except (RefusedError, UnavailableError) as error:
        return Queue(Place(name), known=False, refused=str(error))
    except TimeoutError:
        words = f"the API server did not show the Workload within {READ_S:g} s"
        return Queue(Place(name), known=False, refused=words)
    return queue if queue.workload is not None else replace(queue, refused=refused)


async def change_workload(cluster: Cluster, job: Job, outcome: Outcome) -> str:
    """Do what becomes of the job's Workload. Returns the server's words if it refused that. Raises UnavailableError.

    What is refused, or met another change, is decided again by the next pass.
    """
    try:
        match outcome.workload:
            case CreateWorkload(manifest=manifest):
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
    """Lifts our finalizer from Workloads that are deleted or finished, once no pod of their jobs uses the quota."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self._cluster = cluster.at(Priority.START)
        self._clock = clock
        self._first_seen: dict[tuple[str, str], FirstSeen] = {}

    async def run_pass(self, namespace: str, name: str) -> float | None:
        """Look at one Workload, whose job may be gone. Returns the seconds until the next look; None after the last.

        Raises ConflictError, RefusedError, UnavailableError.
        """
        found = await self._cluster.read("Workload", namespace, name)
        if found is None or not awaits_release(found):
            self._first_seen.pop((namespace, name), None)
            return None
        labels = found["metadata"]["labels"]
        job = JobView(namespace, labels[env.LABEL_JOB], labels[env.LABEL_JOB_UID], 0, "", 0.0, deleting=True)
        seen = self._first_seen.setdefault((namespace, name), FirstSeen())
        for cached in (True, False):  # a pod that the cache lacks may be there
            listed = await self._cluster.list_pods(job, cached=cached)
            pods = seen.own((pod for pod in listed if pod.owner_uid == job.uid), self._clock())
            if uses_quota(pods, self._clock()):
                return RELEASE_S
        with suppress(NotFoundError):
            await self._cluster.remove_finalizer(found, QUOTA_FINALIZER)
        self._first_seen.pop((namespace, name), None)
        return None


async def _read(cluster: Cluster, view: JobView, job: Job, name: str) -> Queue:
    found = await cluster.read("Workload", job.id.namespace, job.id.stem)
    flavors = {each: await cluster.read("ResourceFlavor", "", each) for each in _wanted(job, found)}
    return Queue(
        await _place(cluster, name, view.labels.get(PRIORITY_LABEL, ""), found),
        workload=found,
        flavors={each: flavor for each, flavor in flavors.items() if flavor is not None},
    )


def _wanted(job: Job, workload: Manifest | None) -> tuple[str, ...]:
    """The flavors that the next pods need. Pods that are there have theirs."""
    without_pods = job.status.phase in {"Pending", "Suspended"}
    return flavors_of(workload) if workload is not None and without_pods else ()


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
