"""Suspend and resume: trainers stop first, then shards, then nothing is left but the status and the saves.

Pods are told by their rosters to stop, and deleted when the status holds what they left: their objects keep it until
then, so no operator can miss it. Only a pod that does not stop in time is deleted before.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from typing import TypeVar

from cpr_operator.api.spec import CPRJobSpec
from cpr_operator.api.status import Anchor, Shard, Status, Trainer
from cpr_operator.cluster.protocol import Event
from cpr_operator.cluster.views import PodView
from cpr_operator.desired.pod import grace_s
from cpr_operator.failures import Failure, classify
from cpr_operator.reconcile.apply_reports import with_anchor
from cpr_operator.reconcile.lifecycle import runtime
from cpr_operator.reconcile.members import account_of, replacement, with_all_owed, with_trainer
from cpr_operator.reconcile.observe import is_stuck
from cpr_operator.reconcile.pass_ import EventReason, Fact, NoPod, PassInput, PodDelete, Step
from cpr_operator.reconcile.plan import after_failure, planned
from cpr_operator.reconcile.recover import apply_replacement, apply_rollback, under_recovery
from cpr_operator.reconcile.recovery_input import end_of_predecessor, flush_of, loss_of
from cpr_operator.reconcile.resize import resize, resizing, trainers_aligned
from cpr_operator.recovery.decide import (
    FailJob,
    Loss,
    RecoveryInput,
    Replace,
    RollBack,
    WaitForReport,
    decide,
    roll_back,
)

M = TypeVar("M", Shard, Trainer)

#: The exit code of a shard that was told to stop before every trainer had pushed to it.
TERMINATED = 128 + signal.SIGTERM


def suspend(world: PassInput, why: str = "") -> tuple[Step, tuple[PodDelete, ...]]:
    """The next step of suspending, and the pods to delete in it. `why`: if neither `suspend` nor numbers ask for it."""
    before = world.job.status
    if before.phase == "Pending":
        return Step(before.evolve(phase="Suspended")), ()
    if before.phase == "Suspended":
        return Step(before.evolve(resume_at=None)), tuple(_deletes(world, before))
    since = world.now if before.suspending_since is None else before.suspending_since
    step = Step(_recorded(world).evolve(phase="Suspending", suspending_since=since))
    if before.phase != "Suspending":
        step = Step(step.status.evolve(meeting=before.meeting and trainers_aligned(world)))
        why = "" if world.job.spec.suspend else f"{resizing(world.job.spec, before) or why}: "
        message = f"{why}saving, then removing all pods"
        said = Event("Normal", EventReason.SUSPENDING, message, f"suspending-{since:.0f}")
        step = step.to(step.status, said)
    if any(not is_stuck(world, pod) for pod in world.pods):
        return step, tuple(_deletes(world, step.status))
    done = Event("Normal", EventReason.SUSPENDED, "all pods are gone", f"suspended-{since:.0f}")
    lost = tuple(shard.index for shard in step.status.shards if shard.state == "Lost")
    status = under_recovery(world, step.status, "ReplaceShards", "suspended", lost)
    status = after_failure(world.job.spec, status, world.now)
    return step.to(status.evolve(phase="Suspended", suspending_since=None, recovery=None), done), ()


def resume(world: PassInput) -> Step:
    """New incarnations of all, in the next group, from what was saved; the runtime is frozen anew."""
    job, status = world.job.id, world.job.status
    no_pods = {m.name: NoPod() for m in status.members}
    step = resize(world, no_pods) or _restored(world, no_pods)
    status = step.status.evolve(
        start_time=world.now,
        runtime=runtime(world),
        counters=step.status.counters.evolve(group=step.status.counters.group + 1),
        shards=tuple(
            replacement(job, shard, world.now).evolve(
                lost_at=_told_later(shard, world.now),
                floor_samples=shard.saved_samples,  # what it saved last: an older save would be a loss
                allowance=0,
                avoid="",
            )
            for shard in step.status.shards
        ),
        trainers=tuple(replacement(job, t, world.now).evolve(lost_at=None, avoid="") for t in step.status.trainers),
        meeting=False,
        recovery=None,
        resume_at=None,
        phase="Starting",
    )
    return step.to(planned(world.job.spec, status, anew=True))


def _restored(world: PassInput, no_pods: Mapping[str, Fact]) -> Step:
    """The status with leave to restore what was flushed, or to go back to an anchor."""
    status = world.job.status
    decision = decide(_situation(world.job.spec, status))
    said = Event("Normal", EventReason.RESUMED, decision.reason, f"resumed-{status.counters.group}")
    match decision:
        case Replace():
            return Step(apply_replacement(world, Step(status), no_pods, decision).status, (said,))
        case RollBack():
            owing = with_all_owed(status)
            decision = roll_back(account_of(owing), status.anchors, decision.reason, decision.lost)
            return apply_rollback(world, Step(owing, (said,)), no_pods, decision)
        case WaitForReport() | FailJob():
            raise AssertionError(f"nobody lives who could be waited for: {decision}")


def _situation(spec: CPRJobSpec, status: Status) -> RecoveryInput:
    """Nobody is left; what was flushed says how far training had come."""
    flushed = tuple(shard.saved_samples for shard in status.shards if shard.state != "Lost")
    return RecoveryInput(
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
        dense_charged=spec.trainers.dense_sync == "AllReduce",
        anchors=status.anchors,
    )


def _told_later(shard: Shard, now: float) -> float | None:
    """Only a shard that lost something, now or before, has to tell what it was."""
    return now if shard.state == "Lost" else shard.lost_at


def _deletes(world: PassInput, status: Status) -> Iterator[PodDelete]:
    """Pods that nothing is awaited from, or that let themselves be waited for too long: first trainers, then shards."""
    patience_s, since = grace_s(status.policy.commit_seconds), status.suspending_since or world.now
    until = dict.fromkeys((t.uid for t in status.trainers), since + patience_s)
    until |= dict.fromkeys((s.uid for s in status.shards), since + 2 * patience_s)
    for pod in world.pods:
        if pod.deleting_until is None and world.now >= until.get(pod.uid, world.now):
            yield PodDelete(pod.name, pod.uid, "the job is suspended")


def _recorded(world: PassInput) -> Status:
    """The status with what members that have ended left behind; their entries name no pod any more."""
    status, pods = world.job.status, {pod.name: pod for pod in world.pods}
    for trainer in status.trainers:
        status = _trainer_recorded(world, status, trainer, pods.get(trainer.pod))
    told = not any(trainer.uid for trainer in status.trainers)
    shards = tuple(_shard_recorded(world, shard, pods, told=told) for shard in status.shards)
    return status.evolve(shards=shards)


def _trainer_recorded(world: PassInput, status: Status, trainer: Trainer, pod: PodView | None) -> Status:
    if pod is not None and _runs(world, pod):
        return with_trainer(status, trainer.evolve(uid=pod.uid, state="Flushing"))
    failure = _failure(pod)
    save = flush_of(world, failure) if failure else None
    if save is not None and save.samples > status.dense.saved_samples:
        status = status.evolve(dense=status.dense.evolve(saved_samples=save.samples))
    if failure is not None and failure.anchor is not None:
        status = with_anchor(status, Anchor.of(failure.anchor), world.job.spec.snapshots.keep)
    return with_trainer(status, _without_pod(trainer).evolve(state="Pending"))


def _shard_recorded(world: PassInput, shard: Shard, pods: Mapping[str, PodView], *, told: bool) -> Shard:
    """Pending once its save is known, Lost if it ended without one."""
    pod = pods.get(shard.pod)
    if shard.predecessor is not None:
        over, failure = end_of_predecessor(world, shard)
        if not over:  # the pod that waits for it holds nothing
            return shard.evolve(uid="")
    elif pod is not None and _runs(world, pod):
        return shard.evolve(uid=pod.uid, state="Flushing" if told else shard.state)
    elif (not shard.uid) if pod is None else (pod.phase == "Pending"):  # recorded before, or its process never ran
        return _without_pod(shard)
    else:
        failure = _failure(pod)
    loss = loss_of(world, shard, failure)
    # One that nothing was lost on before, and that no trainer's push was lost on either.
    untouched = shard.lost_at is None and failure is not None and failure.exit_code == TERMINATED
    kept = loss.flushed or untouched
    shard = shard.evolve(saved_samples=loss.saved, predecessor=None, may_restore=True)
    return _without_pod(shard).evolve(state="Pending" if kept else "Lost")


def _without_pod(member: M) -> M:
    return member.evolve(pod="", uid="")


def _failure(pod: PodView | None) -> Failure | None:
    happened = classify(pod)
    return happened if isinstance(happened, Failure) else None


def _runs(world: PassInput, pod: PodView) -> bool:
    """Whether a process runs that may save something."""
    return pod.phase != "Pending" and not pod.ended and not is_stuck(world, pod)
