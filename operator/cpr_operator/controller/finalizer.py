"""Adds and removes the finalizer that keeps a job until its saves are deleted. `reconcile.deletion` decides when."""

from __future__ import annotations

from dataclasses import replace

from cpr_operator.cluster.protocol import Cluster
from cpr_operator.cluster.views import JobView
from cpr_operator.reconcile import Job
from cpr_operator.reconcile.deletion import FINALIZER, kept_anchors, wants_finalizer


async def set_finalizer(cluster: Cluster, view: JobView, job: Job) -> tuple[JobView, Job]:
    """Add the finalizer to a job with `deleteWithJob` before it can have saves, and remove it from any other.

    Raises ConflictError, NotFoundError, UnavailableError.
    """
    if job.deleting or job.has_finalizer == wants_finalizer(job):
        return view, job
    others = tuple(each for each in view.finalizers if each != FINALIZER)
    view = await cluster.set_finalizers(view, (*others, FINALIZER) if wants_finalizer(job) else others)
    return view, replace(job, has_finalizer=wants_finalizer(job))


async def release(cluster: Cluster, view: JobView) -> None:
    """Remove the finalizer, so that the job is deleted. Raises the same errors as `set_finalizer`."""
    if FINALIZER in view.finalizers:
        await cluster.set_finalizers(view, tuple(each for each in view.finalizers if each != FINALIZER))


async def kept_for_others(cluster: Cluster, job: Job) -> tuple[str, ...]:
    """The anchors of a job under deletion that other jobs of its namespace restore from; else none."""
    if not (job.deleting and job.has_finalizer):
        return ()
    return kept_anchors(job, await cluster.list_jobs((job.id.namespace,)))
