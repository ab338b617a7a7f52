"""Reads what Kueue says of a job, and changes its Workload. `reconcile.admission` decides."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, assert_never

from cpr_operator.cluster.protocol import Cluster, ConflictError, Manifest, NotFoundError, RefusedError
from cpr_operator.cluster.views import JobView
from cpr_operator.desired.workload import PRIORITY_LABEL, QUEUE_LABEL, Place
from cpr_operator.reconcile import Job, Outcome
from cpr_operator.reconcile.pass_ import CreateWorkload, DeleteWorkload, WorkloadStatus
from cpr_operator.reconcile.queue import Queue, flavors_of

logger = logging.getLogger(__name__)


async def queue_of(cluster: Cluster, view: JobView, job: Job, *, enabled: bool, refused: str) -> Queue | None:
    """What Kueue says of the job; None if it stands in no queue.

    A job that has started stays in its queue although it loses the label, because its quota is in use. `refused`: the
    server's words about the last change of the Workload, if it did not take it. Raises UnavailableError.
    """
    runtime = job.status.runtime
    started = runtime.quota.queue if runtime is not None and runtime.quota is not None else ""
    name = view.labels.get(QUEUE_LABEL, "") or started
    if not name:
        return None
    if not enabled:
        return Queue(Place(name), enabled=False)
    try:
        queue = await _read(cluster, view, job, name)
    except RefusedError as error:
        return Queue(Place(name), refused=str(error))
    return queue if queue.workload is not None else replace(queue, refused=refused)


async def _read(cluster: Cluster, view: JobView, job: Job, name: str) -> Queue:
    found = await cluster.read("Workload", job.id.namespace, job.id.stem)
    flavors = {each: await cluster.read("ResourceFlavor", "", each) for each in _wanted(job, found)}
    return Queue(
        await _place(cluster, name, view.labels.get(PRIORITY_LABEL, ""), found),
        workload=found,
        flavors={each: flavor for each, flavor in flavors.items() if flavor is not None},
    )


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


def _wanted(job: Job, workload: Manifest | None) -> tuple[str, ...]:
    """The flavors that the next pods need. Pods that are there have theirs."""
    without_pods = job.status.phase in {"Pending", "Suspended"}
    return flavors_of(workload) if workload is not None and without_pods else ()


async def _place(cluster: Cluster, queue: str, priority_class: str, workload: Mapping[str, Any] | None) -> Place:
    """The priority is read once for a Workload, which keeps it."""
    if not priority_class:
        return Place(queue)
    spec = workload["spec"] if workload is not None else {}
    if spec.get("priorityClassName") == priority_class:
        return Place(queue, priority_class, int(spec.get("priority", 0)))
    found = await cluster.read("WorkloadPriorityClass", "", priority_class)
    return Place(queue, priority_class, int(found["value"]) if found is not None else 0)
