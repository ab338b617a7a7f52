"""From facts and reports to the `RecoveryInput` that the recovery is decided on."""

from __future__ import annotations

from collections.abc import Iterator

from cpr_contract.reports import SaveRef, ShardReport, TrainerReport, TrainerState
from cpr_contract.spec import samples_at
from cpr_operator.api.status import Shard, Status, Trainer
from cpr_operator.failures import RESULT_UNREADABLE, Failure, classify
from cpr_operator.reconcile.observe import is_current, on_lineage, start_anchor, takes_part
from cpr_operator.reconcile.replay import with_replay
from cpr_operator.reconcile.types import (
    Active,
    Done,
    Fact,
    Lost,
    NeverSeen,
    ReconcileInput,
    ReconcileState,
    Terminating,
)
from cpr_operator.recovery.account import account_of
from cpr_operator.recovery.decide import Loss, RecoveryInput

#: Steps whose pushes may still arrive at a shard after all trainers are gone.
STEPS_UNDER_WAY = 2


def recovery_input(state: ReconcileState) -> RecoveryInput | None:
    """What has to be decided; None if no member is lost or waits for leave to restore."""
    losses = tuple(_losses(state))
    lost_trainers = tuple(t.index for t in state.status.trainers if isinstance(state.facts[t.name], Lost))
    below_floor = _dense_below_floor(state)
    if not losses and not lost_trainers and below_floor is None:
        return None
    # A trainer that waits because the dense save is too old found no other to copy the state from.
    survivors = tuple(t.index for t in state.status.trainers if below_floor is None and _survives(state, t))
    failures = [failure for t in state.status.trainers if (failure := _failure(state, t))]
    flushes = [save for failure in failures if (save := flush_of(state.observed, failure))]
    # A leader that exited normally has committed its final anchor, which has the last step of every shard.
    anchored = any(failure.reason == RESULT_UNREADABLE for failure in failures)
    exact = anchored or (lost_trainers and len(flushes) == len(state.status.trainers))
    shard_bound = _shard_bound(state, 0 if exact else STEPS_UNDER_WAY)
    saved = [state.status.dense.saved_samples, *(save.samples for save in flushes)]
    saved += [shard_bound] if anchored and shard_bound is not None else []
    full = state.status.plan is not None and state.status.plan.mode == "Full"
    given = RecoveryInput(
        mode="Full" if full else "Partial",
        account=account_of(state.status),
        losses=losses,
        lost_trainers=lost_trainers,
        survivors=survivors,
        leader=state.status.leader or 0,
        trainer_bound=_trainer_bound(state),
        shard_bound=shard_bound,
        bound_exact=bool(exact),
        shard_state=any(isinstance(state.facts[s.name], Active | Terminating) for s in state.status.shards)
        or any(loss.flushed for loss in losses),
        dense_saved=max(saved) if below_floor is None else below_floor,
        dense_charged=state.spec.trainers.dense_sync == "AllReduce",
        dense_certain=below_floor is not None or bool(flushes) or anchored,
        anchors=state.status.anchors,
        degrade=state.spec.recovery.on_shard_loss == "Degrade" and _some_work(state),
    )
    return with_replay(state, given)


def _some_work(state: ReconcileState) -> bool:
    """Whether a shard is left that training can change."""
    there = (s for s in state.status.shards if s.lost_at is None and s.predecessor is None)
    return any(isinstance(state.facts[s.name], Active) for s in there)


def flush_of(observed: ReconcileInput, failure: Failure) -> SaveRef | None:
    """The save that a member flushed before it ended: of this generation, or where that started, if nothing is newer.

    A process that ended before it heard of a rollback may have flushed what the rollback undid.
    """
    save = failure.save
    return save if save is not None and on_lineage(observed.before, observed.job.id.uid, save) else None


def loss_of(observed: ReconcileInput, shard: Shard, failure: Failure | None) -> Loss:
    """What a shard's replacement will find: the flush, or else the last save that is known.

    Only the leader's present report rules out that there is a newer save, and only if the shard's end was seen.
    """
    save = flush_of(observed, failure) if failure else None
    if save is not None:
        return Loss(shard.index, save.samples, flushed=True)
    certain = failure is not None and failure.ended and observed.leader_report is not None
    return Loss(shard.index, shard.saved_samples, certain=certain)


def start_anchor_is_damaged(state: ReconcileState) -> bool:
    """Whether a member found the anchor that this generation started from to be damaged."""
    reports = (state.report_of(member) for member in state.status.members)
    told = any(r and r.problem and r.problem.reason == "AnchorDamaged" and is_current(state.status, r) for r in reports)
    ended = any(
        isinstance(fact, Lost) and fact.failure.problem is not None and fact.failure.problem.reason == "AnchorDamaged"
        for fact in state.facts.values()
    )
    return start_anchor(state.status) is not None and (told or ended)


def damaged_result(status: Status) -> bool:
    """Whether a shard does not find its save of the final anchor."""
    end = status.result.samples if status.result else 0
    return any(s.state == "BelowFloor" and s.saved_samples < min(s.floor_samples, end) for s in status.shards)


def _losses(state: ReconcileState) -> Iterator[Loss]:
    for shard in state.status.shards:
        fact = state.facts[shard.name]
        if shard.predecessor is not None:
            ended, failure = end_of_predecessor(state.observed, shard)
            if ended:
                yield loss_of(state.observed, shard, failure)
        elif isinstance(fact, Lost):
            yield loss_of(state.observed, shard, fact.failure)
        elif shard.state == "BelowFloor" and shard.saved_samples < shard.floor_samples:
            yield Loss(shard.index, shard.saved_samples)


def end_of_predecessor(observed: ReconcileInput, shard: Shard) -> tuple[bool, Failure | None]:
    """Whether the pod before this one can commit no more, and how it ended, if that was seen."""
    before = shard.predecessor
    pod = observed.pods_by_uid.get(before.uid) if before else None
    failure = classify(pod) if pod else None
    if isinstance(failure, Failure) and failure.ended:
        return True, failure
    # By when this operator saw the deletion: the entry's `until` may be of another operator's clock.
    return pod is None or pod.is_stuck(observed.now), None


def _failure(state: ReconcileState, member: Trainer) -> Failure | None:
    fact = state.facts[member.name]
    return fact.failure if isinstance(fact, Lost) else None


def _survives(state: ReconcileState, trainer: Trainer) -> bool:
    """A living trainer that holds the dense state. Of a newcomer only its own word tells that it joined.

    What one held that is done is in the final anchor, or another one that lives holds it.
    """
    fact = state.facts[trainer.name]
    if not isinstance(fact, Active | Terminating):
        return isinstance(fact, Done)
    if trainer.lost_at is None:
        return True
    report = state.report_of(trainer)
    return isinstance(report, TrainerReport) and takes_part(report)


def _trainer_bound(state: ReconcileState) -> int | None:
    """How many samples any shard can have applied, as trainers know it: in a new group those that were saved before."""
    saved = max(state.status.dense.saved_samples, *(shard.saved_samples for shard in state.status.shards))
    if any(t.lost_at is None and _never_ran(state.facts[t.name]) for t in state.status.trainers):
        return saved  # the group does not train without it
    bounds = []
    for trainer in state.status.trainers:
        report = state.report_of(trainer)
        if isinstance(state.facts[trainer.name], Done):
            bounds.append(state.status.ledger.total_samples)
        elif isinstance(report, TrainerReport) and (trainer.lost_at is None or takes_part(report)):
            bounds.append(max(report.samples_started, saved) if is_current(state.status, report) else saved)
    if bounds and state.spec.trainers.dense_sync != "AllReduce":
        # The fastest may be dead or silent: shards know how far it was.
        bounds += _applied(state)
    return max(bounds, default=None)


def _applied(state: ReconcileState) -> Iterator[int]:
    """How many samples any trainer can have pushed, as each shard that answers knows it."""
    for shard in state.status.shards:
        report = state.report_of(shard)
        if isinstance(report, ShardReport) and is_current(state.status, report):
            yield _samples_with(state, report, STEPS_UNDER_WAY)


def _samples_with(state: ReconcileState, report: ShardReport, slack: int) -> int:
    """The samples up to the last step that a shard applied of any rank, and `slack` steps more."""
    batch, total = state.spec.data.batch_size, state.status.ledger.total_samples
    steps = report.applied_step + slack if report.applied_step else 0
    return samples_at(steps, batch, total or steps * batch)


def _never_ran(fact: Fact) -> bool:
    """Whether the member's first process certainly did not start yet."""
    match fact:
        case Active(pod=pod):
            return pod.phase == "Pending"
        case NeverSeen(refusal=words):
            return bool(words)
        case _:
            return False


def _shard_bound(state: ReconcileState, slack: int) -> int | None:
    """The same from the shards, when no trainer is left: every one whose process runs has to answer."""
    bound = 0
    if any(_is_silent_newcomer(state, t) for t in state.status.trainers):
        return None
    for shard in state.status.shards:
        fact, report = state.facts[shard.name], state.report_of(shard)
        if isinstance(fact, Lost):
            save = flush_of(state.observed, fact.failure)
            bound = max(bound, save.samples if save else 0)
        elif isinstance(report, ShardReport):
            bound = max(bound, _samples_with(state, report, slack) if is_current(state.status, report) else 0)
        elif shard.state != "Pending":
            return None
    return bound


def _is_silent_newcomer(state: ReconcileState, trainer: Trainer) -> bool:
    """A replaced trainer that runs and did not answer: it may know more than the shards."""
    alive = isinstance(state.facts[trainer.name], Active) and trainer.state != "Pending"
    return alive and state.report_of(trainer) is None


def _dense_below_floor(state: ReconcileState) -> int | None:
    """The samples of the newest dense save there is, if a trainer waits because it is older than the floor."""
    for trainer in state.status.trainers:
        report = state.report_of(trainer)
        if (
            isinstance(report, TrainerReport)
            and report.state is TrainerState.BELOW_FLOOR
            and is_current(state.status, report)
        ):
            offered = report.dense_save.samples if report.dense_save else 0
            if offered < state.status.dense.floor_samples:
                return offered
    return None
