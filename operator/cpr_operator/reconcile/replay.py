"""What trainers can push again to a shard that is lost, from their reports."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from cpr_contract.reports import TrainerReport
from cpr_operator.api.frozen_settings import replay_in_force
from cpr_operator.api.sizes import data_shards_of, recoverable
from cpr_operator.api.status import Shard, Status, Trainer
from cpr_operator.reconcile.observe import is_current
from cpr_operator.reconcile.types import Active, ReconcileState, Terminating
from cpr_operator.recovery.account import pending_from
from cpr_operator.recovery.decide import Loss, RecoveryInput


def with_replay(state: ReconcileState, given: RecoveryInput) -> RecoveryInput:
    """The input with what trainers push again, if the job replays."""
    status = state.status
    if not replay_in_force(state.spec, status).enabled:
        return given
    reports = {trainer.index: _report(state, trainer) for trainer in status.trainers}
    living = {t.index for t in status.trainers if isinstance(state.facts[t.name], Active | Terminating)}
    kept = [report for index, report in reports.items() if index in living and report is not None]
    in_parity = _in_parity(state, given)
    return replace(
        given,
        losses=tuple(_loss(loss, status, kept, in_parity) for loss in given.losses),
        unreported=tuple(t for t in given.survivors if t in living and reports[t] is None),
        orphaned=_orphaned(status, given),
    )


def _loss(loss: Loss, status: Status, reports: list[TrainerReport], in_parity: Collection[int]) -> Loss:
    """A loss with the newest save that any trainer knows, and what all of them together push again after it.

    What parity holds is as good as saved. If it turns out to be gone, the shard is below its floor, and this is decided
    anew. One that is lost has taken what it kept along, and a newcomer keeps nothing of before.
    """
    # Of a shard that restores trainers may know a save of its predecessor that it did not find.
    number = status.shards[loss.index].incarnation
    told = (save for report in reports for save, teller in _saves_of(report, loss.index) if teller == number)
    saved = loss.saved if loss.flushed else max(loss.saved, *told, 0)
    if loss.index in in_parity and not loss.flushed:
        tellers = (report for report in reports if report.shard_incarnations[loss.index : loss.index + 1] == (number,))
        told_now = (samples for r in tellers for samples in r.shard_protected[loss.index : loss.index + 1])
        saved = max(saved, *told_now, _known(status, status.shards[loss.index]))
    gone = [r.forgotten[loss.index] if loss.index < len(r.forgotten) else -1 for r in reports]
    if len(gone) < len(status.trainers) or min(gone) < 0:
        return replace(loss, saved=saved)
    return replace(loss, saved=saved, kept_after=max(gone))


def _in_parity(state: ReconcileState, given: RecoveryInput) -> Collection[int]:
    """Lost shards that parity gives back; not one that has asked it for its floor and did not get that."""
    k, shards = data_shards_of(state.spec, replay_in_force(state.spec, state.status)), state.status.shards
    if not k:
        return ()
    lost = {loss.index for loss in given.losses} | {shard.index for shard in shards if shard.lost_at is not None}
    asked = {shard.index for shard in shards if shard.state == "BelowFloor"}
    return {index for index in lost - asked if recoverable(index, lost, len(shards), k)}


def _known(status: Status, shard: Shard) -> int:
    """What parity held of a shard when it was last told of, whoever told: parity only grows while its holders live.

    That is also what the shard was to find if it is lost again before it was there.
    """
    known = status.progress.protected_samples or 0
    return known if shard.lost_at is None else max(known, shard.floor_samples)


def _saves_of(report: TrainerReport, index: int) -> tuple[tuple[int, int], ...]:
    """The samples of a shard's newest save as a trainer knows it, and the incarnation that told; empty if unknown."""
    return tuple(zip(report.shard_saves, report.shard_incarnations, strict=False))[index : index + 1]


def _orphaned(status: Status, given: RecoveryInput) -> tuple[tuple[int, int], ...]:
    """Shards that have leave, have not told what they lost, and miss what a lost trainer was to push again."""
    decided = {loss.index for loss in given.losses}
    if not given.lost_trainers:
        return ()
    return tuple(
        (shard.index, first)
        for shard in status.shards
        if (first := pending_from(shard)) is not None and shard.predecessor is None and shard.index not in decided
    )


def _report(state: ReconcileState, trainer: Trainer) -> TrainerReport | None:
    report = state.report_of(trainer)
    return report if isinstance(report, TrainerReport) and is_current(state.status, report) else None
