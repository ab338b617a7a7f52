"""Suspend and resume: trainers end first, then shards flush, then nothing is left but the status and the saves."""

from __future__ import annotations

from collections.abc import Mapping

from cpr_operator.api.status import Shard, Status
from cpr_operator.cluster.protocol import Event
from cpr_operator.cluster.views import PodView
from cpr_operator.failures import Failure, classify
from cpr_operator.reconcile.act import replace_members, roll_back
from cpr_operator.reconcile.edit import account_of
from cpr_operator.reconcile.life import runtime
from cpr_operator.reconcile.members import replace_entry, successor
from cpr_operator.reconcile.observe import NoPod, member_name, role_of
from cpr_operator.reconcile.planning import planned
from cpr_operator.reconcile.situation import end_of_predecessor, flush_of, loss_of
from cpr_operator.reconcile.world import EventReason, PodDelete, Step, World, change
from cpr_operator.recovery.decide import FailJob, Loss, Replace, RollBack, Situation, WaitForReport, decide


def suspend(world: World) -> tuple[Step, tuple[PodDelete, ...]]:
    """The next step of suspending, and the pods to delete in it."""
    status = world.job.status
    if status.phase == "Pending":
        return Step(change(status, phase="Suspended")), ()
    step = Step(_ended(world, status))
    if status.phase not in {"Suspending", "Suspended"}:
        step = step.to(
            step.status, Event("Normal", EventReason.SUSPENDING, "saving, then removing all pods", "suspending")
        )
    running = tuple(pod for pod in world.pods if _runs(pod))
    trainers = tuple(pod for pod in running if pod.role == "trainer")
    deletes = tuple(
        PodDelete(pod.name, pod.uid, "the job is suspended")
        for pod in trainers or world.pods
        if pod.deleting_until is None
    )
    if world.pods:
        return step.to(change(step.status, phase="Suspending")), deletes
    if status.phase == "Suspended":
        return step, ()
    done = Event("Normal", EventReason.SUSPENDED, "all pods are gone", f"suspended-{status.counters.roster}")
    return step.to(change(step.status, phase="Suspended", recovery=None), done), ()


def resume(world: World) -> Step:
    """New incarnations of all, in the next group, from what was flushed; the runtime is frozen anew."""
    job, status = world.job.id, world.job.status
    decision = decide(_situation(status))
    status = change(
        status,
        start_time=world.now,
        runtime=runtime(world),
        counters=change(status.counters, group=status.counters.group + 1),
        shards=tuple(
            successor(job, shard, world.now, lost_at=_told_later(shard, world.now)) for shard in status.shards
        ),
        trainers=tuple(successor(job, trainer, world.now, lost_at=None) for trainer in status.trainers),
    )
    step = Step(status).to(status, Event("Normal", EventReason.RESUMED, "resumed", f"resumed-{status.counters.group}"))
    nobody = {member_name(role_of(m), m.index): NoPod() for m in (*status.shards, *status.trainers)}
    match decision:
        case Replace():
            step = replace_members(world, step, nobody, decision)
        case RollBack():
            step = roll_back(world, step, nobody, decision)
        case WaitForReport() | FailJob():
            raise AssertionError(f"nobody lives who could be waited for: {decision}")
    status = change(step.status, recovery=None, phase="Starting")
    return step.to(planned(world.job.spec, status, anew=True))


def _situation(status: Status) -> Situation:
    """Nobody is left; what was flushed says how far training had come."""
    flushed = tuple(shard.saved_samples for shard in status.shards if shard.state != "Lost")
    return Situation(
        mode=status.plan.mode if status.plan else "Partial",
        account=account_of(status),
        losses=tuple(Loss(shard.index, shard.saved_samples) for shard in status.shards if shard.state == "Lost"),
        lost_trainers=(),
        survivors=(),
        leader=status.leader or 0,
        trainer_bound=None,
        shard_bound=max(flushed, default=None),
        shard_state=bool(flushed),
        dense_saved=status.dense.saved_samples,
        anchors=status.anchors,
    )


def _told_later(shard: Shard, now: float) -> float | None:
    """Only a shard that lost something, now or before, has to tell what it was."""
    return now if shard.state == "Lost" else shard.lost_at


def _ended(world: World, status: Status) -> Status:
    """What the members left behind: flushed saves, or nothing."""
    pods = {pod.uid: pod for pod in world.pods}
    for trainer in status.trainers:
        failure = _failure(pods.get(trainer.uid)) if trainer.uid else None
        save = flush_of(world, failure) if failure else None
        if save is not None and save.samples > status.dense.saved_samples:
            status = change(status, dense=change(status.dense, saved_samples=save.samples))
        if trainer.uid not in pods or (failure is not None and failure.ended):
            status = replace_entry(status, trainer, change(trainer, uid="", state="Pending"))
    return change(status, shards=tuple(_shard_ended(world, pods, shard) for shard in status.shards))  # type: ignore[no-any-return]


def _shard_ended(world: World, pods: Mapping[str, PodView], shard: Shard) -> Shard:
    """Pending once its save is known, Lost if it ended without one: its entry then names no pod any more."""
    if shard.predecessor is not None:
        over, failure = end_of_predecessor(world, shard)
    else:
        failure = _failure(pods.get(shard.uid))
        over = bool(shard.uid) and (shard.uid not in pods or (failure is not None and failure.ended))
    if not over:
        return shard
    loss = loss_of(world, shard, failure)
    kept = loss.flushed or (shard.state == "Pending" and shard.predecessor is None)
    return change(  # type: ignore[no-any-return]
        shard, saved_samples=loss.saved, state="Pending" if kept else "Lost", uid="", predecessor=None, may_restore=True
    )


def _failure(pod: PodView | None) -> Failure | None:
    happened = classify(pod) if pod else None
    return happened if isinstance(happened, Failure) else None


def _runs(pod: PodView) -> bool:
    return pod.phase in {"Pending", "Running", "Unknown"}
