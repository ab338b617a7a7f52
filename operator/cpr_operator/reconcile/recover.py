"""Members are lost: one decision over all of them is made and carried out."""

from __future__ import annotations

from collections.abc import Mapping

from cpr_operator.api.status import MAX_FORKS, Fork, Member, Overhead, Predecessor, Progress, Recovery, Shard, Status
from cpr_operator.cluster.protocol import Event
from cpr_operator.failures import UNSCHEDULABLE, Failure, Kind
from cpr_operator.reconcile.apply_reports import restorable
from cpr_operator.reconcile.members import (
    M,
    account_of,
    edited,
    is_overspent,
    new_incidents,
    record,
    record_lost,
    replacement,
    with_account,
    with_shards,
)
from cpr_operator.reconcile.observe import AT_WORK, is_current, is_settled, leader_report
from cpr_operator.reconcile.pass_ import Alive, EventReason, Fact, Lost, NeverSeen, PassInput, Step, Terminating
from cpr_operator.reconcile.plan import after_recovery
from cpr_operator.reconcile.recovery_input import (
    anchors_before_origin,
    anchors_before_result,
    damaged_origin,
    damaged_result,
    recovery_input,
)
from cpr_operator.recovery.decide import (
    Decision,
    FailJob,
    RecoveryInput,
    Replace,
    RollBack,
    ShardGrant,
    WaitForReport,
    decide,
    roll_back,
)


def recover(world: PassInput, step: Step, facts: Mapping[str, Fact]) -> tuple[Step, FailJob | None]:
    """The next step of whatever recovery is due, and why the job is to end, if it is."""
    step = _recreate_unseen(world, step, facts)
    step = _drop_avoidance(world, step, facts)
    step = _replace_terminating(world, step, facts)
    step, facts = _replace_waiting(world, step, facts)
    decision = _decision(world, step.status, facts)
    match decision:
        case None:
            return _finish(world, step), None
        case Replace():
            return apply_replacement(world, step, facts, decision), None
        case RollBack():
            return apply_rollback(world, step, facts, decision), None
        case WaitForReport():
            return step.to(_waiting(world, step.status, facts, decision)), None
        case FailJob():
            return record_lost(world, step, facts, "Fail"), decision


def _decision(world: PassInput, status: Status, facts: Mapping[str, Fact]) -> Decision | None:
    if is_overspent(status):  # first of all: not even a job that fails has lost more than it may
        return roll_back(account_of(status), status.anchors, "more was lost than the budget allows")
    failed = _hopeless(world, status, facts)
    if failed is not None:
        return failed
    if damaged_origin(world, status, facts):
        older = anchors_before_origin(status)
        return roll_back(account_of(status), older, "the anchor that this generation started from is damaged")
    if damaged_result(status):
        return roll_back(account_of(status), anchors_before_result(status), "the final anchor is damaged")
    situation: RecoveryInput | None = recovery_input(world, status, facts)
    return decide(situation) if situation is not None else None


def _hopeless(world: PassInput, status: Status, facts: Mapping[str, Fact]) -> FailJob | None:
    """Whether the failures of this pass end the job: one that would come again, or too many."""
    lost = [fact.failure for fact in facts.values() if isinstance(fact, Lost)]
    is_origin = any(f.kind is Kind.DAMAGED for f in lost) and damaged_origin(world, status, facts)
    for failure in lost:
        if failure.permanent and not (failure.kind is Kind.DAMAGED and is_origin):
            return FailJob(failure.kind, failure.message)
    limit = world.job.spec.failure_policy.restart_limit
    counted = new_incidents(status, facts, world.now)
    earlier = sum(time > world.now - limit.window_seconds for time in status.restart_times)
    if counted and earlier + counted > limit.count:
        last = next(failure for failure in lost if failure.counts_as_restart)
        return FailJob(
            "RestartLimitReached",
            f"{earlier + counted} incidents within {limit.window_seconds} s, and {limit.count} are allowed; "
            f"the last: {last.kind}: {last.message}; see status.failures, mend the cause, and create the job anew",
        )
    return None


def _recreate_unseen(world: PassInput, step: Step, facts: Mapping[str, Fact]) -> Step:
    """A pod that was wanted and never seen may exist yet: its number is given up, and the next one taken."""

    def replaced(member: M) -> M:
        fact = facts[member.name]
        if not isinstance(fact, NeverSeen) or fact.refusal:
            return member
        return replacement(world.job.id, member, member.started_at or world.now)

    return step.to(edited(step.status, replaced))


def _replace_terminating(world: PassInput, step: Step, facts: Mapping[str, Fact]) -> Step:
    """A shard that somebody deletes gets its successor at once; it may not restore while the old one may save."""
    replacements, name = {}, ""
    for shard in step.status.shards:
        fact = facts[shard.name]
        if not isinstance(fact, Terminating):
            continue
        name = shard.name
        step = record(world, step, shard, fact.failure, "ReplaceShards")
        before = shard.predecessor or Predecessor(pod=fact.pod.name, uid=fact.pod.uid, until=fact.until)
        replacements[shard.index] = replacement(world.job.id, shard, world.now).evolve(
            lost_at=shard.lost_at or world.now,
            may_restore=False,
            predecessor=before,
            avoid=avoided(shard, fact.failure),
        )
    if not replacements:
        return step
    reason = f"{name} is being deleted: its successor waits for what it still saves"
    return step.to(under_recovery(world, with_shards(step.status, replacements), "ReplaceShards", reason))


def _replace_waiting(world: PassInput, step: Step, facts: Mapping[str, Fact]) -> tuple[Step, Mapping[str, Fact]]:
    """A successor that dies while it waits for its predecessor holds nothing: another one waits in its place."""
    rest, replacements = dict(facts), {}
    for shard in step.status.shards:
        name = shard.name
        fact = facts[name]
        if shard.predecessor is None or not isinstance(fact, Lost) or _hopeless(world, step.status, {name: fact}):
            continue
        step = record(world, step, shard, fact.failure, "ReplaceShards")
        replacements[shard.index] = replacement(world.job.id, shard, world.now).evolve(
            avoid=avoided(shard, fact.failure)
        )
        rest[name] = NeverSeen("")
    return step.to(with_shards(step.status, replacements)), rest


def _waiting(world: PassInput, status: Status, facts: Mapping[str, Fact], decision: WaitForReport) -> Status:
    """Nothing is decided yet: the lost are shown as lost."""

    def shown(shard: Shard) -> Shard:
        lost = isinstance(facts[shard.name], Lost)
        return shard.evolve(state="Lost") if lost else shard

    shards = tuple(shown(shard) for shard in status.shards)
    status = status.evolve(shards=shards)
    kind = status.recovery.kind if status.recovery else "ReplaceShards"
    return under_recovery(world, status, kind, decision.reason)


def _finish(world: PassInput, step: Step) -> Step:
    """A recovery is over when everybody works and the leader trains in the present group and generation."""
    status, leader = step.status, leader_report(world)
    if status.recovery is None:
        return step
    waiting = tuple(m.name for m in status.members if not is_settled(m))
    trains = leader is not None and leader.state in AT_WORK and is_current(status, leader)
    if waiting or not trains or leader is None or leader.counters.group != status.counters.group:
        recovery = status.recovery.evolve(waiting_for=waiting[:32])
        return step.to(status.evolve(recovery=recovery))
    took = world.now - status.recovery.since
    failures = tuple(
        f.evolve(recovery_seconds=max(world.now - f.time, 0.0)) if f.recovery_seconds is None else f
        for f in status.failures
    )
    message = f"training again after {took:.1f} s ({status.recovery.kind})"
    event = Event("Normal", EventReason.RECOVERED, message, f"recovered-{status.restarts}-{status.counters.roster}")
    status = after_recovery(world.job.spec, status, world.now)
    return step.to(status.evolve(recovery=None, failures=failures), event)


#: Kinds of failure after which the node itself may be gone, though its object still says Ready.
SILENT_ENDS = frozenset({Kind.HUNG, Kind.NODE_LOST})


def avoided(member: Member, failure: Failure) -> str:
    """The node that the successor of a lost member keeps off; empty if any will do.

    While the member has not worked again, what was avoided stays avoided.
    """
    if failure.kind in SILENT_ENDS:
        return member.node
    return member.avoid if member.lost_at is not None else ""


def _drop_avoidance(world: PassInput, step: Step, facts: Mapping[str, Fact]) -> Step:
    """Where the scheduler knows no other node, the next try may go anywhere: the silent one may be all there is."""

    def replaced(member: M) -> M:
        match facts[member.name]:
            case Alive(trouble=trouble) if member.avoid and trouble and trouble.reason == UNSCHEDULABLE:
                return replacement(world.job.id, member, world.now).evolve(avoid="")
            case _:
                return member

    return step.to(edited(step.status, replaced))


#: Kinds of recovery, the gravest last: a recovery under way never turns into a lesser one.
KINDS = ("ReplaceShards", "ReplaceTrainers", "RollBack")


def apply_replacement(world: PassInput, step: Step, facts: Mapping[str, Fact], decision: Replace) -> Step:
    """New incarnations of the lost members and of nobody else; leave to restore for those that wait."""
    kind = "ReplaceTrainers" if decision.trainers or decision.dense else "ReplaceShards"
    step = _replace_lost(world, step, facts, kind)
    status = step.status
    grants = {grant.index: grant for grant in decision.shards}
    shards = tuple(
        _granted(shard, grants[shard.index], world.now) if shard.index in grants else shard for shard in status.shards
    )
    counters = status.counters.evolve(group=status.counters.group + bool(decision.trainers))
    status = status.evolve(shards=shards, counters=counters, leader=decision.leader)
    account = account_of(status).reserve(
        {index: grant.reserve for index, grant in grants.items()}, decision.dense.reserve if decision.dense else ()
    )
    if decision.dense is not None:
        dense = status.dense.evolve(floor_samples=decision.dense.floor, saved_samples=decision.dense.floor)
        status = status.evolve(dense=dense)
    status = with_account(under_recovery(world, status, kind, decision.reason, decision.lost), account)
    return step.to(status, _event(status, EventReason.REPLACING, decision.reason))


def apply_rollback(world: PassInput, step: Step, facts: Mapping[str, Fact], decision: RollBack) -> Step:
    """Everybody goes back to one anchor, in a new generation; lost members as new incarnations."""
    step = _replace_lost(world, step, facts, "RollBack")
    status, samples = step.status, decision.anchor.samples if decision.anchor else 0
    generation = status.counters.generation + 1
    lost_trainer = any(name.startswith("trainer/") and isinstance(fact, Lost) for name, fact in facts.items())
    account = account_of(status).roll_back(samples)
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
            f.evolve(lost_samples=0, lost_row_updates=0, action="RollBack") if f.recovery_seconds is None else f
            for f in status.failures
        ),
    )
    status = status.evolve(anchors=restorable(status, status.anchors))
    status = with_account(under_recovery(world, status, "RollBack", decision.reason, decision.lost), account)
    if status.budget is not None:
        status = status.evolve(budget=status.budget.evolve(rollbacks=status.budget.rollbacks + 1))
    where = f"step {decision.anchor.step}" if decision.anchor else "step 0"
    return step.to(status, _event(status, EventReason.ROLLING_BACK, f"back to {where}: {decision.reason}"))


def under_recovery(world: PassInput, status: Status, kind: str, reason: str, lost: tuple[int, ...] = ()) -> Status:
    """The status with the recovery under way, in which the state of the shards `lost` was lost.

    It began when the first one began, is as grave as the gravest, and one failure of all shards that were lost in it.
    """
    before = status.recovery or Recovery(kind=kind, since=world.now, degraded_before=status.progress.degraded_samples)
    if before.kind in KINDS:
        kind = KINDS[max(KINDS.index(before.kind), KINDS.index(kind))] if kind in KINDS else before.kind
    lost = tuple(sorted({*before.lost_shards, *lost}))
    return status.evolve(recovery=before.evolve(kind=kind, reason=reason, lost_shards=lost, waiting_for=()))


def _replace_lost(world: PassInput, step: Step, facts: Mapping[str, Fact], action: str) -> Step:
    step = record_lost(world, step, facts, action)

    def replaced(member: M) -> M:
        fact = facts[member.name]
        if not isinstance(fact, Lost):
            return member
        avoid, lost_at = avoided(member, fact.failure), member.lost_at or world.now
        return replacement(world.job.id, member, world.now).evolve(lost_at=lost_at, avoid=avoid)

    return step.to(edited(step.status, replaced))


def _granted(shard: Shard, grant: ShardGrant, now: float) -> Shard:
    floor = grant.floor
    owes_from = floor if shard.owes_from is None else min(floor, shard.owes_from)
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
    return progress.evolve(samples=samples, step=step, percent=100 * samples // max(progress.total_samples, 1))


def _with_lost_time(status: Status, samples: int) -> Overhead:
    """With the time that it took to train what is undone. It was all trained in the progress, or undone before."""
    rate, undone = status.policy.samples_per_second, status.progress.samples - samples
    seconds = undone / rate if rate and undone > 0 else 0.0
    return status.overhead.evolve(lost_seconds=status.overhead.lost_seconds + seconds)


def _event(status: Status, reason: EventReason, message: str) -> Event:
    counters = status.counters
    return Event("Normal", reason, message, f"{reason}-{counters.generation}-{counters.group}-{status.restarts}")
