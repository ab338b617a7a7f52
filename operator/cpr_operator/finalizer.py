"""The finalizer that holds a job until its saves are deleted, on and off; `reconcile.deletion` says when."""

from __future__ import annotations

from dataclasses import replace

from cpr_operator.cluster.protocol import Cluster
from cpr_operator.cluster.views import JobView
from cpr_operator.reconcile import Job
from cpr_operator.reconcile.deletion import FINALIZER, kept_anchors, wants_finalizer


async def set_finalizer(cluster: Cluster, view: JobView, job: Job) -> tuple[JobView, Job]:
    """Put it on a job whose saves are to go with it, before there can be any; take it off another.

    Raises ConflictError, NotFoundError, UnavailableError.
    """
    if job.deleting or job.has_finalizer == wants_finalizer(job):
        return view, job
    others = tuple(each for each in view.finalizers if each != FINALIZER)
    view = await cluster.set_finalizers(view, (*others, FINALIZER) if wants_finalizer(job) else others)
    return view, replace(job, has_finalizer=wants_finalizer(job))


async def release(cluster: Cluster, view: JobView) -> None:
    """Take it off: the job may go. Raises as `set_finalizer` does."""
    if FINALIZER in view.finalizers:
        await cluster.set_finalizers(view, tuple(each for each in view.finalizers if each != FINALIZER))


async def kept_for_others(cluster: Cluster, job: Job) -> tuple[str, ...]:
    """The anchors of a job that is being deleted from which jobs of its namespace restore; none of another job."""
    if not (job.deleting and job.has_finalizer):
        return ()
    return kept_anchors(job, await cluster.list_jobs((job.id.namespace,)))
