"""Way B through the house: members are lost, and one decision over all of them is made and carried out."""

from __future__ import annotations

from collections.abc import Mapping

from cpr_operator.api.status import Predecessor, Shard, Status
from cpr_operator.cluster.protocol import Event
from cpr_operator.failures import Kind
from cpr_operator.reconcile.act import replace_members, roll_back, under_recovery
from cpr_operator.reconcile.avoid import avoided, relent
from cpr_operator.reconcile.edit import account_of, is_overspent
from cpr_operator.reconcile.incidents import new_incidents
from cpr_operator.reconcile.learning import after_recovery
from cpr_operator.reconcile.members import M, edited, record, record_lost, successor, with_shards
from cpr_operator.reconcile.observe import (
    Fact,
    Going,
    Lost,
    Unborn,
    is_settled,
)
from cpr_operator.reconcile.reports import AT_WORK, is_current, leader_report
from cpr_operator.reconcile.situation import (
    anchors_before_origin,
    anchors_before_result,
    damaged_origin,
    damaged_result,
    situation_of,
)
from cpr_operator.reconcile.world import EventReason, Step, World
from cpr_operator.recovery.decide import (
    Decision,
    FailJob,
    Replace,
    RollBack,
    Situation,
    WaitForReport,
    decide,
)
from cpr_operator.recovery.decide import roll_back as back_to


def recover(world: World, step: Step, facts: Mapping[str, Fact]) -> tuple[Step, FailJob | None]:
    """The next step of whatever recovery is due, and why the job is to end, if it is."""
    step = _bear_again(world, step, facts)
    step = relent(world, step, facts)
    step = _succeed_going(world, step, facts)
    step, facts = _replace_waiting(world, step, facts)
    decision = _decision(world, step.status, facts)
    match decision:
        case None:
            return _finish(world, step), None
        case Replace():
            return replace_members(world, step, facts, decision), None
        case RollBack():
            return roll_back(world, step, facts, decision), None
        case WaitForReport():
            return step.to(_waiting(world, step.status, facts, decision)), None
        case FailJob():
            return record_lost(world, step, facts, "Fail"), decision


def _decision(world: World, status: Status, facts: Mapping[str, Fact]) -> Decision | None:
    if is_overspent(status):  # first of all: not even a job that fails has lost more than it may
        return back_to(account_of(status), status.anchors, "more was lost than the budget allows")
    failed = _hopeless(world, status, facts)
    if failed is not None:
        return failed
    if damaged_origin(world, status, facts):
        older = anchors_before_origin(status)
        return back_to(account_of(status), older, "the anchor that this generation started from is damaged")
    if damaged_result(status):
        return back_to(account_of(status), anchors_before_result(status), "the final anchor is damaged")
    situation: Situation | None = situation_of(world, status, facts)
    return decide(situation) if situation is not None else None


def _hopeless(world: World, status: Status, facts: Mapping[str, Fact]) -> FailJob | None:
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


def _bear_again(world: World, step: Step, facts: Mapping[str, Fact]) -> Step:
    """A pod that was wanted and never seen may exist yet: its number is given up, and the next one taken."""

    def heir(member: M) -> M:
        fact = facts[member.name]
        if not isinstance(fact, Unborn) or fact.refusal:
            return member
        return successor(world.job.id, member, member.started_at or world.now)

    return step.to(edited(step.status, heir))


def _succeed_going(world: World, step: Step, facts: Mapping[str, Fact]) -> Step:
    """A shard that somebody deletes gets its successor at once; it may not restore while the old one may save."""
    heirs, name = {}, ""
    for shard in step.status.shards:
        fact = facts[shard.name]
        if not isinstance(fact, Going):
            continue
        name = shard.name
        step = record(world, step, shard, fact.failure, "ReplaceShards")
        before = shard.predecessor or Predecessor(pod=fact.pod.name, uid=fact.pod.uid, until=fact.until)
        heirs[shard.index] = successor(world.job.id, shard, world.now).evolve(
            lost_at=shard.lost_at or world.now,
            may_restore=False,
            predecessor=before,
            avoid=avoided(shard, fact.failure),
        )
    if not heirs:
        return step
    reason = f"{name} is being deleted: its successor waits for what it still saves"
    return step.to(under_recovery(world, with_shards(step.status, heirs), "ReplaceShards", reason))


def _replace_waiting(world: World, step: Step, facts: Mapping[str, Fact]) -> tuple[Step, Mapping[str, Fact]]:
    """A successor that dies while it waits for its predecessor holds nothing: another one waits in its place."""
    rest, heirs = dict(facts), {}
    for shard in step.status.shards:
        name = shard.name
        fact = facts[name]
        if shard.predecessor is None or not isinstance(fact, Lost) or _hopeless(world, step.status, {name: fact}):
            continue
        step = record(world, step, shard, fact.failure, "ReplaceShards")
        heirs[shard.index] = successor(world.job.id, shard, world.now).evolve(avoid=avoided(shard, fact.failure))
        rest[name] = Unborn("")
    return step.to(with_shards(step.status, heirs)), rest


def _waiting(world: World, status: Status, facts: Mapping[str, Fact], decision: WaitForReport) -> Status:
    """Nothing is decided yet: the lost are shown as lost."""

    def shown(shard: Shard) -> Shard:
        lost = isinstance(facts[shard.name], Lost)
        return shard.evolve(state="Lost") if lost else shard

    shards = tuple(shown(shard) for shard in status.shards)
    status = status.evolve(shards=shards)
    kind = status.recovery.kind if status.recovery else "ReplaceShards"
    return under_recovery(world, status, kind, decision.reason)


def _finish(world: World, step: Step) -> Step:
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
