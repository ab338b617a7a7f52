"""The phase that recovers lost members: it applies one decision over all of them to the status."""

from __future__ import annotations

from dataclasses import replace

from cpr_operator.api.base import EXACT
from cpr_operator.api.status import MAX_FORKS, Fork, Member, Predecessor, Progress, Recovery, Shard, Status, Trainer
from cpr_operator.clocks import elapsed_s
from cpr_operator.cluster.protocol import Event
from cpr_operator.failures import UNSCHEDULABLE, Failure, Kind
from cpr_operator.reconcile.apply_reports import restorable
from cpr_operator.reconcile.completion import fail
from cpr_operator.reconcile.members import M, edited, record, record_lost, replacement, with_shards
from cpr_operator.reconcile.observe import AT_WORK, is_current, is_settled
from cpr_operator.reconcile.recovery_decision import decision_on, ends_job, is_early
from cpr_operator.reconcile.save_plan import after_recovery
from cpr_operator.reconcile.types import Active, EventReason, Lost, NeverSeen, ReconcileState, Terminating
from cpr_operator.recovery.account import account_of, with_account
from cpr_operator.recovery.decide import FailJob, Replace, RollBack, ShardGrant, WaitForReport, WaitForStore

#: Kinds of recovery, the gravest last: a recovery under way never turns into a lesser one.
KINDS = ("ReplaceShards", "ReplaceTrainers", "RollBack")
#: Kinds of failure after which the node itself may be lost, though its object is still Ready.
NODE_FAILURES = frozenset({Kind.HUNG, Kind.NODE_LOST})


def recover(state: ReconcileState) -> ReconcileState:
    """Take the next step of a recovery. The job has Failed if there is none."""
    facts = state.facts
    # First the members without a process so far. They hold no state, so nothing is to be decided.
    state = _recreate(state)
    # Before the decision, because a pod that terminates may still save: the loss is known only when it has ended.
    state = _replace_terminating(state)
    # Before the decision, too: a replacement that still waited holds nothing, so nothing is lost with it.
    state = _replace_waiting(state)
    match decision_on(state):
        case None:
            state = _finish(state)
        case Replace() as decision:
            state = apply_replacement(state, decision)
        case RollBack() as decision:
            state = apply_rollback(state, decision)
        case WaitForReport(reason=reason):
            state = _wait(state, "ReplaceShards", reason)
        case WaitForStore(reason=reason):
            lost_trainer = any(isinstance(member, Trainer) for member, _ in state.lost)
            state = _wait(state, "ReplaceTrainers" if lost_trainer else "ReplaceShards", reason)
        case FailJob() as decision:
            state = fail(record_lost(state, "Fail"), decision.cause, decision.reason)
    # Conditions name all members that were seen lost, also those that have a replacement by now.
    return replace(state, facts=facts)


def apply_replacement(state: ReconcileState, decision: Replace) -> ReconcileState:
    """Create new incarnations of the lost members only, and give leave to restore to those that wait."""
    kind = "ReplaceTrainers" if decision.trainers or decision.dense else "ReplaceShards"
    state = _replace_lost(state, kind)
    status, grants = state.status, {grant.index: grant for grant in decision.shards}
    total = EXACT if status.has_open_data else status.known_samples
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
    """Return all members to one anchor, in a new generation; lost members as new incarnations."""
    samples, step = (decision.anchor.samples, decision.anchor.step) if decision.anchor else (0, 0)
    # Before the lost are replaced: members that worked until now have reported all losses that an anchor can contain.
    account = account_of(state.status).roll_back(samples)
    state = _replace_lost(state, "RollBack")
    status, rate = state.status, state.status.policy.samples_per_second
    # Samples of earlier rollbacks are not undone again: the progress went back with them.
    undone = status.progress.samples - samples
    lost_s = undone / rate if rate and undone > 0 else 0.0
    generation = status.counters.generation + 1
    assert all(fork.generation < generation for fork in status.forks), f"generation {generation} began before"
    lost_trainer = any(isinstance(member, Trainer) for member, _ in state.lost)
    status = status.evolve(
        counters=status.counters.evolve(generation=generation, group=status.counters.group + lost_trainer),
        forks=(*status.forks, Fork(generation=generation, anchor=decision.anchor))[-MAX_FORKS:],
        shards=tuple(_rolled_back(shard, samples) for shard in status.shards),
        trainers=tuple(
            t.evolve(lost_at=None, state="Pending" if t.state == "Pending" else "Starting") for t in status.trainers
        ),
        dense=status.dense.evolve(saved_samples=samples, floor_samples=samples),
        result=None,
        overhead=status.overhead.evolve(lost_seconds=status.overhead.lost_seconds + lost_s),
        progress=_progress_at(status.progress, samples, step),
        failures=tuple(
            f.evolve(lost_samples=0, lost_row_updates=0, action="RollBack")
            if f.recovery_seconds is None and not f.process
            else f
            for f in status.failures
        ),
    )
    status = status.evolve(anchors=restorable(status, status.anchors))
    state = under_recovery(state.to(with_account(status, account)), "RollBack", decision.reason, decision.lost)
    status = state.status
    if status.budget is not None:
        status = status.evolve(budget=status.budget.evolve(rollbacks=status.budget.rollbacks + 1))
    return state.to(status, _event(status, EventReason.ROLLING_BACK, f"back to step {step}: {decision.reason}"))


def under_recovery(state: ReconcileState, kind: str, reason: str, lost: tuple[int, ...] = ()) -> ReconcileState:
    """Set the recovery under way, in which the state of the shards `lost` was lost.

    Consecutive recoveries are one: it has the first start, the gravest kind, and all shards that were lost meanwhile.
    """
    status = state.status
    before = status.recovery or Recovery(kind=kind, since=state.now, degraded_before=status.progress.degraded_samples)
    if before.kind in KINDS:
        kind = KINDS[max(KINDS.index(before.kind), KINDS.index(kind))] if kind in KINDS else before.kind
    lost = tuple(sorted({*before.lost_shards, *lost}))
    recovery = before.evolve(kind=kind, reason=reason, lost_shards=lost, waiting_for=())
    return state.to(status.evolve(recovery=recovery))


def avoided(member: Member, failure: Failure) -> str:
    """Return the node that the replacement of a lost member avoids; empty for none.

    While the member has not worked again, a node that was avoided stays avoided.
    """
    if failure.kind in NODE_FAILURES:
        return member.node
    return member.avoid if member.lost_at is not None else ""


def _recreate(state: ReconcileState) -> ReconcileState:
    """Replace pods that were never seen, and those that cannot be scheduled because they avoid a node.

    An unseen pod may still appear, so its number is not used again. The avoided node may be the only one.
    """

    def recreated(member: M) -> M:
        match state.facts[member.name]:
            case NeverSeen(refusal=""):  # the startup deadline counts from the first attempt
                return replacement(state.observed, member).evolve(started_at=member.started_at or state.now)
            case Active(trouble=trouble) if member.avoid and trouble and trouble.reason == UNSCHEDULABLE:
                return replacement(state.observed, member).evolve(avoid="")
            case _:
                return member

    return state.to(edited(state.status, recreated))


def _replace_terminating(state: ReconcileState) -> ReconcileState:
    """Replace a shard with a terminating pod at once. It may not restore while the old pod may save."""
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
    """Replace a replacement that dies while it waits for its predecessor: no state is lost with it."""
    facts, replacements = dict(state.facts), {}
    for shard in state.status.shards:
        fact = state.facts[shard.name]
        if shard.predecessor is None or not isinstance(fact, Lost):
            continue
        if ends_job(replace(state, facts={shard.name: fact})) or is_early(shard, fact.failure, state.now):
            continue
        state = record(state, shard, fact.failure, "ReplaceShards")
        replacements[shard.index] = replacement(state.observed, shard).evolve(avoid=avoided(shard, fact.failure))
        facts[shard.name] = NeverSeen("")
    return replace(state.to(with_shards(state.status, replacements)), facts=facts)


def _wait(state: ReconcileState, kind: str, reason: str) -> ReconcileState:
    """Mark the lost members as Lost while the decision is open."""

    def shown(member: M) -> M:
        return member.evolve(state="Lost") if isinstance(state.facts[member.name], Lost) else member

    before = state.status.recovery
    return under_recovery(state.to(edited(state.status, shown)), before.kind if before else kind, reason)


def _finish(state: ReconcileState) -> ReconcileState:
    """End the recovery once all members work and the leader trains in the present group."""
    status, leader, now = state.status, state.leader_report, state.now
    if status.recovery is None:
        return state
    waiting = tuple(m.name for m in status.members if not is_settled(m))
    is_training = leader is not None and leader.state in AT_WORK and is_current(status, leader)
    if waiting or not is_training or leader is None or leader.counters.group != status.counters.group:
        return state.to(status.evolve(recovery=status.recovery.evolve(waiting_for=waiting[:32])))
    took = elapsed_s(status.recovery.since, now)
    failures = tuple(
        f.evolve(recovery_seconds=elapsed_s(f.time, now)) if f.recovery_seconds is None and not f.process else f
        for f in status.failures
    )
    message = f"training resumed after {took:.1f} s ({status.recovery.kind})"
    event = Event("Normal", EventReason.RECOVERED, message, f"recovered-{status.restarts}-{status.counters.roster}")
    status = after_recovery(state.spec, status, now)
    return state.to(status.evolve(recovery=None, failures=failures), event)


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
    # A flush misses nothing: trainers push again, or compute again, all updates without an acknowledgement.
    first = max(floor, total) if grant.flushed else floor
    pending_from = first if shard.pending_from is None else min(first, shard.pending_from)
    return shard.evolve(
        floor_samples=floor,
        saved_samples=floor,
        pending_from=pending_from,
        # Trainers may have used an earlier allowance; its reservation still stands.
        allowance=max(shard.allowance, grant.allowance),
        lost_at=shard.lost_at or now,
        may_restore=True,
        predecessor=None,
    )


def _rolled_back(shard: Shard, samples: int) -> Shard:
    return shard.evolve(
        floor_samples=samples,
        saved_samples=samples,
        reserved=(),
        pending_from=None,
        allowance=0,
        lost_row_updates=None,
        may_restore=True,
        predecessor=None,
        lost_at=None,
        state="Pending" if shard.state == "Pending" else "Restoring",
    )


def _progress_at(progress: Progress, samples: int, step: int) -> Progress:
    """Return the progress after a rollback. Samples that are trained again count as training from there on."""
    samples, step = min(samples, progress.samples), min(step, progress.step)
    percent = 100 * samples // max(progress.total_samples, 1)
    held_out = progress.held_out if progress.held_out and progress.held_out.samples <= samples else None
    segment = progress.segment if progress.segment and progress.segment.stop <= samples else None
    return progress.evolve(
        samples=samples, step=step, percent=percent, protected_samples=None, held_out=held_out, segment=segment
    )


def _event(status: Status, reason: EventReason, message: str) -> Event:
    counters = status.counters
    return Event("Normal", reason, message, f"{reason}-{counters.generation}-{counters.group}-{status.restarts}")
