"""The finalizer that holds a job until its saves are deleted, on and off; `reconcile.deletion` says when."""

from __future__ import annotations

from dataclasses import replace

from cpr_operator.cluster.protocol import Cluster
from cpr_operator.cluster.views import JobView
from cpr_operator.reconcile import Job
from cpr_operator.reconcile.deletion import FINALIZER, is_held, spared


async def hold(cluster: Cluster, view: JobView, job: Job) -> tuple[JobView, Job]:
    """Put it on a job whose saves are to go with it, before there can be any; take it off another.

    Raises ConflictError, NotFoundError, UnavailableError.
    """
    if job.deleting or job.held == is_held(job):
        return view, job
    others = tuple(each for each in view.finalizers if each != FINALIZER)
    view = await cluster.set_finalizers(view, (*others, FINALIZER) if is_held(job) else others)
    return view, replace(job, held=is_held(job))


async def release(cluster: Cluster, view: JobView) -> None:
    """Take it off: the job may go. Raises as `hold` does."""
    if FINALIZER in view.finalizers:
        await cluster.set_finalizers(view, tuple(each for each in view.finalizers if each != FINALIZER))


async def spared_by(cluster: Cluster, job: Job) -> tuple[str, ...]:
    """The anchors of a job that is being deleted from which jobs of its namespace restore; none of another job."""
    if not (job.deleting and job.held):
        return ()
    return spared(job, await cluster.list_jobs((job.id.namespace,)))
