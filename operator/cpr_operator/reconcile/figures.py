"""The leader's figures: progress, saves and anchors."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_CEILING, Context

from cpr_contract.codec import ContractError, from_json
from cpr_contract.reports import Result, TrainerReport
from cpr_operator.api.status import MAX_ANCHORS, Anchor, Progress, Shard, Shown, Status
from cpr_operator.ledger import limit_of
from cpr_operator.policy.words import duration
from cpr_operator.reconcile.edit import account_of, with_account
from cpr_operator.reconcile.learning import after_report
from cpr_operator.reconcile.observe import Done, Fact
from cpr_operator.reconcile.reports import on_line, takes_part
from cpr_operator.reconcile.world import World

_FOUR_DIGITS_UP = Context(prec=4, rounding=ROUND_CEILING)


def absorb_figures(world: World, status: Status, report: TrainerReport) -> Status:
    """The status with the figures of a current report of the leader."""
    status = with_total(world, status, report.total_samples)
    if takes_part(report):
        status = after_report(world.job.spec, status, report, world.now)
        status = status.evolve(progress=_progress(status.progress, report, world.now))
    status = status.evolve(
        anchors=restorable(status, tuple(Anchor.of(ref) for ref in report.anchors) or status.anchors),
        result=Anchor.of(report.result) if report.result else status.result,
    )
    if report.dense_save is not None and on_line(status, world.job.id.uid, report.dense_save):
        saved = max(status.dense.saved_samples, report.dense_save.samples)
        status = status.evolve(dense=status.dense.evolve(saved_samples=saved))
    return status.evolve(shards=_saves(status, report))


def with_total(world: World, status: Status, total_samples: int) -> Status:
    """The status with the size of the whole job, and the budget in integers that follows from it.

    A limit that is lowered stops at what is lost or set aside already: only a loss rolls a job back, never a limit.
    """
    portion, account = world.job.spec.accuracy_budget.portion, account_of(status)
    total = total_samples or status.ledger.total_samples
    wanted = limit_of(portion, total, len(status.shards))
    limit = max(wanted, min(account.ledger.limit, account.charged))
    return status.evolve(
        ledger=status.ledger.evolve(total_samples=total, limit_sample_shards=limit),
        progress=status.progress.evolve(total_samples=total),
    )


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


def with_anchor(status: Status, anchor: Anchor, keep: int) -> Status:
    """The status with one more anchor, of which its writer kept the last `keep`."""
    others = tuple(known for known in status.anchors if known.key != anchor.key)
    return status.evolve(anchors=restorable(status, (*others, anchor))[-keep:])


def result_of(status: Status, facts: Mapping[str, Fact]) -> Anchor | None:
    """The final anchor: from the leader's last words, or already known from its report.

    One of an earlier generation is none, unless this one began with it: trainers that had not heard of a rollback
    trained on to their end.
    """
    word = _last_word(status, facts)
    if word is None:
        return status.result
    return next(iter(restorable(status, (Anchor.of(word.anchor),))), None)


def with_last_word(status: Status, facts: Mapping[str, Fact]) -> Status:
    """The status with what the final anchor lacks, and its scores: no report may have told them."""
    word = _last_word(status, facts)
    if word is None:
        return status
    status = with_account(status, account_of(status).settle_dense(word.lost))
    progress = status.progress.evolve(loss=word.loss, auc=word.auc, logloss=word.logloss, metrics=dict(word.metrics))
    return status.evolve(progress=progress)


def _last_word(status: Status, facts: Mapping[str, Fact]) -> Result | None:
    """What the leader left behind when it had trained everything."""
    leader = facts.get(f"trainer/{status.leader or 0}")
    if not isinstance(leader, Done) or not leader.message:
        return None
    try:
        return from_json(Result, leader.message)
    except ContractError:
        return None


def with_shown(status: Status) -> Status:
    """The status with its figures for people, rounded and with units."""
    progress, plan, budget = status.progress, status.plan, status.budget
    shown = Shown(
        progress=f"{progress.percent}%" if progress.total_samples else "",
        interval=duration(plan.interval_seconds) if plan else "",
        spent=_portion(budget.spent) if budget else "",
        limit=_portion(budget.limit) if budget else "",
        auc="" if progress.auc is None else f"{progress.auc:.4f}",
    )
    return status.evolve(shown=shown)


def _portion(value: float) -> str:
    """Rounded up: a limit of what is printed as spent allows what is lost."""
    return f"{_FOUR_DIGITS_UP.create_decimal(repr(value)).normalize():f}"


def _progress(before: Progress, report: TrainerReport, now: float) -> Progress:
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
        metrics=dict(report.metrics),
        eta_seconds=left / rate if rate else None,
        degraded_samples=before.degraded_samples,
        updated=now,
    )


def _saves(status: Status, report: TrainerReport) -> tuple[Shard, ...]:
    """Shards with the saves that the leader saw acknowledged. Of one that restores it may know the predecessor's."""
    saves = dict(enumerate(report.shard_saves))

    def saved(shard: Shard) -> Shard:
        telling = shard.lost_at is None and shard.state in {"Ready", "Lost"}
        known = saves.get(shard.index, -1) if telling else -1
        return shard.evolve(saved_samples=max(known, shard.saved_samples))

    return tuple(saved(shard) for shard in status.shards)
