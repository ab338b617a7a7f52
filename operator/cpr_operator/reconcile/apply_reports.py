"""Apply pods and reports to the status: states, saves, losses, and the leader's metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from cpr_contract.limits import MAX_COUNTED_TABLES
from cpr_contract.manifests import RowUpdates
from cpr_contract.reports import ShardReport, ShardState, TrainerReport, TrainerState
from cpr_contract.roster import AnchorRef
from cpr_contract.spec import steps_in
from cpr_operator.api.cprjob_spec import CPRJobSpec
from cpr_operator.api.member_status import ShardPhase
from cpr_operator.api.status import (
    MAX_ANCHORS,
    Anchor,
    BestModel,
    DynamicTable,
    HeldOut,
    PinnedData,
    Progress,
    Segment,
    Shard,
    Status,
    Trainer,
    WorkerCount,
)
from cpr_operator.cluster.protocol import Event
from cpr_operator.desired.rosters import start_anchor
from cpr_operator.ledger import Ranges, length, limit_of, union
from cpr_operator.reconcile.members import Cost, M, edited, with_cost, with_shards
from cpr_operator.reconcile.observe import (
    AT_WORK,
    TRAINING_STATES,
    is_current,
    is_premature,
    is_settled,
    on_lineage,
    takes_part,
)
from cpr_operator.reconcile.save_plan import after_replay, after_report, with_reported_settings
from cpr_operator.reconcile.types import Active, Done, EventReason, Fact, Lost, ReconcileState, Terminating
from cpr_operator.recovery.account import account_of, with_account


@dataclass(slots=True)
class _ShardResults:
    """The results of all shards' reports: they enter the account at once, however many there are."""

    lost: dict[int, Ranges] = field(default_factory=dict)
    running: int = 0
    load_s: float = 0.0
    costs: list[tuple[Shard, Cost]] = field(default_factory=list)
    replays: list[tuple[int, float]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)


def apply_reports(state: ReconcileState) -> ReconcileState:
    """Apply all pods and reports to the status."""
    state = _apply_pods(state)
    # Members before the leader: its report of the job counts only once a shard serves its generation.
    state = _apply_shards(state)
    state = state.to(state.status.evolve(tables=_tables(state)))
    trainers = tuple(_apply_trainer(state, trainer) for trainer in state.status.trainers)
    state = state.to(state.status.evolve(trainers=trainers))
    leader, status = state.leader_report, state.status
    if leader is None or not is_current(status, leader) or is_premature(state, leader):
        return state
    status = with_reported_settings(_with_measured_workers(_apply_leader(state, leader), leader), leader)
    if leader.state in AT_WORK and leader.counters.group == status.counters.group and not leader.waiting_for:
        status = _all_at_work(status, state.facts)
    return state.to(_settle_dense(status, leader))


def with_total(spec: CPRJobSpec, status: Status, total_samples: int) -> Status:
    """Return the status with the size of the whole job, and the budget in integers that follows from it.

    A lower limit stops at the losses and reservations: only a loss rolls a job back, never a limit. Data that arrives
    has the size of what is pinned, which only grows.
    """
    budget, account, shards = spec.accuracy_budget, account_of(status), len(status.shards)
    total, ledger = total_samples or status.ledger.total_samples, account.ledger
    if status.data is not None:
        total = max(status.data.real_samples, status.ledger.total_samples)
    limit = max(limit_of(budget.portion, total, shards), min(ledger.limit, account.charged))
    window, most = budget.window or 0, account.most_in_window(budget.window or 0)
    before = min(ledger.window_limit, most) if window == ledger.window else most
    return status.evolve(
        ledger=status.ledger.evolve(
            total_samples=total,
            limit_sample_shards=limit,
            window_samples=window,
            window_limit_sample_shards=max(limit_of(budget.portion, window, shards), before),
        ),
        progress=status.progress.evolve(total_samples=total if status.data is None else status.data.pinned_samples),
    )


def restorable(status: Status, anchors: tuple[Anchor, ...]) -> tuple[Anchor, ...]:
    """Return the anchors on the job's lineage: of this generation, or not after the anchor that it started from."""
    generation, first = status.counters.generation, start_anchor(status)
    start = first.samples if first else 0
    return tuple(a for a in anchors if a.generation == generation or a.samples <= start)[-MAX_ANCHORS:]


def reported_anchors(status: Status, reported: tuple[AnchorRef, ...]) -> tuple[Anchor, ...]:
    """Return the anchors that a leader reports, and those of the status if it reports none.

    Those of earlier generations count only if the status has them: others may have been saved by another number of
    trainers, and the ledger has folded the losses after them.
    """
    known = {anchor.key for anchor in status.anchors}
    generation = status.counters.generation
    found = tuple(Anchor.of(ref) for ref in reported if ref.generation == generation or ref.key in known)
    return restorable(status, found or status.anchors)


def with_anchor(status: Status, anchor: Anchor, keep: int) -> Status:
    """Return the status with one more anchor; its writer kept the last `keep`."""
    others = tuple(known for known in status.anchors if known.key != anchor.key)
    return status.evolve(anchors=restorable(status, (*others, anchor))[-keep:])


def _apply_pods(state: ReconcileState) -> ReconcileState:
    def seen(member: M) -> M:
        match state.facts[member.name]:
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

    return state.to(edited(state.status, seen))


def _apply_shards(state: ReconcileState) -> ReconcileState:
    results = _ShardResults()
    status = state.status.evolve(shards=tuple(_apply_shard(state, shard, results) for shard in state.status.shards))
    if results.load_s and status.recovery is not None:
        load_s = max(status.recovery.load_seconds, results.load_s)
        status = status.evolve(recovery=status.recovery.evolve(load_seconds=load_s))
    for shard, cost in results.costs:
        status = with_cost(status, shard, cost)
    replayed = status.progress.replayed_samples + sum(cost.replayed for _, cost in results.costs)
    status = status.evolve(progress=status.progress.evolve(replayed_samples=replayed))
    for samples, took_s in results.replays:
        status = status.evolve(policy=after_replay(status.policy, samples, took_s))
    if results.lost:
        status = with_account(status, account_of(status).settle(results.lost).recovered(results.running))
    return state.to(status, *results.events)


def _apply_shard(state: ReconcileState, shard: Shard, results: _ShardResults) -> Shard:
    """Return the entry with the shard's report; results that concern the whole job go into `results`."""
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
        results.load_s = max(results.load_s, report.load_s or 0.0)
    last = _last_step(state)
    has_all = last is not None and min(report.applied, default=0) >= last
    complete = shard.lost_at is None or report.resumed_samples is not None or has_all
    return _settle_shard(state.status, shard, report, results) if reported is ShardState.READY and complete else shard


def _last_step(state: ReconcileState) -> int | None:
    """Return the step at which no push can be missing: the job's last, or that at which all wait for data to arrive.

    None: there is no such step now.
    """
    status, leader = state.status, state.leader_report
    if status.result is not None:
        return status.result.step
    if state.spec.data.follow is None:
        total = status.ledger.total_samples
        return steps_in(total, state.spec.data.batch_size) if total else None
    if leader is None or not is_current(status, leader) or leader.counters.group != status.counters.group:
        return None
    return leader.step if 0 < leader.total_samples <= leader.samples else None


def _settle_shard(status: Status, shard: Shard, report: ShardReport, results: _ShardResults) -> Shard:
    """Charge the shard's reported losses, once."""
    results.lost[shard.index] = report.lost
    now, updates, row_updates = shard, report.row_updates, None
    if updates is not None:
        now = shard.evolve(lost_row_updates=max(updates.lost, 0), lost_row_updates_exact=updates.exact)
    if shard.lost_at is not None:
        before = status.ledger.ranges[shard.index] if status.ledger.ranges else ()
        lost = length(union(before, report.lost)) - length(before)
        if shard.lost_row_updates is not None and now.lost_row_updates is not None:
            # As with samples, updates that are lost again count once.
            more = max(now.lost_row_updates - shard.lost_row_updates, 0)
            row_updates = RowUpdates(lost=more, exact=now.lost_row_updates_exact)
        cost = Cost(lost, row_updates, report.replayed_samples, report.replayed_in_order, rebuilt=report.rebuilt)
        results.costs.append((shard, cost))
        if report.rebuilt:
            took = "" if report.load_s is None else f" in {report.load_s:.2f} s"
            message = (
                f"{shard.name}, incarnation {shard.incarnation}: computed from other shards{took}, as of sample "
                f"{report.restored_samples or 0}; trainers pushed {report.replayed_samples} samples again"
            )
            results.events.append(Event("Normal", EventReason.REBUILT, message, f"rebuilt-{shard.pod}"))
        if report.replay_s is not None:
            results.replays.append((report.replayed_samples, report.replay_s))
        results.running += max((report.resumed_samples or 0) - (report.restored_samples or 0), 0)
    return now.evolve(lost_at=None, pending_from=None, allowance=0)


def _tables(state: ReconcileState) -> tuple[DynamicTable, ...]:
    """Return the dynamic tables, summed over shards: as they were, unless all shards have reported them now."""
    reports = [state.report_of(shard) for shard in state.status.shards]
    counted = [
        {table.name: table for table in report.tables}
        for report in reports
        if isinstance(report, ShardReport) and is_current(state.status, report)
    ]
    names = [table.name for table in state.spec.model.tables if table.ids == "Dynamic"][:MAX_COUNTED_TABLES]
    if not counted or len(counted) < len(reports) or not all(name in tables for tables in counted for name in names):
        return state.status.tables
    return tuple(DynamicTable.of([tables[name] for tables in counted], state.now) for name in names)


def _apply_trainer(state: ReconcileState, trainer: Trainer) -> Trainer:
    report, status = state.report_of(trainer), state.status
    if not isinstance(report, TrainerReport):
        return trainer
    trainer = trainer.evolve(state=report.state.value, problem=report.problem.reason if report.problem else "")
    if is_current(status, report) and report.counters.group == status.counters.group and takes_part(report):
        trainer = trainer.evolve(lost_at=None)
    return trainer


def _apply_leader(state: ReconcileState, report: TrainerReport) -> Status:
    """Return the status with a current report of the leader."""
    status = state.status.evolve(data=_pinned(state.status.data, report))
    status = with_total(state.spec, status, report.total_samples)
    # The best evaluation that no rollback has undone. A new leader may not have it in its report yet.
    best = status.best if status.best is not None and restorable(status, (status.best.anchor,)) else None
    if takes_part(report):
        # Before the progress is set: the samples since the last report are the difference of both.
        status = after_report(state.spec, status, report, state.now)
        status = status.evolve(progress=_progress(status, report, state.now))
    status = status.evolve(
        anchors=reported_anchors(status, report.anchors),
        result=Anchor.of(report.result) if report.result else status.result,
        best=best if report.best is None else BestModel.of(report.best),
    )
    if status.data is not None and status.anchors:
        status = with_account(status, account_of(status).fold(status.anchors[0].samples))
    if report.dense_save is not None and on_lineage(status, state.observed.job.id.uid, report.dense_save):
        saved = max(status.dense.saved_samples, report.dense_save.samples)
        status = status.evolve(dense=status.dense.evolve(saved_samples=saved))
    # Saves that shards acknowledged to the leader. In a restore they may be those of the predecessor.
    saves = dict(enumerate(report.shard_saves))
    own = (s for s in status.shards if s.index in saves and s.lost_at is None and s.state in {"Ready", "Lost"})
    return with_shards(status, {s.index: s.evolve(saved_samples=max(saves[s.index], s.saved_samples)) for s in own})


def _pinned(before: PinnedData | None, report: TrainerReport) -> PinnedData | None:
    """Return the data that has arrived. A new leader may not have read the newest pin yet."""
    if report.data is not None and (before is None or before.pins <= report.data.pins):
        return PinnedData.of(report.data, report.samples)
    return None if before is None else before.evolve(lag_samples=max(before.pinned_samples - report.samples, 0))


def _progress(status: Status, report: TrainerReport, now: float) -> Progress:
    before, rate, total = status.progress, report.samples_per_s, report.total_samples
    if status.data is not None:
        total = status.data.pinned_samples
    # The last evaluation that no rollback has undone: a new leader has no earlier one.
    known = before.held_out if before.held_out is not None and before.held_out.samples <= report.samples else None
    known_segment = before.segment if before.segment is not None and before.segment.stop <= report.samples else None
    # The samples that parity or a save holds of every shard: none without parity, or before all reports.
    protected = tuple(map(max, zip(report.shard_protected, report.shard_saves, strict=False)))
    return Progress(
        step=report.step,
        samples=report.samples,
        total_samples=total,
        percent=min(100 * report.samples // total, 100),
        samples_per_second=rate,
        loss=report.loss,
        auc=report.auc,
        logloss=report.logloss,
        metrics=dict(report.metrics),
        held_out=known if report.evaluation is None else HeldOut.of(report.evaluation),
        segment=known_segment if report.segment is None else Segment.of(report.segment),
        eta_seconds=(total - report.samples) / rate if rate and not status.has_open_data else None,
        degraded_samples=before.degraded_samples,
        replayed_samples=before.replayed_samples,
        protected_samples=min(protected) if protected and min(protected) >= 0 else None,
        updated=now,
    )


def _with_measured_workers(status: Status, leader: TrainerReport) -> Status:
    """Set the number of workers that the first leader measured. It is set once for the life of the job."""
    runtime = status.runtime
    if runtime is None or runtime.workers is None or runtime.workers.count is not None:
        return status
    if leader.workers is not None:
        measured = WorkerCount(count=leader.workers, reason=leader.workers_reason)
    elif leader.state is TrainerState.TRAINING:
        measured = WorkerCount(count=1, reason="the trainer image does not measure the number of workers")
    else:
        return status
    return status.evolve(runtime=runtime.evolve(workers=measured))


def _all_at_work(status: Status, facts: Mapping[str, Fact]) -> Status:
    """Mark all members as working: a leader that trains has all shards and its whole group."""
    active = {name for name, fact in facts.items() if isinstance(fact, Active)}
    shards = tuple(s.evolve(state="Ready") if s.name in active and s.lost_at is None else s for s in status.shards)
    trainers = tuple(
        t.evolve(state="Training", lost_at=None) if t.name in active and t.state not in TRAINING_STATES else t
        for t in status.trainers
    )
    return status.evolve(shards=shards, trainers=trainers)


def _settle_dense(status: Status, leader: TrainerReport) -> Status:
    """Charge the losses of the dense state once a leader works in the present group, or has ended with a result."""
    account = account_of(status)
    if leader.result is None and (leader.state not in AT_WORK or leader.counters.group != status.counters.group):
        return with_account(status, account)
    before, account = account.ledger.lost, account.settle_dense(leader.lost)
    lost = max(length(now) - length(old) for old, now in zip(before, account.ledger.lost, strict=True))
    account = account.recovered(lost * len(status.shards))
    for trainer in status.trainers:
        status = with_cost(status, trainer, Cost(lost))
    return with_account(status, account)
