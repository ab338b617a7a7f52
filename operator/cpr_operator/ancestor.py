"""Reads the job whose anchor a new job wants to start from. `reconcile.origin` chooses the anchor."""

from __future__ import annotations

from cpr_operator.cluster.protocol import Cluster, NotFoundError
from cpr_operator.cluster.views import JobView
from cpr_operator.reconcile import Job


async def ancestor_of(cluster: Cluster, job: Job) -> JobView | None:
    """The job that `restoreFrom.job` of a job names that has not started; None if there is none, or none is wanted.

    Raises BusyError, UnavailableError.
    """
    restore = job.spec.restore_from
    if restore is None or restore.job is None or job.status.start_time is not None:
        return None
    try:
        return await cluster.get_job(job.id.namespace, restore.job)
    except NotFoundError:
        return None
