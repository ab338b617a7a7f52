"""Converts the status of a job to TorchX's states.

The status is read as plain JSON, so that a client that is older than the operator can show a job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torchx.schedulers.api import DescribeAppResponse
from torchx.specs import AppState, ReplicaStatus, RoleStatus, is_terminal

from cpr_operator.api.terminal_text import printable
from cpr_operator.client.job import Job, value_at
from cpr_operator.torchx.application import MEMBER_FIELDS, roles

STATES = {
    # Suspended is by the operator: it resumes the job itself.
    **dict.fromkeys(("Pending", "Starting", "Suspended"), AppState.PENDING),
    **dict.fromkeys(("Running", "Recovering", "RollingBack", "Suspending", "Finishing"), AppState.RUNNING),
    "Succeeded": AppState.SUCCEEDED,
    "Failed": AppState.FAILED,
}
REPLICA_STATES = {
    **dict.fromkeys(("Pending", "Starting", "Restoring", "Loading", "Joining", "BelowFloor", "Lost"), AppState.PENDING),
    **dict.fromkeys(("Ready", "Training", "Meeting", "Paused", "Flushing", "Finishing"), AppState.RUNNING),
    "Finished": AppState.SUCCEEDED,
}
#: Fields of `status` that become metadata.
METADATA_FIELDS = (
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
#: Conditions that are a problem while they are not True. All others are a problem while they are True.
NORMALLY_TRUE = frozenset({"PodsReady", "ReportsAvailable"})
#: Conditions that explain an end.
FINAL = frozenset({"Complete", "Failed", "Suspended"})


def state(job: Job) -> AppState:
    """Return the state of a job. A job that is suspended by its `suspend` is CANCELLED, and can be resumed."""
    if job.suspended:
        return AppState.CANCELLED
    return STATES.get(job.phase, AppState.UNKNOWN) if job.phase else AppState.SUBMITTED


def response(app_id: str, job: Job) -> DescribeAppResponse:
    """Return the description of a job."""
    status, app_state = job.document.get("status") or {}, state(job)
    values = {path: value_at(status, path) for path in METADATA_FIELDS}
    described = DescribeAppResponse(
        app_id=app_id,
        state=app_state,
        num_restarts=status.get("restarts", 0),
        msg=_message(status, app_state),
        roles=roles(job.document["spec"]),
        roles_statuses=[RoleStatus(name, list(_replicas(name, status, app_state))) for name in MEMBER_FIELDS],
    )
    # TorchX 0.7.0 has no field for metadata, and ignores the attribute.
    described.metadata = {path: str(value) for path, value in values.items() if value is not None}
    return described


def _replicas(role: str, status: Mapping[str, Any], app_state: AppState) -> Iterator[ReplicaStatus]:
    for member in status.get(MEMBER_FIELDS[role]) or ():
        own = REPLICA_STATES.get(member.get("state", ""), AppState.UNKNOWN)
        yield ReplicaStatus(
            id=member["index"],
            state=app_state if is_terminal(app_state) else own,
            role=role,
            hostname=member.get("host", ""),
        )


def _message(status: Mapping[str, Any], app_state: AppState) -> str:
    """Return phase, progress, budget, and conditions that are a problem."""
    parts = [status.get("phase") or "the operator has not seen the job yet"]
    data = status.get("data")
    if data is not None and not data.get("ended"):
        parts.append(f"{data['lagSamples']} pinned samples to train")
    elif (percent := value_at(status, "progress.percent")) is not None:
        parts.append(f"{percent}% trained")
    if (budget := status.get("budget")) is not None:
        parts.append(f"budget {budget.get('spent', 0):g} of {budget['limit']:g} spent")
    return "; ".join([", ".join(parts), *_conditions(status, app_state)])


def _conditions(status: Mapping[str, Any], app_state: AppState) -> Iterator[str]:
    for condition in status.get("conditions") or ():
        kind, holds = condition["type"], condition["status"] == "True"
        if holds and kind in FINAL if is_terminal(app_state) else holds != (kind in NORMALLY_TRUE):
            yield printable(f"{kind}: {condition.get('message') or condition['reason']}")
