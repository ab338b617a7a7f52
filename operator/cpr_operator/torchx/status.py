"""How a job stands, in TorchX's words.

A job is read as the API server gives it: a client that is older than the operator still says what it understands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torchx.schedulers.api import DescribeAppResponse
from torchx.specs import AppState, ReplicaStatus, RoleStatus, is_terminal

from cpr_operator.api.text import printable
from cpr_operator.client.job import phase as phase_of
from cpr_operator.client.job import rests
from cpr_operator.torchx.manifest import GROUPS, roles

Job = Mapping[str, Any]

STATES = {
    "Pending": AppState.PENDING,
    "Starting": AppState.PENDING,
    "Running": AppState.RUNNING,
    "Recovering": AppState.RUNNING,
    "RollingBack": AppState.RUNNING,
    "Suspending": AppState.RUNNING,
    "Suspended": AppState.PENDING,  # by the operator: it resumes the job itself
    "Finishing": AppState.RUNNING,
    "Succeeded": AppState.SUCCEEDED,
    "Failed": AppState.FAILED,
}
REPLICA_STATES = {
    "Pending": AppState.PENDING,
    "Starting": AppState.PENDING,
    "Restoring": AppState.PENDING,
    "Loading": AppState.PENDING,
    "Joining": AppState.PENDING,
    "BelowFloor": AppState.PENDING,
    "Lost": AppState.PENDING,
    "Ready": AppState.RUNNING,
    "Training": AppState.RUNNING,
    "Meeting": AppState.RUNNING,
    "Paused": AppState.RUNNING,
    "Flushing": AppState.RUNNING,
    "Finishing": AppState.RUNNING,
    "Finished": AppState.SUCCEEDED,
}
#: What of `status` becomes metadata.
FIGURES = (
    "phase",
    "progress.percent",
    "progress.samples",
    "progress.totalSamples",
    "progress.auc",
    "budget.limit",
    "budget.spent",
    "budget.reserved",
    "budget.remaining",
    "budget.rollbacks",
    "plan.mode",
    "plan.intervalSeconds",
    "restarts",
    "result.key",
)
#: Conditions that want attention until they are True; all others, while they are.
WHOLESOME = frozenset({"PodsReady", "ReportsAvailable"})
#: Conditions that explain an end.
FINAL = frozenset({"Complete", "Failed", "Suspended"})


def state(job: Job) -> AppState:
    """The state of a job. A job that is suspended by its `suspend` is CANCELLED, and can be resumed."""
    if rests(job):
        return AppState.CANCELLED
    phase = phase_of(job)
    return STATES.get(phase, AppState.UNKNOWN) if phase else AppState.SUBMITTED


def response(app_id: str, job: Job) -> DescribeAppResponse:
    """All that TorchX asks about a job."""
    status, stands = _status(job), state(job)
    figures = {path: _find(status, path) for path in FIGURES}
    told = DescribeAppResponse(
        app_id=app_id,
        state=stands,
        num_restarts=status.get("restarts", 0),
        msg=_message(status, stands),
        roles=roles(job["spec"]),
        roles_statuses=[RoleStatus(name, list(_replicas(name, status, stands))) for name in GROUPS],
    )
    # TorchX 0.7.0 takes no metadata, and does not mind them.
    told.metadata = {path: str(value) for path, value in figures.items() if value is not None}
    return told


def _replicas(role: str, status: Mapping[str, Any], stands: AppState) -> Iterator[ReplicaStatus]:
    for member in status.get(GROUPS[role]) or ():
        own = REPLICA_STATES.get(member.get("state", ""), AppState.UNKNOWN)
        yield ReplicaStatus(
            id=member["index"],
            state=stands if is_terminal(stands) else own,
            role=role,
            hostname=member.get("host", ""),
        )


def _message(status: Mapping[str, Any], stands: AppState) -> str:
    """Phase, progress and budget, and what wants attention."""
    parts = [status.get("phase") or "the operator has not seen the job yet"]
    if (percent := _find(status, "progress.percent")) is not None:
        parts.append(f"{percent}% trained")
    if (budget := status.get("budget")) is not None:
        parts.append(f"budget {budget.get('spent', 0):g} of {budget['limit']:g} spent")
    return "; ".join([", ".join(parts), *_conditions(status, stands)])


def _conditions(status: Mapping[str, Any], stands: AppState) -> Iterator[str]:
    for condition in status.get("conditions") or ():
        kind, holds = condition["type"], condition["status"] == "True"
        if holds and kind in FINAL if is_terminal(stands) else holds != (kind in WHOLESOME):
            yield printable(f"{kind}: {condition.get('message') or condition['reason']}")


def _status(job: Job) -> Mapping[str, Any]:
    found: Mapping[str, Any] = job.get("status") or {}
    return found


def _find(node: Any, path: str) -> Any:
    for key in path.split("."):
        node = node.get(key) if isinstance(node, Mapping) else None
    return node
