"""How many workers trainers have, as the first leader measured it, taken into the status."""

from __future__ import annotations

from cpr_contract.reports import TrainerReport, TrainerState
from cpr_operator.api.status import Status, WorkerCount


def workers_as_told(status: Status, leader: TrainerReport) -> Status:
    """The status with the choice that a leader tells of, once: it stands as long as the job lives."""
    runtime = status.runtime
    if runtime is None or runtime.workers is None or runtime.workers.count is not None:
        return status
    if leader.workers is not None:
        told = WorkerCount(count=leader.workers, reason=leader.workers_reason)
    elif leader.state is TrainerState.TRAINING:
        told = WorkerCount(count=1, reason="trainers tell of no measurement: the image is of an earlier release")
    else:
        return status
    return status.evolve(runtime=runtime.evolve(workers=told))
