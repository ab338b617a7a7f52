"""Inputs of a reconciliation with one change. Members are named as in conditions: shard/1."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cpr_contract.reports import ShardReport, TrainerReport
from cpr_operator.api.status import Status
from cpr_operator.cluster.views import PodView
from cpr_operator.reconcile.types import Outcome, ReconcileInput


def pod_of(observed: ReconcileInput, name: str) -> PodView:
    role, _, index = name.partition("/")
    return next(pod for pod in observed.pods if (pod.role, pod.index) == (role, int(index)))


def shard_report(observed: ReconcileInput, index: int) -> ShardReport:
    report = observed.reports[pod_of(observed, f"shard/{index}").uid]
    assert isinstance(report, ShardReport)
    return report


def trainer_report(observed: ReconcileInput, index: int) -> TrainerReport:
    report = observed.reports[pod_of(observed, f"trainer/{index}").uid]
    assert isinstance(report, TrainerReport)
    return report


def with_status(observed: ReconcileInput, status: Status | None = None, **changes: Any) -> ReconcileInput:
    """Return the input with another status, or with other fields of it."""
    status = (status or observed.job.status).model_copy(update=changes)
    return replace(observed, job=replace(observed.job, status=status))


def with_shard(observed: ReconcileInput, index: int, **changes: Any) -> ReconcileInput:
    """Return the input with other fields of a shard's status."""
    shards = (each.model_copy(update=changes) if each.index == index else each for each in observed.job.status.shards)
    return with_status(observed, shards=tuple(shards))


def with_spec(observed: ReconcileInput, part: str, **changes: Any) -> ReconcileInput:
    """Return the input with other fields of a part of the spec."""
    changed = getattr(observed.job.spec, part).model_copy(update=changes)
    return replace(observed, job=replace(observed.job, spec=observed.job.spec.model_copy(update={part: changed})))


def with_report(observed: ReconcileInput, name: str, **changes: Any) -> ReconcileInput:
    """Return the input with other fields of a member's report."""
    uid = pod_of(observed, name).uid
    report: Any = replace(observed.reports[uid], **changes)
    return replace(observed, reports={**observed.reports, uid: report})


def without_reports(observed: ReconcileInput, *names: str) -> ReconcileInput:
    """Return the input without the reports of these members."""
    without = {pod_of(observed, name).uid for name in names}
    return replace(observed, reports={uid: report for uid, report in observed.reports.items() if uid not in without})


def with_pod(observed: ReconcileInput, name: str, **changes: Any) -> ReconcileInput:
    """Return the input with other fields of a member's pod."""
    uid = pod_of(observed, name).uid
    return replace(observed, pods=tuple(replace(pod, **changes) if pod.uid == uid else pod for pod in observed.pods))


def then(observed: ReconcileInput, outcome: Outcome, *, later_s: float = 1.0) -> ReconcileInput:
    """Return the next input, after only the status of the outcome was written."""
    return replace(with_status(observed, outcome.status), now=observed.now + later_s)
