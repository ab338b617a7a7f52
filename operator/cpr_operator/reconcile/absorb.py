"""What pods and reports tell, taken into the status: addresses, states, saves, and what a recovery has cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from cpr_contract.manifests import RowUpdates
from cpr_contract.reports import ShardReport, ShardState, TrainerReport
from cpr_contract.spec import steps_in
from cpr_operator.api.status import Member, Shard, Status, Trainer
from cpr_operator.ledger import Ranges, length, union
from cpr_operator.reconcile.edit import account_of, with_account
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
    report_of,
)
from cpr_operator.reconcile.reports import AT_WORK, is_current, is_premature, leader_report, takes_part
from cpr_operator.reconcile.world import World

M = TypeVar("M", Shard, Trainer)


def absorb(world: World, facts: Mapping[str, Fact]) -> Status:
    """The status with everything that this pass' pods and reports tell."""
    status = _adopt(world.job.status, facts)
    status = _absorb_shards(world, status)
    trainers = tuple(_absorb_trainer(world, status, trainer) for trainer in status.trainers)
    status = status.evolve(trainers=trainers)
    leader = leader_report(world)
    if leader is None or not is_current(status, leader) or is_premature(world, status, leader):
        return status
    status = absorb_figures(world, status, leader)
    if leader.state in AT_WORK and leader.counters.group == status.counters.group and not leader.waiting_for:
        status = _all_at_work(status, facts)
    return _settle_dense(status, leader)


def _adopt(status: Status, facts: Mapping[str, Fact]) -> Status:
    shards = tuple(_seen(shard, facts[shard.name]) for shard in status.shards)
    trainers = tuple(_seen(trainer, facts[trainer.name]) for trainer in status.trainers)
    return status.evolve(shards=shards, trainers=trainers)


def _seen(member: M, fact: Fact) -> M:
    """The entry with what its pod shows."""
    match fact:
        case Alive(pod=pod) | Going(pod=pod) | Lost(pod=pod) if pod is not None:
            running = pod.phase == "Running"
            return member.evolve(
                uid=pod.uid,
                node=pod.node or member.node,
                host=pod.host or member.host,
                port_base=pod.port_base or member.port_base,
                state="Starting" if running and member.state == "Pending" else member.state,
            )
        case Done() if isinstance(member, Trainer):
            return member.evolve(state="Finished")
        case _:
            return member


@dataclass(slots=True)
class _Told:
    """What the shards of one pass told together: the account takes it in once, however many they are."""

    lost: dict[int, Ranges] = field(default_factory=dict)
    running: int = 0
    load_s: float = 0.0
    losses: list[tuple[Shard, int, RowUpdates | None]] = field(default_factory=list)


def _absorb_shards(world: World, status: Status) -> Status:
    told = _Told()
    shards = tuple(_absorb_shard(world, status, shard, told) for shard in status.shards)
    status = status.evolve(shards=shards)
    if told.load_s and status.recovery is not None:
        load_s = max(status.recovery.load_seconds, told.load_s)
        status = status.evolve(recovery=status.recovery.evolve(load_seconds=load_s))
    for shard, samples, row_updates in told.losses:
        status = with_loss(status, shard, samples, row_updates)
    if not told.lost:
        return status
    return with_account(status, account_of(status).settle(told.lost).recovered(told.running))


def _absorb_shard(world: World, status: Status, shard: Shard, told: _Told) -> Shard:
    """The entry with what the shard reports; what concerns the whole job goes into `told`."""
    report = report_of(world, shard)
    if not isinstance(report, ShardReport):
        return shard
    current, returns = is_current(status, report), not is_settled(shard)
    state = report.state if current or report.state is not ShardState.READY else ShardState.RESTORING
    problem, saved = report.problem.reason if report.problem else "", shard.saved_samples
    if current and (report.newest_save is not None or state in {ShardState.READY, ShardState.BELOW_FLOOR}):
        saved = report.newest_save.samples if report.newest_save else 0
    shard = shard.evolve(state=state.value, problem=problem, saved_samples=saved)
    if not current:
        return shard
    if returns:
        told.load_s = max(told.load_s, report.load_s or 0.0)
    knows = shard.lost_at is None or report.resumed_samples is not None or _has_all(world, status, report)
    return _settle_shard(status, shard, report, told) if state is ShardState.READY and knows else shard


def _has_all(world: World, status: Status, report: ShardReport) -> bool:
    """Whether the shard stands at the last step: it waits for no push any more."""
    total = status.ledger.total_samples
    return total > 0 and min(report.applied, default=0) >= steps_in(total, world.job.spec.data.batch_size)


def _settle_shard(status: Status, shard: Shard, report: ShardReport, told: _Told) -> Shard:
    """The shard knows what it has lost: that is charged, once."""
    told.lost[shard.index] = report.lost
    now = _with_row_updates(shard, report)
    if shard.lost_at is not None:
        before = status.ledger.ranges[shard.index] if status.ledger.ranges else ()
        lost = length(union(before, report.lost)) - length(before)
        told.losses.append((shard, lost, _lost_updates(shard, now)))
        told.running += max((report.resumed_samples or 0) - (report.restored_samples or 0), 0)
    return now.evolve(lost_at=None, owes_from=None, allowance=0)


def _lost_updates(before: Shard, now: Shard) -> RowUpdates | None:
    """What is lost now and was not before: as with samples, what is lost again counts once."""
    if before.lost_row_updates is None or now.lost_row_updates is None:
        return None
    lost = max(now.lost_row_updates - before.lost_row_updates, 0)
    return RowUpdates(lost=lost, exact=now.lost_row_updates_exact)


def _with_row_updates(shard: Shard, report: ShardReport) -> Shard:
    told = report.row_updates
    if told is None:
        return shard
    return shard.evolve(lost_row_updates=max(told.lost, 0), lost_row_updates_exact=told.exact)


def _absorb_trainer(world: World, status: Status, trainer: Trainer) -> Trainer:
    report = report_of(world, trainer)
    if not isinstance(report, TrainerReport):
        return trainer
    trainer = trainer.evolve(state=report.state.value, problem=report.problem.reason if report.problem else "")
    if is_current(status, report) and report.counters.group == status.counters.group and takes_part(report):
        trainer = trainer.evolve(lost_at=None)
    return trainer


def _all_at_work(status: Status, facts: Mapping[str, Fact]) -> Status:
    """A leader that trains has all shards and its whole group: nobody else has to be asked."""

    def at_work(member: Member, name: str) -> bool:
        return member.lost_at is None and isinstance(facts[name], Alive)

    shards = tuple(s.evolve(state="Ready") if at_work(s, s.name) else s for s in status.shards)
    trainers = tuple(
        t.evolve(state="Training", lost_at=None)
        if isinstance(facts[t.name], Alive) and t.state not in TRAINING_STATES
        else t
        for t in status.trainers
    )
    return status.evolve(shards=shards, trainers=trainers)


def _settle_dense(status: Status, leader: TrainerReport) -> Status:
    account = account_of(status)
    ended = leader.result is not None  # that is the model, whoever else was to train on
    if ended or (leader.state in AT_WORK and leader.counters.group == status.counters.group):
        before, account = account.ledger.lost, account.settle_dense(leader.lost)
        lost = max(length(now) - length(old) for old, now in zip(before, account.ledger.lost, strict=True))
        account = account.recovered(lost * len(status.shards))
        for trainer in status.trainers:
            status = with_loss(status, trainer, lost)
    return with_account(status, account)
