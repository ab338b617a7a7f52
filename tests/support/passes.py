"""The input of a reconcile pass, with one thing changed. Members are named as in conditions: shard/1."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cpr_contract.reports import ShardReport, TrainerReport
from cpr_operator.api.status import Status
from cpr_operator.cluster.views import PodView
from cpr_operator.reconcile.types import Outcome, ReconcileInput


def pod_of(seen: ReconcileInput, name: str) -> PodView:
    role, _, index = name.partition("/")
    return next(pod for pod in seen.pods if (pod.role, pod.index) == (role, int(index)))


def shard_report(seen: ReconcileInput, index: int) -> ShardReport:
    report = seen.reports[pod_of(seen, f"shard/{index}").uid]
    assert isinstance(report, ShardReport)
    return report


def trainer_report(seen: ReconcileInput, index: int) -> TrainerReport:
    report = seen.reports[pod_of(seen, f"trainer/{index}").uid]
    assert isinstance(report, TrainerReport)
    return report


def with_status(seen: ReconcileInput, status: Status | None = None, **changes: Any) -> ReconcileInput:
    """With another status, or with other fields of it."""
    status = (status or seen.job.status).model_copy(update=changes)
    return replace(seen, job=replace(seen.job, status=status))


def with_shard(seen: ReconcileInput, index: int, **changes: Any) -> ReconcileInput:
    """With other fields of a shard's status."""
    shards = (each.model_copy(update=changes) if each.index == index else each for each in seen.job.status.shards)
    return with_status(seen, shards=tuple(shards))


def with_spec(seen: ReconcileInput, part: str, **changes: Any) -> ReconcileInput:
    """With other fields of a part of the spec."""
    changed = getattr(seen.job.spec, part).model_copy(update=changes)
    return replace(seen, job=replace(seen.job, spec=seen.job.spec.model_copy(update={part: changed})))


def with_report(seen: ReconcileInput, name: str, **changes: Any) -> ReconcileInput:
    """With other fields of a member's report."""
    uid = pod_of(seen, name).uid
    report: Any = replace(seen.reports[uid], **changes)
    return replace(seen, reports={**seen.reports, uid: report})


def without_reports(seen: ReconcileInput, *names: str) -> ReconcileInput:
    """Without the answers of these members."""
    silent = {pod_of(seen, name).uid for name in names}
    return replace(seen, reports={uid: report for uid, report in seen.reports.items() if uid not in silent})


def with_pod(seen: ReconcileInput, name: str, **changes: Any) -> ReconcileInput:
    """With other fields of a member's pod."""
    uid = pod_of(seen, name).uid
    return replace(seen, pods=tuple(replace(pod, **changes) if pod.uid == uid else pod for pod in seen.pods))


def then(seen: ReconcileInput, outcome: Outcome, *, later_s: float = 1.0) -> ReconcileInput:
    """The next pass, in which only the status of the outcome was written."""
    return replace(with_status(seen, outcome.status), now=seen.now + later_s)
