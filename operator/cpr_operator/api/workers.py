"""How many workers each trainer of a job has: stated, measured by its first leader, or as it was started with."""

from __future__ import annotations

from cpr_contract.codec import from_json, unpack
from cpr_contract.spec import MEASURED, JobSpec
from cpr_operator.api.spec import CPRJobSpec
from cpr_operator.api.status import Runtime, Status, WorkersInForce


def workers_of(spec: CPRJobSpec) -> WorkersInForce:
    """What a new job begins with."""
    stated = spec.trainers.workers
    if isinstance(stated, int):
        return WorkersInForce(count=stated, reason="spec.trainers.workers says so")
    if spec.trainers.device == "cuda":
        return WorkersInForce(count=1, reason="the network is computed on a GPU")
    return WorkersInForce(reason="the first leader measures how many are fastest, before the first step")


def workers_again(spec: CPRJobSpec, before: Runtime | None) -> WorkersInForce:
    """What a job has that starts, or resumes: then what it had, whatever the default of `spec` has become.

    A job without `workers` in its spec has one worker if 0.1.0 started it, so the spec alone does not tell.
    """
    if before is None:
        return workers_of(spec)
    if before.workers is not None:
        return before.workers
    started_with = from_json(JobSpec, unpack(before.job_spec)).workers
    return WorkersInForce(count=started_with, reason="an earlier release started the job so")


def workers_in_force(spec: CPRJobSpec, status: Status) -> WorkersInForce:
    """What a job has now, or would start with."""
    return workers_again(spec, status.runtime)


def to_contract(workers: WorkersInForce) -> int:
    """`JobSpec.workers`."""
    return MEASURED if workers.count is None else workers.count
