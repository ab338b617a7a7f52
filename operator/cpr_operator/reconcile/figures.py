"""The leader's figures: progress, saves and anchors, and what fault tolerance costs."""

from __future__ import annotations

from collections.abc import Mapping

from cpr_contract.codec import ContractError, from_json
from cpr_contract.reports import TrainerReport
from cpr_contract.roster import AnchorRef
from cpr_operator.api.status import MAX_ANCHORS, Anchor, Overhead, Policy, Progress, Shard, Status
from cpr_operator.ledger import limit_of
from cpr_operator.reconcile.observe import Done, Fact, member_name
from cpr_operator.reconcile.world import World, change


def absorb_figures(world: World, status: Status, report: TrainerReport) -> Status:
    """The status with the figures of a current report of the leader."""
    status = with_total(world, status, report.total_samples)
    status = change(
        status,
        progress=_progress(report, world.now) if report.total_samples else status.progress,
        anchors=restorable(status, tuple(Anchor.of(ref) for ref in report.anchors) or status.anchors),
        policy=_costs(status.policy, report),
        overhead=_overhead(status.overhead, report.save_stall_s),
        result=Anchor.of(report.result) if report.result else status.result,
    )
    if report.dense_save is not None:
        saved = max(status.dense.saved_samples, report.dense_save.samples)
        status = change(status, dense=change(status.dense, saved_samples=saved))
    return change(status, shards=_saves(status, report))  # type: ignore[no-any-return]


def with_total(world: World, status: Status, total_samples: int) -> Status:
    """The status with the size of the whole job, and the budget in integers that follows from it."""
    portion = world.job.spec.accuracy_budget.portion_of_lost_samples
    total = total_samples or status.ledger.total_samples
    limit = limit_of(portion, total, len(status.shards))
    return change(status, ledger=change(status.ledger, total_samples=total, limit_sample_shards=limit))  # type: ignore[no-any-return]


def restorable(status: Status, anchors: tuple[Anchor, ...]) -> tuple[Anchor, ...]:
    """Those on the job's line: of this generation, or not after the anchor that it started from."""
    origin = status.forks[-1].anchor if status.forks else None
    fork_samples = origin.samples if origin else 0
    kept = tuple(
        anchor
        for anchor in anchors
        if anchor.generation == status.counters.generation or anchor.samples <= fork_samples
    )
    return kept[-MAX_ANCHORS:]


def result_of(status: Status, facts: Mapping[str, Fact]) -> Anchor | None:
    """The final anchor: from the leader's last words, or already known from its report."""
    leader = facts.get(member_name("trainer", status.leader or 0))
    if isinstance(leader, Done) and leader.message:
        try:
            return Anchor.of(from_json(AnchorRef, leader.message))
        except ContractError:
            return status.result
    return status.result


def _progress(report: TrainerReport, now: float) -> Progress:
    left, rate = report.total_samples - report.samples, report.samples_per_s
    return Progress(
        step=report.step,
        samples=report.samples,
        total_samples=report.total_samples,
        percent=min(100 * report.samples // report.total_samples, 100),
        samples_per_second=rate,
        loss=report.loss,
        auc=report.auc,
        logloss=report.logloss,
        eta_seconds=left / rate if rate else None,
        updated=now,
    )


def _costs(policy: Policy, report: TrainerReport) -> Policy:
    stall = report.save_stall_s / report.saves if report.saves else policy.save_stall_seconds
    commit = policy.commit_seconds if report.commit_s is None else report.commit_s
    rate = report.samples_per_s or policy.samples_per_second
    return change(policy, save_stall_seconds=stall, commit_seconds=commit, samples_per_second=rate)  # type: ignore[no-any-return]


def _overhead(overhead: Overhead, stall_s: float) -> Overhead:
    """Add what the leader's counter grew by; a smaller one is a new leader's, which began at 0."""
    known = overhead.leader_save_seconds
    grown = stall_s - known if stall_s >= known else stall_s
    return change(overhead, save_seconds=overhead.save_seconds + grown, leader_save_seconds=stall_s)  # type: ignore[no-any-return]


def _saves(status: Status, report: TrainerReport) -> tuple[Shard, ...]:
    """Shards with the saves that the leader saw acknowledged. Of one that restores it may know the predecessor's."""
    saves = dict(enumerate(report.shard_saves))

    def saved(shard: Shard) -> Shard:
        telling = shard.lost_at is None and shard.state in {"Ready", "Lost"}
        known = saves.get(shard.index, -1) if telling else -1
        return change(shard, saved_samples=max(known, shard.saved_samples))  # type: ignore[no-any-return]

    return tuple(saved(shard) for shard in status.shards)
