"""What pods and reports tell, taken into the status: addresses, states, saves, and what a recovery has cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from cpr_contract.reports import ShardReport, ShardState, TrainerReport
from cpr_contract.spec import steps_in
from cpr_operator.api.status import Member, Shard, Status, Trainer
from cpr_operator.ledger import length
from cpr_operator.reconcile.edit import account_of, put_shard, put_trainer, with_account
from cpr_operator.reconcile.figures import absorb_figures
from cpr_operator.reconcile.members import with_loss
from cpr_operator.reconcile.observe import (
    TRAINING_STATES,
    Alive,
    Done,
    Fact,
    Going,
    Lost,
    is_settled,
    member_name,
    report_of,
)
from cpr_operator.reconcile.reports import AT_WORK, is_current, is_premature, leader_report, takes_part
from cpr_operator.reconcile.world import World, change

M = TypeVar("M", Shard, Trainer)


def absorb(world: World, facts: Mapping[str, Fact]) -> Status:
    """The status with everything that this pass' pods and reports tell."""
    status = _adopt(world.job.status, facts)
    for shard in status.shards:
        report = report_of(world, shard)
        if isinstance(report, ShardReport):
            status = _absorb_shard(world, status, shard, report)
    for trainer in status.trainers:
        report = report_of(world, trainer)
        if isinstance(report, TrainerReport):
            status = _absorb_trainer(status, trainer, report)
    leader = leader_report(world)
    if leader is None or not is_current(status, leader) or is_premature(world, status, leader):
        return status
    status = absorb_figures(world, status, leader)
    if leader.state in AT_WORK and leader.counters.group == status.counters.group and not leader.waiting_for:
        status = _all_at_work(status, facts)
    return _settle_dense(status, leader)


def _adopt(status: Status, facts: Mapping[str, Fact]) -> Status:
    shards = tuple(_seen(shard, facts[member_name("shard", shard.index)]) for shard in status.shards)
    trainers = tuple(_seen(trainer, facts[member_name("trainer", trainer.index)]) for trainer in status.trainers)
    return change(status, shards=shards, trainers=trainers)  # type: ignore[no-any-return]


def _seen(member: M, fact: Fact) -> M:
    """The entry with what its pod shows."""
    match fact:
        case Alive(pod=pod) | Going(pod=pod) | Lost(pod=pod) if pod is not None:
            running = pod.phase == "Running"
            return change(  # type: ignore[no-any-return]
                member,
                uid=pod.uid,
                node=pod.node or member.node,
                host=pod.host or member.host,
                port_base=pod.port_base or member.port_base,
                state="Starting" if running and member.state == "Pending" else member.state,
            )
        case Done():
            return change(member, state="Finished")  # type: ignore[no-any-return]
        case _:
            return member


def _absorb_shard(world: World, status: Status, shard: Shard, report: ShardReport) -> Status:
    current, returns = is_current(status, report), not is_settled(shard)
    state = report.state if current or report.state is not ShardState.READY else ShardState.RESTORING
    shard = change(shard, state=state.value, problem=report.problem.reason if report.problem else "")
    if not current:
        return put_shard(status, shard)
    if report.newest_save is not None or state in {ShardState.READY, ShardState.BELOW_FLOOR}:
        shard = change(shard, saved_samples=report.newest_save.samples if report.newest_save else 0)
    if returns and report.load_s is not None and status.recovery is not None:
        load_s = max(status.recovery.load_seconds, report.load_s)
        status = change(status, recovery=change(status.recovery, load_seconds=load_s))
    knows = shard.lost_at is None or report.resumed_samples is not None or _has_all(world, status, report)
    if state is not ShardState.READY or not knows:
        return put_shard(status, shard)
    return _settle_shard(status, shard, report)


def _has_all(world: World, status: Status, report: ShardReport) -> bool:
    """Whether the shard stands at the last step: it waits for no push any more."""
    total = status.ledger.total_samples
    return total > 0 and min(report.applied, default=0) >= steps_in(total, world.job.spec.data.batch_size)


def _settle_shard(status: Status, shard: Shard, report: ShardReport) -> Status:
    """The shard knows what it has lost: that is charged, once."""
    account = account_of(status)
    before, account = account.ledger.spent, account.settle(shard.index, report.lost)
    now = _with_row_updates(shard, report)
    if shard.lost_at is not None:
        status = with_loss(status, shard, lost_samples=account.ledger.spent - before, **_lost_updates(shard, now))
        account = account.recovered((report.resumed_samples or 0) - (report.restored_samples or 0))
    return with_account(put_shard(status, change(now, lost_at=None, owes_from=None, allowance=0)), account)


def _lost_updates(before: Shard, now: Shard) -> dict[str, object]:
    """What is lost now and was not before: as with samples, what is lost again counts once."""
    if before.lost_row_updates is None or now.lost_row_updates is None:
        return {}
    lost = max(now.lost_row_updates - before.lost_row_updates, 0)
    return {"lost_row_updates": lost, "lost_row_updates_exact": now.lost_row_updates_exact}


def _with_row_updates(shard: Shard, report: ShardReport) -> Shard:
    told = report.row_updates
    if told is None:
        return shard
    return change(shard, lost_row_updates=max(told.lost, 0), lost_row_updates_exact=told.exact)  # type: ignore[no-any-return]


def _absorb_trainer(status: Status, trainer: Trainer, report: TrainerReport) -> Status:
    trainer = change(trainer, state=report.state.value, problem=report.problem.reason if report.problem else "")
    if is_current(status, report) and report.counters.group == status.counters.group and takes_part(report):
        trainer = change(trainer, lost_at=None)
    return put_trainer(status, trainer)


def _all_at_work(status: Status, facts: Mapping[str, Fact]) -> Status:
    """A leader that trains has all shards and its whole group: nobody else has to be asked."""

    def at_work(member: Member, name: str) -> bool:
        return member.lost_at is None and isinstance(facts[name], Alive)

    shards = tuple(change(s, state="Ready") if at_work(s, member_name("shard", s.index)) else s for s in status.shards)
    trainers = tuple(
        change(t, state="Training", lost_at=None)
        if isinstance(facts[member_name("trainer", t.index)], Alive) and t.state not in TRAINING_STATES
        else t
        for t in status.trainers
    )
    return change(status, shards=shards, trainers=trainers)  # type: ignore[no-any-return]


def _settle_dense(status: Status, leader: TrainerReport) -> Status:
    account = account_of(status)
    ended = leader.result is not None  # that is the model, whoever else was to train on
    if ended or (leader.state in AT_WORK and leader.counters.group == status.counters.group):
        before, account = account.ledger.lost, account.settle_dense(leader.lost)
        lost = max(length(now) - length(old) for old, now in zip(before, account.ledger.lost, strict=True))
        account = account.recovered(lost * len(status.shards))
        for trainer in status.trainers:
            status = with_loss(status, trainer, lost_samples=lost)
    return with_account(status, account)
