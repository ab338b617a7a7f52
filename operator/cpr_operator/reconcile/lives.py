"""Processes that ended and were followed by others in the same pod: what the operator hears of it, after the fact."""

from __future__ import annotations

from cpr_contract.reports import ShardReport, TrainerReport
from cpr_operator.api.status import Shard, Trainer
from cpr_operator.failures import Failure, Kind
from cpr_operator.reconcile.members import record_restart, with_shards, with_trainer
from cpr_operator.reconcile.observe import leader_report, report_of
from cpr_operator.reconcile.pass_ import Draft


def tell_lives(draft: Draft) -> Draft:
    """Record each life of a member that has ended, once. Nothing is reserved, charged or replaced for it."""
    for shard in draft.status.shards:
        lives = _lives(draft, shard)
        draft = _record(draft, shard, lives, "with all rows")
        if lives > shard.lives:
            draft = draft.to(with_shards(draft.status, {shard.index: shard.evolve(lives=lives)}))
    for trainer in draft.status.trainers:
        report = report_of(draft.observed, trainer)
        lives = report.lives if isinstance(report, TrainerReport) else 0
        draft = _record(draft, trainer, lives, "after the last complete step")
        if lives > trainer.lives:
            draft = draft.to(with_trainer(draft.status, trainer.evolve(lives=lives)))
    return draft


def _record(draft: Draft, member: Shard | Trainer, lives: int, where: str) -> Draft:
    for life in range(max(member.lives, 1), lives):
        message = f"the process ended, and the next one went on {where}: life {life + 1}"
        failure = Failure(Kind.CRASHED, "RestartedInPlace", message, ended=False)
        draft = record_restart(draft, member, failure, life)
    return draft


def _lives(draft: Draft, shard: Shard) -> int:
    """How many lives the shard's incarnation has had, by its own word or that of the leader, which is connected to it.

    A leader that follows another roster may mean another incarnation.
    """
    report, leader = report_of(draft.observed, shard), leader_report(draft.observed)
    mine = report.lives if isinstance(report, ShardReport) else 0
    if leader is None or leader.counters.roster != draft.status.counters.roster:
        return mine
    return max(mine, leader.shard_lives[shard.index] if shard.index < len(leader.shard_lives) else 0)
