"""Reads a job as the core sees it, and the jobs whose anchors a new one may start from."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from cpr_operator.api.validate import check_new, parse_spec, parse_status
from cpr_operator.cluster.protocol import Cluster, NotFoundError
from cpr_operator.cluster.views import JobView
from cpr_operator.controller.cache import JobCache
from cpr_operator.desired.names import JobId
from cpr_operator.reconcile import Job
from cpr_operator.reconcile.deletion import FINALIZER

#: The rules of a model with so many tables and features take a few milliseconds: no more than handing them over.
FEW_TABLES = 64


async def read_job(view: JobView, memory: JobCache) -> Job:
    """The job as the core reads it. Raises InvalidSpecError and InvalidStatusError.

    The rules of a spec are evaluated once per metadata.generation, for a large model in a thread: they would block the
    polls and probes of other jobs.
    """
    spec_generation = (view.uid, view.spec_generation)
    if memory.checked == spec_generation:
        return job_of(view, checked=True)
    large = _tables_and_features(view.spec) > FEW_TABLES
    job = await asyncio.to_thread(job_of, view) if large else job_of(view)
    memory.checked = spec_generation
    return job


def _tables_and_features(spec: Mapping[str, Any]) -> int:
    """How many of both a spec lists that is not validated yet."""
    model = spec.get("model")
    lists = (model.get(part) for part in ("tables", "features")) if isinstance(model, Mapping) else ()
    return sum(len(each) for each in lists if isinstance(each, list))


def job_of(view: JobView, *, checked: bool = False) -> Job:
    """See `read_job`. `checked`: see `parse_spec`."""
    identity = JobId(view.namespace, view.name, view.uid)
    status, spec = parse_status(view.status), parse_spec(view.spec, checked=checked)
    if status.runtime is None:  # Later the model cannot change, and at the limits this takes longer than reading it.
        check_new(spec)
    return Job(identity, view.spec_generation, view.deleting, spec, status, has_finalizer=FINALIZER in view.finalizers)


async def source_jobs_of(cluster: Cluster, job: Job) -> tuple[JobView, ...]:
    """The jobs among which `restoreFrom` of a job that has not started chooses; none if it names an anchor, or nothing.

    With `job` that is the one of this name, with `latestOf` all of the namespace. Raises BusyError, UnavailableError.
    """
    restore = job.spec.restore_from
    if restore is None or job.status.start_time is not None:
        return ()
    if restore.latest_of is not None:
        return await cluster.list_jobs((job.id.namespace,))
    if restore.job is None:
        return ()
    try:
        return (await cluster.get_job(job.id.namespace, restore.job),)
    except NotFoundError:
        return ()
