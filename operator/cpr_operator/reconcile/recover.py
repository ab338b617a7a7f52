"""Members are lost: one decision over all of them is made and carried out on the status."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

from cpr_contract import env
from cpr_operator.api.status import (
    MAX_FORKS,
    Anchor,
    Fork,
    Member,
    Overhead,
    Predecessor,
    Progress,
    Recovery,
    Shard,
    Status,
)
from cpr_operator.clocks import elapsed_s
from cpr_operator.cluster.protocol import Event
from cpr_operator.failures import UNSCHEDULABLE, Failure, Kind
from cpr_operator.reconcile.completion import fail
from cpr_operator.reconcile.members import (
    M,
    counts,
    edited,
    new_incidents,
    record,
    record_lost,
    replacement,
    with_shards,
)
from cpr_operator.reconcile.observe import AT_WORK, is_current, is_settled, start_anchor
from cpr_operator.reconcile.plan import after_recovery
from cpr_operator.reconcile.recovery_input import (
    damaged_result,
    recovery_input,
    start_anchor_is_damaged,
)
from cpr_operator.reconcile.reports import restorable
from cpr_operator.reconcile.types import Active, EventReason, Lost, NeverSeen, ReconcileState, Terminating
from cpr_operator.recovery.account import account_of, is_overspent, with_account
from cpr_operator.recovery.decide import (
    Decision,
    FailJob,
    Replace,
    RollBack,
    ShardGrant,
    WaitForReport,
    WaitForStore,
    decide,
    next_attempt,
    roll_back,
)

#: Kinds of recovery, the gravest last: a recovery under way never turns into a lesser one.
KINDS = ("ReplaceShards", "ReplaceTrainers", "RollBack")
#: Kinds of failure after which the node itself may be gone, though its object still says Ready.
SILENT_ENDS = frozenset({Kind.HUNG, Kind.NODE_LOST})


def recover(state: ReconcileState) -> ReconcileState:
    """The next step of whatever recovery is due; the job has Failed if there is none."""
    facts = state.facts
    # First the members whose pod never ran. They hold no state, so there is nothing to decide.
    state = _recreate_unseen(state)
    state = _drop_avoidance(state)
    # Before the decision, because a pod that terminates may still save. What is lost is known only
    # when it has ended.
    state = _replace_terminating(state)
    # Before the decision, too: a replacement that still waited holds nothing, so nothing is lost with it.
    state = _replace_waiting(state)
    state = _carry_out(state, _decision(state))
    # Conditions name all members that were seen lost, also those that have a replacement by now.
    return replace(state, facts=facts)


def _decision(state: ReconcileState) -> Decision | None:
    status, account = state.status, account_of(state.status)
    if is_overspent(status):  # first of all: not even a job that fails has lost more than it may
        return roll_back(account, status.anchors, "the losses exceed the budget")
    failed = _hopeless(state)
    if failed is not None:
        return failed
    if start_anchor_is_damaged(state):
        older = _anchors_before(status, start_anchor(status))
        return roll_back(account, older, "the anchor that this generation started from is damaged")
    if damaged_result(status):
        return roll_back(account, _anchors_before(status, status.result), "the final anchor is damaged")
    if (pause := _store_pause(state)) is not None:
        return pause
    given = recovery_input(state)
    return decide(given) if given is not None else None


def _anchors_before(status: Status, damaged: Anchor | None) -> tuple[Anchor, ...]:
    return tuple(anchor for anchor in status.anchors if damaged and anchor.samples < damaged.samples)


def _carry_out(state: ReconcileState, decision: Decision | None) -> ReconcileState:
    match decision:
        case None:
            return _finish(state)
        case Replace():
            return apply_replacement(state, decision)
        case RollBack():
            return apply_rollback(state, decision)
        case WaitForReport(reason=reason):
            return _wait(state, "ReplaceShards", reason)
        case WaitForStore(reason=reason):
            return _wait(state, "ReplaceTrainers" if _lost_trainers(state) else "ReplaceShards", reason)
        case FailJob():
            return fail(record_lost(state, "Fail"), decision.cause, decision.reason)


def _hopeless(state: ReconcileState) -> FailJob | None:
    """Whether the failures of this pass end the job: one that would come again, or too many."""
    lost = [(m, fact.failure) for m in state.status.members if isinstance(fact := state.facts.get(m.name), Lost)]
    is_start_anchor = any(f.kind is Kind.DAMAGED for _, f in lost) and start_anchor_is_damaged(state)
    for _, failure in lost:
        if failure.permanent and not (failure.kind is Kind.DAMAGED and is_start_anchor):
            return FailJob(failure.kind, failure.message)
    if (undone := _undone_again(state)) is not None:
        return undone
    limit = state.spec.failure_policy.restart_limit
    counted = new_incidents(state)
    earlier = sum(time > state.now - limit.window_seconds for time in state.status.restart_times)
    in_place = [f"{f.kind}: {f.message}" for f in state.status.failures if f.life and f.counted and f.time == state.now]
    if (counted or in_place) and earlier + counted > limit.count:
        last = next((f"{f.kind}: {f.message}" for m, f in lost if counts(m, f)), *in_place[-1:])
        return FailJob(
            "RestartLimitReached",
            f"{earlier + counted} incidents within {limit.window_seconds} s, but only {limit.count} are allowed; "
            f"the last: {last}; see status.failures, fix the cause, and create the job again",
        )
    return None


def _undone_again(state: ReconcileState) -> FailJob | None:
    """Whether trainers have trained to the end a second time in vain, and nothing else has failed in between.

    The restart limit does not count such ends, and another attempt would end the same way.
    """
    undone = takewhile(lambda f: (f.role, f.kind) == (env.ROLE_TRAINER, Kind.UNDONE), reversed(state.status.failures))
    before = {record.index: record.incarnation for record in undone}
    for trainer in state.status.trainers:
        match state.facts.get(trainer.name):
            case Lost(failure=Failure(kind=Kind.UNDONE, message=message)) if (
                0 <= before.get(trainer.index, -1) < trainer.incarnation
            ):
                return FailJob(
                    Kind.UNDONE,
                    f"{trainer.name}: {message}; this is the second time, and nothing else has failed in between; see "
                    "the log and the termination message of its pod; the saves are kept, and a new job can begin with "
                    f"them (spec.restoreFrom.job: {state.observed.job.id.name})",
                )
            case _:
                pass
    return None


def _lost_trainers(state: ReconcileState) -> bool:
    return any(isinstance(state.facts[trainer.name], Lost) for trainer in state.status.trainers)


def _store_pause(state: ReconcileState) -> WaitForStore | None:
    """The pause before the next attempt, if all that is lost ended because the store is away.

    Whoever is lost for another reason is replaced at once, and the others with it.
    """
    lost = [(m, fact.failure) for m in state.status.members if isinstance(fact := state.facts[m.name], Lost)]
    early = [m.name for m, failure in lost if _is_early(m, failure, state.now)]
    if not early or any(failure.kind is not Kind.STORE_UNREACHABLE for _, failure in lost):
        return None
    return WaitForStore(f"the store cannot be reached: after a pause {early[0]} is tried again")


def _is_early(member: Member, failure: Failure, now: float) -> bool:
    """Whether it is too early to try again a member that ended because the store is away."""
    due = next_attempt(member.started_at or 0.0, member.lost_at)
    return failure.kind is Kind.STORE_UNREACHABLE and now < due


def _recreate_unseen(state: ReconcileState) -> ReconcileState:
    """A pod that was wanted and never seen may exist yet: its number is given up, and the next one taken."""

    def recreated(member: M) -> M:
        fact = state.facts[member.name]
        if not isinstance(fact, NeverSeen) or fact.refusal:
            return member
        # The startup deadline counts from the first attempt.
        return replacement(state.observed, member).evolve(started_at=member.started_at or state.now)

    return state.to(edited(state.status, recreated))


def _drop_avoidance(state: ReconcileState) -> ReconcileState:
    """Where the scheduler knows no other node, the next try may go anywhere: the silent one may be all there is."""

    def unbound(member: M) -> M:
        match state.facts[member.name]:
            case Active(trouble=trouble) if member.avoid and trouble and trouble.reason == UNSCHEDULABLE:
                return replacement(state.observed, member).evolve(avoid="")
            case _:
                return member

    return state.to(edited(state.status, unbound))


def _replace_terminating(state: ReconcileState) -> ReconcileState:
    """A shard whose pod terminates is replaced at once, but may not restore while the old pod may save."""
    replacements, name = {}, ""
    for shard in state.status.shards:
        fact = state.facts[shard.name]
        if not isinstance(fact, Terminating):
            continue
        name = shard.name
        state = record(state, shard, fact.failure, "ReplaceShards")
        before = shard.predecessor or Predecessor(pod=fact.pod.name, uid=fact.pod.uid, until=fact.until)
        replacements[shard.index] = replacement(state.observed, shard).evolve(
            lost_at=shard.lost_at or state.now,
            may_restore=False,
            predecessor=before,
            avoid=avoided(shard, fact.failure),
        )
    if not replacements:
        return state
    reason = f"{name} is terminating; its replacement waits for its last save"
    return under_recovery(state.to(with_shards(state.status, replacements)), "ReplaceShards", reason)


def _replace_waiting(state: ReconcileState) -> ReconcileState:
    """A replacement that dies while it waits for its predecessor is replaced; no state is lost with it."""
    rest, replacements = dict(state.facts), {}
    for shard in state.status.shards:
        fact = state.facts[shard.name]
        if shard.predecessor is None or not isinstance(fact, Lost):
            continue
        if _hopeless(replace(state, facts={shard.name: fact})) or _is_early(shard, fact.failure, state.now):
            continue
        state = record(state, shard, fact.failure, "ReplaceShards")
        replacements[shard.index] = replacement(state.observed, shard).evolve(avoid=avoided(shard, fact.failure))
        rest[shard.name] = NeverSeen("")
    return replace(state.to(with_shards(state.status, replacements)), facts=rest)


def _wait(state: ReconcileState, kind: str, reason: str) -> ReconcileState:
    """Nothing is decided yet: the lost are shown as lost."""

    def shown(member: M) -> M:
        return member.evolve(state="Lost") if isinstance(state.facts[member.name], Lost) else member

    before = state.status.recovery
    return under_recovery(state.to(edited(state.status, shown)), before.kind if before else kind, reason)


def _finish(state: ReconcileState) -> ReconcileState:
    """A recovery is over when all members work and the leader trains in the present group."""
    status, leader, now = state.status, state.leader_report, state.now
    if status.recovery is None:
        return state
    waiting = tuple(m.name for m in status.members if not is_settled(m))
    trains = leader is not None and leader.state in AT_WORK and is_current(status, leader)
    if waiting or not trains or leader is None or leader.counters.group != status.counters.group:
        return state.to(status.evolve(recovery=status.recovery.evolve(waiting_for=waiting[:32])))
    took = elapsed_s(status.recovery.since, now)
    failures = tuple(
        f.evolve(recovery_seconds=elapsed_s(f.time, now)) if f.recovery_seconds is None and not f.life else f
        for f in status.failures
    )
    message = f"training resumed after {took:.1f} s ({status.recovery.kind})"
    event = Event("Normal", EventReason.RECOVERED, message, f"recovered-{status.restarts}-{status.counters.roster}")
    status = after_recovery(state.spec, status, now)
    return state.to(status.evolve(recovery=None, failures=failures), event)


def avoided(member: Member, failure: Failure) -> str:
    """The node that the replacement of a lost member keeps off; empty if any will do.

    While the member has not worked again, what was avoided stays avoided.
    """
    if failure.kind in SILENT_ENDS:
        return member.node
    return member.avoid if member.lost_at is not None else ""


def apply_replacement(state: ReconcileState, decision: Replace) -> ReconcileState:
    """New incarnations of the lost members only; leave to restore for those that wait."""
    kind = "ReplaceTrainers" if decision.trainers or decision.dense else "ReplaceShards"
    state = _replace_lost(state, kind)
    status, grants = state.status, {grant.index: grant for grant in decision.shards}
    total = status.ledger.total_samples
    shards = {s.index: _granted(s, grants[s.index], state.now, total) for s in status.shards if s.index in grants}
    counters = status.counters.evolve(group=status.counters.group + bool(decision.trainers))
    status = with_shards(status, shards).evolve(counters=counters, leader=decision.leader)
    account = account_of(status).reserve(decision.reserves, decision.dense.reserve if decision.dense else ())
    if decision.dense is not None:
        account = account.note_pending_dense(decision.dense.pending_from)
        dense = status.dense.evolve(floor_samples=decision.dense.floor, saved_samples=decision.dense.floor)
        status = status.evolve(dense=dense)
    state = under_recovery(state.to(with_account(status, account)), kind, decision.reason, decision.lost)
    return state.to(state.status, _event(state.status, EventReason.REPLACING, decision.reason))


def apply_rollback(state: ReconcileState, decision: RollBack) -> ReconcileState:
    """Everybody goes back to one anchor, in a new generation; lost members as new incarnations."""
    samples = decision.anchor.samples if decision.anchor else 0
    # Before the lost are replaced: whoever worked until now has reported all that an anchor can miss.
    account = account_of(state.status).roll_back(samples)
    state = _replace_lost(state, "RollBack")
    status = state.status
    generation = status.counters.generation + 1
    lost_trainer = any(isinstance(state.facts.get(t.name), Lost) for t in status.trainers)
    status = status.evolve(
        counters=status.counters.evolve(generation=generation, group=status.counters.group + lost_trainer),
        forks=(*status.forks, Fork(generation=generation, anchor=decision.anchor))[-MAX_FORKS:],
        shards=tuple(_sent_back(shard, samples) for shard in status.shards),
        trainers=tuple(
            t.evolve(lost_at=None, state="Pending" if t.state == "Pending" else "Starting") for t in status.trainers
        ),
        dense=status.dense.evolve(saved_samples=samples, floor_samples=samples),
        result=None,
        overhead=_with_lost_time(status, samples),
        progress=_sent_back_to(status.progress, samples, decision.anchor.step if decision.anchor else 0),
        failures=tuple(
            f.evolve(lost_samples=0, lost_row_updates=0, action="RollBack")
            if f.recovery_seconds is None and not f.life
            else f
            for f in status.failures
        ),
    )
    status = status.evolve(anchors=restorable(status, status.anchors))
    state = under_recovery(state.to(with_account(status, account)), "RollBack", decision.reason, decision.lost)
    status = state.status
    if status.budget is not None:
        status = status.evolve(budget=status.budget.evolve(rollbacks=status.budget.rollbacks + 1))
    where = f"step {decision.anchor.step}" if decision.anchor else "step 0"
    return state.to(status, _event(status, EventReason.ROLLING_BACK, f"back to {where}: {decision.reason}"))


def under_recovery(state: ReconcileState, kind: str, reason: str, lost: tuple[int, ...] = ()) -> ReconcileState:
    """The status with the recovery under way, in which the state of the shards `lost` was lost.

    It began when the first one began, is as grave as the gravest, and one failure of all shards that were lost in it.
    """
    status = state.status
    before = status.recovery or Recovery(kind=kind, since=state.now, degraded_before=status.progress.degraded_samples)
    if before.kind in KINDS:
        kind = KINDS[max(KINDS.index(before.kind), KINDS.index(kind))] if kind in KINDS else before.kind
    lost = tuple(sorted({*before.lost_shards, *lost}))
    recovery = before.evolve(kind=kind, reason=reason, lost_shards=lost, waiting_for=())
    return state.to(status.evolve(recovery=recovery))


def _replace_lost(state: ReconcileState, action: str) -> ReconcileState:
    state = record_lost(state, action)

    def replaced(member: M) -> M:
        fact = state.facts[member.name]
        if not isinstance(fact, Lost):
            return member
        avoid, lost_at = avoided(member, fact.failure), member.lost_at or state.now
        return replacement(state.observed, member).evolve(lost_at=lost_at, avoid=avoid)

    return state.to(edited(state.status, replaced))


def _granted(shard: Shard, grant: ShardGrant, now: float, total: int) -> Shard:
    floor = grant.floor
    # A flush misses nothing: what its shard did not acknowledge is pushed again, or computed again by an heir.
    first = max(floor, total) if grant.flushed else floor
    owes_from = first if shard.owes_from is None else min(first, shard.owes_from)
    return shard.evolve(
        floor_samples=floor,
        saved_samples=floor,
        owes_from=owes_from,
        # What trainers were allowed before they may have used; it is set aside still.
        allowance=max(shard.allowance, grant.allowance),
        lost_at=shard.lost_at or now,
        may_restore=True,
        predecessor=None,
    )


def _sent_back(shard: Shard, samples: int) -> Shard:
    return shard.evolve(
        floor_samples=samples,
        saved_samples=samples,
        reserved=(),
        owes_from=None,
        allowance=0,
        lost_row_updates=None,
        may_restore=True,
        predecessor=None,
        lost_at=None,
        state="Pending" if shard.state == "Pending" else "Restoring",
    )


def _sent_back_to(progress: Progress, samples: int, step: int) -> Progress:
    """Where training goes on after a rollback; from there on what is trained again counts as training."""
    samples, step = min(samples, progress.samples), min(step, progress.step)
    percent = 100 * samples // max(progress.total_samples, 1)
    held_out = progress.held_out if progress.held_out and progress.held_out.samples <= samples else None
    return progress.evolve(samples=samples, step=step, percent=percent, protected_samples=None, held_out=held_out)


def _with_lost_time(status: Status, samples: int) -> Overhead:
    """With the time that it took to train what is undone. It was all trained in the progress, or undone before."""
    rate, undone = status.policy.samples_per_second, status.progress.samples - samples
    seconds = undone / rate if rate and undone > 0 else 0.0
    return status.overhead.evolve(lost_seconds=status.overhead.lost_seconds + seconds)


def _event(status: Status, reason: EventReason, message: str) -> Event:
    counters = status.counters
    return Event("Normal", reason, message, f"{reason}-{counters.generation}-{counters.group}-{status.restarts}")
