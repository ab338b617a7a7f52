"""A recovery's decision, carried out on the status: who is replaced, what is set aside, where all go back to."""

from __future__ import annotations

from collections.abc import Mapping

from cpr_operator.api.status import MAX_FORKS, Fork, Overhead, Progress, Recovery, Shard, Status
from cpr_operator.cluster.protocol import Event
from cpr_operator.reconcile.avoid import avoided
from cpr_operator.reconcile.edit import account_of, with_account
from cpr_operator.reconcile.figures import restorable
from cpr_operator.reconcile.members import M, edited, record_lost, successor
from cpr_operator.reconcile.observe import Fact, Lost
from cpr_operator.reconcile.world import EventReason, Step, World
from cpr_operator.recovery.decide import Replace, RollBack, ShardGrant

#: Kinds of recovery, the gravest last: a recovery under way never turns into a lesser one.
KINDS = ("ReplaceShards", "ReplaceTrainers", "RollBack")


def replace_members(world: World, step: Step, facts: Mapping[str, Fact], decision: Replace) -> Step:
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


def roll_back(world: World, step: Step, facts: Mapping[str, Fact], decision: RollBack) -> Step:
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


def under_recovery(world: World, status: Status, kind: str, reason: str, lost: tuple[int, ...] = ()) -> Status:
    """The status with the recovery under way, in which the state of the shards `lost` was lost.

    It began when the first one began, is as grave as the gravest, and one failure of all shards that were lost in it.
    """
    before = status.recovery or Recovery(kind=kind, since=world.now, degraded_before=status.progress.degraded_samples)
    if before.kind in KINDS:
        kind = KINDS[max(KINDS.index(before.kind), KINDS.index(kind))] if kind in KINDS else before.kind
    lost = tuple(sorted({*before.lost_shards, *lost}))
    return status.evolve(recovery=before.evolve(kind=kind, reason=reason, lost_shards=lost, waiting_for=()))


def _replace_lost(world: World, step: Step, facts: Mapping[str, Fact], action: str) -> Step:
    step = record_lost(world, step, facts, action)

    def heir(member: M) -> M:
        fact = facts[member.name]
        if not isinstance(fact, Lost):
            return member
        avoid, lost_at = avoided(member, fact.failure), member.lost_at or world.now
        return successor(world.job.id, member, world.now).evolve(lost_at=lost_at, avoid=avoid)

    return step.to(edited(step.status, heir))


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
