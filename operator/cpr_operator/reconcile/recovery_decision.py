"""The one decision over all members that are lost, from facts and reports to `cpr_operator.recovery.decide`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import takewhile

from cpr_contract import env
from cpr_contract.reports import ShardReport, TrainerReport, TrainerState
from cpr_contract.spec import samples_at
from cpr_operator.api.frozen_settings import replay_in_force
from cpr_operator.api.sizes import data_shards_of, recoverable
from cpr_operator.api.status import Anchor, Member, Shard, Status, Trainer
from cpr_operator.desired.rosters import start_anchor
from cpr_operator.failures import RESULT_UNREADABLE, Failure, Kind
from cpr_operator.reconcile.members import begins_incident, counts
from cpr_operator.reconcile.observe import end_of_predecessor, flush_of, is_current, takes_part
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
from cpr_operator.recovery.account import account_of, is_overspent, pending_from
from cpr_operator.recovery.decide import (
    Decision,
    FailJob,
    Loss,
    RecoveryInput,
    WaitForStore,
    decide,
    next_attempt,
    roll_back,
)

#: Pushes of this many steps may still arrive at a shard after all trainers are lost.
STEPS_UNDER_WAY = 2


def decision_on(state: ReconcileState) -> Decision | None:
    """Return the decision; None if no member is lost or waits for leave to restore."""
    status, account = state.status, account_of(state.status)
    if is_overspent(status):  # first of all: not even a failed job has lost more than the budget allows
        return roll_back(account, status.anchors, "the losses exceed the budget")
    if (failed := ends_job(state)) is not None:
        return failed
    if _start_anchor_is_damaged(state):
        older = _anchors_before(status, start_anchor(status))
        return roll_back(account, older, "the anchor that this generation started from is damaged")
    end = status.result.samples if status.result else 0
    # A shard does not find its save of the final anchor.
    if any(s.state == "BelowFloor" and s.saved_samples < min(s.floor_samples, end) for s in status.shards):
        return roll_back(account, _anchors_before(status, status.result), "the final anchor is damaged")
    if (pause := _store_pause(state)) is not None:
        return pause
    given = recovery_input(state)
    return decide(given) if given is not None else None


def ends_job(state: ReconcileState) -> FailJob | None:
    """Return why the present failures end the job: one that would repeat, or too many."""
    lost = state.lost
    of_start_anchor = any(f.kind is Kind.DAMAGED for _, f in lost) and _start_anchor_is_damaged(state)
    for _, failure in lost:
        if failure.permanent and not (failure.kind is Kind.DAMAGED and of_start_anchor):
            return FailJob(failure.kind, failure.message)
    if (undone := _undone_again(state)) is not None:
        return undone
    limit = state.spec.failure_policy.restart_limit
    # The incidents that the members lost now add to those counted earlier.
    counted = len({(m.role, f.kind) for m, f in lost if begins_incident(state.status, m, f, state.now)})
    earlier = sum(time > state.now - limit.window_seconds for time in state.status.restart_times)
    in_place = [
        f"{f.kind}: {f.message}" for f in state.status.failures if f.process and f.counted and f.time == state.now
    ]
    if (counted or in_place) and earlier + counted > limit.count:
        last = next((f"{f.kind}: {f.message}" for m, f in lost if counts(m, f)), *in_place[-1:])
        return FailJob(
            "RestartLimitReached",
            f"{earlier + counted} incidents within {limit.window_seconds} s, but only {limit.count} are allowed; "
            f"the last: {last}; see status.failures, fix the cause, and create the job again",
        )
    return None


def is_early(member: Member, failure: Failure, now: float) -> bool:
    """Return whether the pause of a member that ended because the store is unavailable is not over."""
    due = next_attempt(member.started_at or 0.0, member.lost_at)
    return failure.kind is Kind.STORE_UNREACHABLE and now < due


def recovery_input(state: ReconcileState) -> RecoveryInput | None:
    """Return the inputs of the decision; None if no member is lost or waits for leave to restore."""
    losses = tuple(_losses(state))
    failures = {m.index: failure for m, failure in state.lost if isinstance(m, Trainer)}
    lost_trainers = tuple(failures)
    # The newest dense save, if a trainer waits because it is older than the floor.
    waiting = (r for r in _current_reports(state).values() if r.state is TrainerState.BELOW_FLOOR)
    offers = (report.dense_save.samples if report.dense_save else 0 for report in waiting)
    below_floor = next((samples for samples in offers if samples < state.status.dense.floor_samples), None)
    if not losses and not lost_trainers and below_floor is None:
        return None
    # A trainer that waits because the dense save is too old found no other trainer to copy the state from.
    survivors = tuple(t.index for t in state.status.trainers if below_floor is None and _survives(state, t))
    flushes = [save for failure in failures.values() if (save := flush_of(state.observed, failure))]
    # A leader that exited normally has committed its final anchor, which has the last step of every shard.
    anchored = any(failure.reason == RESULT_UNREADABLE for failure in failures.values())
    exact = anchored or (lost_trainers and len(flushes) == len(state.status.trainers))
    shard_bound = _shard_bound(state, 0 if exact else STEPS_UNDER_WAY)
    saved = [state.status.dense.saved_samples, *(save.samples for save in flushes)]
    saved += [shard_bound] if anchored and shard_bound is not None else []
    # Training can change a shard that is left.
    works = any(
        isinstance(state.facts[s.name], Active) and s.lost_at is None and s.predecessor is None
        for s in state.status.shards
    )
    given = RecoveryInput(
        mode=state.status.plan.mode if state.status.plan else "Partial",
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
        degrade=state.spec.recovery.on_shard_loss == "Degrade" and works,
    )
    return _with_replay(state, given)


def loss_of(observed: ReconcileInput, shard: Shard, failure: Failure | None) -> Loss:
    """Return the save that a shard's replacement will find: the flush, or else the last known save.

    Only the leader's present report rules out that there is a newer save, and only if the shard's end was seen.
    """
    save = flush_of(observed, failure) if failure else None
    if save is not None:
        return Loss(shard.index, save.samples, flushed=True)
    certain = failure is not None and failure.ended and observed.leader_report is not None
    return Loss(shard.index, shard.saved_samples, certain=certain)


def _anchors_before(status: Status, damaged: Anchor | None) -> tuple[Anchor, ...]:
    return tuple(anchor for anchor in status.anchors if damaged and anchor.samples < damaged.samples)


def _start_anchor_is_damaged(state: ReconcileState) -> bool:
    """Return whether a member found the anchor that this generation started from to be damaged."""
    reports = [report for member in state.status.members if (report := state.report_of(member))]
    problems = [report.problem for report in reports if is_current(state.status, report)]
    problems += [fact.failure.problem for fact in state.facts.values() if isinstance(fact, Lost)]
    damaged = any(problem is not None and problem.reason == "AnchorDamaged" for problem in problems)
    return damaged and start_anchor(state.status) is not None


def _undone_again(state: ReconcileState) -> FailJob | None:
    """Return the failure if trainers trained to the end a second time without a result or another failure meanwhile.

    The restart limit does not count such ends, and another attempt would end the same way.
    """
    undone = takewhile(lambda f: (f.role, f.kind) == (env.ROLE_TRAINER, Kind.UNDONE), reversed(state.status.failures))
    before = {record.index: record.incarnation for record in undone}
    for member, failure in state.lost:
        again = isinstance(member, Trainer) and 0 <= before.get(member.index, -1) < member.incarnation
        if again and failure.kind is Kind.UNDONE:
            return FailJob(
                Kind.UNDONE,
                f"{member.name}: {failure.message}; this is the second time, and nothing else has failed in between; "
                "see the log and the termination message of its pod; the saves are kept, and a new job can begin with "
                f"them (spec.restoreFrom.job: {state.observed.job.id.name})",
            )
    return None


def _store_pause(state: ReconcileState) -> WaitForStore | None:
    """Return the pause before the next attempt, if all lost members ended because the store is unavailable.

    A member that is lost for another reason is replaced at once, and the others with it.
    """
    early = [m.name for m, failure in state.lost if is_early(m, failure, state.now)]
    if not early or any(failure.kind is not Kind.STORE_UNREACHABLE for _, failure in state.lost):
        return None
    return WaitForStore(f"the store cannot be reached: after a pause {early[0]} is tried again")


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


def _current_reports(state: ReconcileState) -> Mapping[int, TrainerReport]:
    """Return the trainers' reports of the present generation, by index."""
    reports = ((trainer.index, state.report_of(trainer)) for trainer in state.status.trainers)
    return {i: r for i, r in reports if isinstance(r, TrainerReport) and is_current(state.status, r)}


def _survives(state: ReconcileState, trainer: Trainer) -> bool:
    """Return whether an active trainer holds the dense state. A new trainer counts once its report shows that.

    The state of a trainer that is done is in the final anchor, or another active trainer holds it.
    """
    fact = state.facts[trainer.name]
    if not isinstance(fact, Active | Terminating):
        return isinstance(fact, Done)
    if trainer.lost_at is None:
        return True
    report = state.report_of(trainer)
    return isinstance(report, TrainerReport) and takes_part(report)


def _trainer_bound(state: ReconcileState) -> int | None:
    """Return the samples that any shard can have applied, from trainers' reports; in a new group the saved ones."""
    saved = max(state.status.dense.saved_samples, *(shard.saved_samples for shard in state.status.shards))
    if any(t.lost_at is None and _never_ran(state.facts[t.name]) for t in state.status.trainers):
        return saved  # the group does not train without it
    bounds = []
    for trainer in state.status.trainers:
        report = state.report_of(trainer)
        if isinstance(state.facts[trainer.name], Done):
            bounds.append(state.status.known_samples)
        elif isinstance(report, TrainerReport) and (trainer.lost_at is None or takes_part(report)):
            bounds.append(max(report.samples_started, saved) if is_current(state.status, report) else saved)
    if bounds and state.spec.trainers.dense_sync != "AllReduce":
        # The fastest trainer may be lost or unresponsive: the shards have its position.
        reports = (state.report_of(shard) for shard in state.status.shards)
        bounds += [
            _samples_with(state, report, STEPS_UNDER_WAY)
            for report in reports
            if isinstance(report, ShardReport) and is_current(state.status, report)
        ]
    return max(bounds, default=None)


def _never_ran(fact: Fact) -> bool:
    """Return whether the member's first process certainly did not start yet."""
    if isinstance(fact, Active):
        return fact.pod.phase == "Pending"
    return isinstance(fact, NeverSeen) and bool(fact.refusal)


def _shard_bound(state: ReconcileState, slack: int) -> int | None:
    """Return the same from shards' reports, when no trainer is left: every running shard has to answer."""
    for trainer in state.status.trainers:
        # A replaced trainer that runs without an answer may be further than the shards.
        runs = isinstance(state.facts[trainer.name], Active) and trainer.state != "Pending"
        if runs and state.report_of(trainer) is None:
            return None
    bound = 0
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


def _samples_with(state: ReconcileState, report: ShardReport, slack: int) -> int:
    """Return the samples up to the last step that a shard applied of any rank, and `slack` steps more."""
    batch, total = state.spec.data.batch_size, 0 if state.status.has_open_data else state.status.known_samples
    steps = report.applied_step + slack if report.applied_step else 0
    return samples_at(steps, batch, total or steps * batch)


def _with_replay(state: ReconcileState, given: RecoveryInput) -> RecoveryInput:
    """Return the inputs with the samples that trainers can push again, if the job has replay."""
    status = state.status
    policy = replay_in_force(state.spec, status)
    if not policy.enabled:
        return given
    reports = _current_reports(state)
    active = {t.index for t in status.trainers if isinstance(state.facts[t.name], Active | Terminating)}
    in_parity = _in_parity(status, given, data_shards_of(state.spec, policy))
    replaying = [report for index, report in reports.items() if index in active]
    # Shards with leave to restore and pending losses, which a lost trainer should have pushed again.
    decided = {loss.index for loss in given.losses}
    waiting = (s for s in status.shards if s.predecessor is None and s.index not in decided and given.lost_trainers)
    return replace(
        given,
        losses=tuple(_with_replayed(loss, status, replaying, in_parity) for loss in given.losses),
        unreported=tuple(t for t in given.survivors if t in active and t not in reports),
        orphaned=tuple((s.index, first) for s in waiting if (first := pending_from(s)) is not None),
    )


def _with_replayed(loss: Loss, status: Status, reports: list[TrainerReport], in_parity: Collection[int]) -> Loss:
    """Return a loss with the newest save that any trainer reports, and the samples after it that all push again.

    A state in parity counts as saved. If it turns out to be missing, the shard is below its floor, and the decision is
    repeated. A lost trainer's buffer is lost with it, and a new trainer's buffer has nothing earlier.
    """
    # For a shard that restores, a trainer may report a save of the predecessor that was not found.
    shard = status.shards[loss.index]
    own = [
        report for report in reports if report.shard_incarnations[loss.index : loss.index + 1] == (shard.incarnation,)
    ]
    saved = loss.saved
    if not loss.flushed:
        saved = max(saved, 0, *(samples for r in own for samples in r.shard_saves[loss.index : loss.index + 1]))
        if loss.index in in_parity:
            held = (samples for r in own for samples in r.shard_protected[loss.index : loss.index + 1])
            # The samples in parity at the last report only grow while its holders are active. A shard that is lost
            # again before it was restored keeps its floor.
            floor = 0 if shard.lost_at is None else shard.floor_samples
            saved = max(saved, *held, status.progress.protected_samples or 0, floor)
    dropped = [r.forgotten[loss.index] if loss.index < len(r.forgotten) else -1 for r in reports]
    if len(dropped) < len(status.trainers) or min(dropped) < 0:
        return replace(loss, saved=saved)
    return replace(loss, saved=saved, replayed_after=max(dropped))


def _in_parity(status: Status, given: RecoveryInput, data_shards: int) -> Collection[int]:
    """Return lost shards that parity can rebuild, without those that did not get their floor from it."""
    shards = status.shards
    if not data_shards:
        return ()
    lost = {loss.index for loss in given.losses} | {shard.index for shard in shards if shard.lost_at is not None}
    below_floor = {shard.index for shard in shards if shard.state == "BelowFloor"}
    return {index for index in lost - below_floor if recoverable(index, lost, len(shards), data_shards)}
