"""Pods and reports, taken into the status: states, saves, losses, and the leader's figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Context
from typing import cast

from cpr_contract import env
from cpr_contract.manifests import RowUpdates
from cpr_contract.reports import ShardReport, ShardState, TrainerReport
from cpr_contract.spec import steps_in
from cpr_operator.api.members import ShardPhase
from cpr_operator.api.spec import CPRJobSpec
from cpr_operator.api.status import (
    MAX_ANCHORS,
    Anchor,
    BestModel,
    HeldOut,
    Member,
    Progress,
    Scale,
    Shard,
    Shown,
    Status,
    Trainer,
)
from cpr_operator.cluster.protocol import Event
from cpr_operator.ledger import Ranges, length, limit_of, union
from cpr_operator.policy.plan import duration
from cpr_operator.reconcile.members import Cost, M, edited, with_cost
from cpr_operator.reconcile.observe import (
    AT_WORK,
    TRAINING_STATES,
    is_current,
    is_premature,
    is_settled,
    on_lineage,
    start_anchor,
    takes_part,
)
from cpr_operator.reconcile.plan import after_replay, after_report, replay_as_told
from cpr_operator.reconcile.types import Active, Done, EventReason, Fact, Lost, ReconcileState, Terminating
from cpr_operator.reconcile.workers import workers_as_told
from cpr_operator.recovery.account import account_of, with_account

_FOUR_DIGITS_UP = Context(prec=4, rounding=ROUND_CEILING)


def apply_reports(state: ReconcileState) -> ReconcileState:
    """The status with everything that the pods and reports of this pass tell."""
    state = _apply_pods(state)
    # Members before the leader, because what it says of the job is believed only once a shard
    # serves its generation.
    state = _apply_shards(state)
    state = _apply_trainers(state)
    leader, status = state.leader_report, state.status
    if leader is None or not is_current(status, leader) or is_premature(state, leader):
        return state
    status = workers_as_told(replay_as_told(_apply_figures(state, leader), leader), leader)
    if leader.state in AT_WORK and leader.counters.group == status.counters.group and not leader.waiting_for:
        status = _all_at_work(status, state.facts)
    return state.to(_settle_dense(status, leader))


def _apply_pods(state: ReconcileState) -> ReconcileState:
    def seen(member: M) -> M:
        return _seen(member, state.facts[member.name])

    return state.to(edited(state.status, seen))


def _seen(member: M, fact: Fact) -> M:
    """The entry with what its pod shows."""
    match fact:
        case Active(pod=pod) | Terminating(pod=pod) | Lost(pod=pod) if pod is not None:
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
    costs: list[tuple[Shard, Cost]] = field(default_factory=list)
    replays: list[tuple[int, float]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)


def _apply_shards(state: ReconcileState) -> ReconcileState:
    told = _Told()
    status = state.status.evolve(shards=tuple(_apply_shard(state, shard, told) for shard in state.status.shards))
    if told.load_s and status.recovery is not None:
        load_s = max(status.recovery.load_seconds, told.load_s)
        status = status.evolve(recovery=status.recovery.evolve(load_seconds=load_s))
    for shard, cost in told.costs:
        status = with_cost(status, shard, cost)
    replayed = status.progress.replayed_samples + sum(cost.replayed for _, cost in told.costs)
    status = status.evolve(progress=status.progress.evolve(replayed_samples=replayed))
    for samples, took_s in told.replays:
        status = status.evolve(policy=after_replay(status.policy, samples, took_s))
    if told.lost:
        status = with_account(status, account_of(status).settle(told.lost).recovered(told.running))
    return state.to(status, *told.events)


def _apply_shard(state: ReconcileState, shard: Shard, told: _Told) -> Shard:
    """The entry with what the shard reports; what concerns the whole job goes into `told`."""
    report = state.report_of(shard)
    if not isinstance(report, ShardReport):
        return shard
    current, returns = is_current(state.status, report), not is_settled(shard)
    reported = report.state if current or report.state is not ShardState.READY else ShardState.RESTORING
    problem, saved = report.problem.reason if report.problem else "", shard.saved_samples
    if current and (report.newest_save is not None or reported in {ShardState.READY, ShardState.BELOW_FLOOR}):
        saved = report.newest_save.samples if report.newest_save else 0
    phase = cast(ShardPhase, reported.value)  # a spare's report is not this shard's: it has no index
    shard = shard.evolve(state=phase, problem=problem, saved_samples=saved)
    if not current:
        return shard
    if returns:
        told.load_s = max(told.load_s, report.load_s or 0.0)
    knows = shard.lost_at is None or report.resumed_samples is not None or _has_all(state, report)
    return _settle_shard(state.status, shard, report, told) if reported is ShardState.READY and knows else shard


def _has_all(state: ReconcileState, report: ShardReport) -> bool:
    """Whether the shard has reached the last step, so that no push can be missing."""
    total, result = state.status.ledger.total_samples, state.status.result
    last = steps_in(total, state.spec.data.batch_size) if result is None else result.step
    return total > 0 and min(report.applied, default=0) >= last


def _settle_shard(status: Status, shard: Shard, report: ShardReport, told: _Told) -> Shard:
    """The shard knows what it has lost: that is charged, once."""
    told.lost[shard.index] = report.lost
    now = _with_row_updates(shard, report)
    if shard.lost_at is not None:
        before = status.ledger.ranges[shard.index] if status.ledger.ranges else ()
        lost = length(union(before, report.lost)) - length(before)
        row_updates = _lost_updates(shard, now)
        cost = Cost(lost, row_updates, report.replayed_samples, report.replayed_in_order, rebuilt=report.rebuilt)
        told.costs.append((shard, cost))
        if report.rebuilt:
            told.events.append(_rebuilt(shard, report))
        if report.replay_s is not None:
            told.replays.append((report.replayed_samples, report.replay_s))
        told.running += max((report.resumed_samples or 0) - (report.restored_samples or 0), 0)
    return now.evolve(lost_at=None, owes_from=None, allowance=0)


def _rebuilt(shard: Shard, report: ShardReport) -> Event:
    took = "" if report.load_s is None else f" in {report.load_s:.2f} s"
    message = (
        f"{shard.name}, incarnation {shard.incarnation}: computed from other shards{took}, as of sample "
        f"{report.restored_samples or 0}; trainers pushed {report.replayed_samples} samples again"
    )
    return Event("Normal", EventReason.REBUILT, message, f"rebuilt-{shard.pod}")


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


def _apply_trainers(state: ReconcileState) -> ReconcileState:
    trainers = tuple(_apply_trainer(state, trainer) for trainer in state.status.trainers)
    return state.to(state.status.evolve(trainers=trainers))


def _apply_trainer(state: ReconcileState, trainer: Trainer) -> Trainer:
    report, status = state.report_of(trainer), state.status
    if not isinstance(report, TrainerReport):
        return trainer
    trainer = trainer.evolve(state=report.state.value, problem=report.problem.reason if report.problem else "")
    if is_current(status, report) and report.counters.group == status.counters.group and takes_part(report):
        trainer = trainer.evolve(lost_at=None)
    return trainer


def _all_at_work(status: Status, facts: Mapping[str, Fact]) -> Status:
    """A leader that trains has all shards and its whole group, so no other member has to be asked."""

    def at_work(member: Member, name: str) -> bool:
        return member.lost_at is None and isinstance(facts[name], Active)

    shards = tuple(s.evolve(state="Ready") if at_work(s, s.name) else s for s in status.shards)
    trainers = tuple(
        t.evolve(state="Training", lost_at=None)
        if isinstance(facts[t.name], Active) and t.state not in TRAINING_STATES
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
            status = with_cost(status, trainer, Cost(lost))
    return with_account(status, account)


def _apply_figures(state: ReconcileState, report: TrainerReport) -> Status:
    """The status with the figures of a current report of the leader."""
    status = with_total(state.spec, state.status, report.total_samples)
    if takes_part(report):
        # Before the progress is set: what was trained since the last report is learnt from both.
        status = after_report(state.spec, status, report, state.now)
        status = status.evolve(progress=_progress(status.progress, report, state.now))
    status = status.evolve(
        anchors=restorable(status, tuple(Anchor.of(ref) for ref in report.anchors) or status.anchors),
        result=Anchor.of(report.result) if report.result else status.result,
        best=_best(status, report),
    )
    if report.dense_save is not None and on_lineage(status, state.observed.job.id.uid, report.dense_save):
        saved = max(status.dense.saved_samples, report.dense_save.samples)
        status = status.evolve(dense=status.dense.evolve(saved_samples=saved))
    return status.evolve(shards=_saves(status, report))


def _best(status: Status, report: TrainerReport) -> BestModel | None:
    """The best evaluation: a new leader has to look for it, and what was undone by a rollback counts no more."""
    if report.best is not None:
        return BestModel.of(report.best)
    return status.best if status.best is not None and restorable(status, (status.best.anchor,)) else None


def with_total(spec: CPRJobSpec, status: Status, total_samples: int) -> Status:
    """The status with the size of the whole job, and the budget in integers that follows from it.

    A limit that is lowered stops at what is lost or set aside already: only a loss rolls a job back, never a limit.
    """
    portion, account = spec.accuracy_budget.portion, account_of(status)
    total = total_samples or status.ledger.total_samples
    wanted = limit_of(portion, total, len(status.shards))
    limit = max(wanted, min(account.ledger.limit, account.charged))
    return status.evolve(
        ledger=status.ledger.evolve(total_samples=total, limit_sample_shards=limit),
        progress=status.progress.evolve(total_samples=total),
    )


def restorable(status: Status, anchors: tuple[Anchor, ...]) -> tuple[Anchor, ...]:
    """Those on the job's line: of this generation, or not after the anchor that it started from."""
    generation, origin = status.counters.generation, start_anchor(status)
    start = origin.samples if origin else 0
    return tuple(a for a in anchors if a.generation == generation or a.samples <= start)[-MAX_ANCHORS:]


def with_anchor(status: Status, anchor: Anchor, keep: int) -> Status:
    """The status with one more anchor, of which its writer kept the last `keep`."""
    others = tuple(known for known in status.anchors if known.key != anchor.key)
    return status.evolve(anchors=restorable(status, (*others, anchor))[-keep:])


def with_shown(status: Status, job_name: str) -> Status:
    """The status with its figures for people, rounded and with units, and those of the subresource scale."""
    progress, plan, budget = status.progress, status.plan, status.budget
    trains = status.phase == "Running"
    speed, eta_s = (progress.samples_per_second, progress.eta_seconds) if trains else (None, None)
    shown = Shown(
        progress=f"{progress.percent}%" if progress.total_samples else "",
        interval=duration(plan.interval_seconds) if plan else "",
        spent=_portion(budget.spent) if budget else "",
        limit=_portion(budget.limit) if budget else "",
        auc="" if progress.auc is None else f"{progress.auc:.4f}",
        speed="" if speed is None else f"{speed:.0f}/s",
        eta="" if eta_s is None else duration(eta_s),
    )
    selector = f"{env.LABEL_JOB}={job_name},{env.LABEL_ROLE}={env.ROLE_TRAINER}"
    return status.evolve(shown=shown, scale=Scale(replicas=len(status.trainers), selector=selector))


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
        held_out=_held_out(before, report),
        eta_seconds=left / rate if rate else None,
        degraded_samples=before.degraded_samples,
        replayed_samples=before.replayed_samples,
        protected_samples=_protected(report),
        updated=now,
    )


def _protected(report: TrainerReport) -> int | None:
    """The samples that parity or a save holds of every shard; None without parity, or before all shards told."""
    held = tuple(map(max, zip(report.shard_protected, report.shard_saves, strict=False)))
    return min(held) if held and min(held) >= 0 else None


def _held_out(before: Progress, report: TrainerReport) -> HeldOut | None:
    """The last evaluation: a new leader has none of before, and what was undone by a rollback counts no more."""
    if report.evaluation is not None:
        return HeldOut.of(report.evaluation)
    known = before.held_out
    return known if known is not None and known.samples <= report.samples else None


def _saves(status: Status, report: TrainerReport) -> tuple[Shard, ...]:
    """Shards with the saves that the leader saw acknowledged. Of one that restores it may know the predecessor's."""
    saves = dict(enumerate(report.shard_saves))

    def saved(shard: Shard) -> Shard:
        telling = shard.lost_at is None and shard.state in {"Ready", "Lost"}
        known = saves.get(shard.index, -1) if telling else -1
        return shard.evolve(saved_samples=max(known, shard.saved_samples))

    return tuple(saved(shard) for shard in status.shards)
