"""The outcome of a job, for programs. Pure."""

from __future__ import annotations

from typing import Any

from cpr_operator.api.status import FailureRecord, Member, Status


def overall_speed(status: Status) -> float | None:
    """Samples a second from the start of the first pods to the end of the job; None before the end."""
    if status.start_time is None or status.completion_time is None or status.completion_time <= status.start_time:
        return None
    return status.progress.samples / (status.completion_time - status.start_time)


def report(job: str, status: Status, samples_per_s: float | None) -> dict[str, Any]:
    """The job's outcome as plain JSON values; figures that were never measured are None.

    `samples_per_s` is the rate over the whole run, recoveries included.
    """
    plan, budget, progress, overhead = status.plan, status.budget, status.progress, status.overhead
    return {
        "job": job,
        "phase": status.phase,
        "samples": progress.samples,
        "samples_per_s": samples_per_s,
        "auc": progress.auc,
        "logloss": progress.logloss,
        "metrics": progress.metrics,
        "held_out": None if progress.held_out is None else progress.held_out.model_dump(mode="json"),
        "best": None if status.best is None else status.best.model_dump(mode="json"),
        "plan": None
        if plan is None
        else {"mode": plan.mode, "interval_s": plan.interval_seconds, "reason": plan.reason},
        "budget": None
        if budget is None
        else {
            "limit": budget.limit,
            "spent": budget.spent,
            "running_sum": budget.running_sum,
            "rollbacks": budget.rollbacks,
        },
        "replayed_samples": status.progress.replayed_samples,
        "protected_samples": status.progress.protected_samples,
        "lost_row_updates": status.lost_row_updates,
        "lost_row_updates_exact": status.lost_row_updates_exact,
        "failures": [_failure(each) for each in status.failures],
        "pods": [
            *(_pod("shard", shard) for shard in status.shards),
            *(_pod("trainer", trainer) for trainer in status.trainers),
        ],
        "overhead": {
            "save_s": overhead.save_seconds,
            "load_s": overhead.load_seconds,
            "lost_s": overhead.lost_seconds,
            "reschedule_s": overhead.reschedule_seconds,
        },
        "result": None if status.result is None else status.result.key,
    }


def _failure(record: FailureRecord) -> dict[str, Any]:
    return {
        "role": record.role,
        "index": record.index,
        "kind": record.kind,
        "lost_samples": record.lost_samples,
        "replayed_samples": record.replayed_samples,
        "replayed_in_order": record.replayed_in_order,
        "lost_row_updates": record.lost_row_updates,
        "lost_row_updates_exact": record.lost_row_updates_exact,
        "recovery_s": record.recovery_seconds,
        "action": record.action,
        "incarnation": record.incarnation,
        "life": record.life,
        "tier": record.tier,
        "message": record.message,
    }


def _pod(role: str, member: Member) -> dict[str, Any]:
    return {
        "name": member.pod,
        "role": role,
        "index": member.index,
        "incarnation": member.incarnation,
        "uid": member.uid,
    }
