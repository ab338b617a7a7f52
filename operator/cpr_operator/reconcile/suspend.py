"""Suspend and resume: trainers stop first, then shards, then nothing is left but the status and the saves.

Pods are told by their rosters to stop, and deleted when the status holds what they left: their objects keep it until
then, so no operator can miss it. Only a pod that does not stop in time is deleted before.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import replace

from cpr_contract.roster import KEY_CHANGED
from cpr_operator.api.spec import CPRJobSpec
from cpr_operator.api.status import Anchor, Shard, Status, Trainer
from cpr_operator.cluster.protocol import Event
from cpr_operator.cluster.views import PodView
from cpr_operator.desired.pod import grace_s
from cpr_operator.failures import Failure, classify
from cpr_operator.reconcile.completion import result_of, succeed, with_termination_message
from cpr_operator.reconcile.conditions import ConditionUpdate, set_conditions, truth
from cpr_operator.reconcile.lifecycle import runtime, starting
from cpr_operator.reconcile.members import M, replacement, with_trainer
from cpr_operator.reconcile.observe import begin
from cpr_operator.reconcile.plan import after_failure, planned
from cpr_operator.reconcile.recover import apply_replacement, apply_rollback, under_recovery
from cpr_operator.reconcile.recovery_input import end_of_predecessor, flush_of, loss_of
from cpr_operator.reconcile.reports import with_anchor
from cpr_operator.reconcile.resize import resize, resizing, trainers_aligned
from cpr_operator.reconcile.restore_source import source_anchor
from cpr_operator.reconcile.types import EventReason, NoPod, PodDelete, ReconcileInput, ReconcileState
from cpr_operator.recovery.account import account_of, is_overspent
from cpr_operator.recovery.decide import (
    FailJob,
    Loss,
    RecoveryInput,
    Replace,
    RollBack,
    WaitForReport,
    WaitForStore,
    decide,
)

#: Why a job stops to go on under a new handshake key. A member reads the key once, at its start. A
#: member that is created after the Secret was lost would have none, and one with another key would
#: not be believed. So all stop, are saved, and resume: nothing is lost.
KEY_LOST = "the job's key was lost, and all members continue with a new one"
#: The exit code of a shard that was told to stop before every trainer had pushed to it.
TERMINATED = 128 + signal.SIGTERM


def needs_new_key(observed: ReconcileInput) -> bool:
    """Whether the key of a job that has started is gone, or a member found another one in its place."""
    status = observed.before
    if status.runtime is None or status.runtime.key_digest == observed.key_digest:
        return False
    return observed.key_lost or _is_replaced(observed)


def with_new_key(observed: ReconcileInput) -> ReconcileInput:
    """The input of a pass in which pods are made with the next key."""
    status = observed.before
    if status.runtime is None:
        return observed
    status = status.evolve(runtime=status.runtime.evolve(key_digest=observed.key_digest))
    return replace(observed, job=replace(observed.job, status=status))


def _is_replaced(observed: ReconcileInput) -> bool:
    status = observed.before
    own = {member.pod for member in status.members}
    ends = (classify(pod) for pod in observed.pods if pod.name in own)
    return any(isinstance(end, Failure) and end.problem and end.problem.reason == KEY_CHANGED for end in ends)


def waits_to_resume(observed: ReconcileInput) -> bool:
    """Whether a suspended job waits until it is resumed again."""
    resume_at = observed.before.resume_at
    return resume_at is not None and observed.now < resume_at


def suspend(observed: ReconcileInput, why: str = "") -> ReconcileState:
    """The next step of a suspension. `why`: it begins now, and neither by the spec's `suspend` nor by its numbers."""
    state = begin(observed)
    result = result_of(state.status, state.facts)
    if result is not None:
        # The job has its model already: it is over, and need not resume for that.
        done = succeed(state.to(with_termination_message(state.spec, state.status, state.facts)), result)
        if not is_overspent(done.status):
            return done
    state = _stop(state, why)
    return set_conditions(state, _suspended(state, why))


def _suspended(state: ReconcileState, why: str) -> ConditionUpdate:
    """Whether all pods are gone, and why they go."""
    status, spec = state.status, state.spec
    stopped = truth(status.phase == "Suspended")
    reason, before = next(((c.reason, c.message) for c in status.conditions if c.type == "Suspended"), ("", ""))
    if spec.suspend:
        return ConditionUpdate("Suspended", stopped, status.phase, "spec.suspend is true")
    if status.resume_at is not None:
        return ConditionUpdate("Suspended", stopped, reason, before)
    return ConditionUpdate("Suspended", stopped, status.phase, resizing(spec, status) or why or before)


def _stop(state: ReconcileState, why: str) -> ReconcileState:
    """The status with what ended members left, and the pods to delete."""
    before, observed = state.before, state.observed
    if before.phase == "Pending":
        return replace(state.to(before.evolve(phase="Suspended")), deletes=())
    if before.phase == "Suspended":
        return _with_deletes(state.to(before.evolve(resume_at=None)))
    since = state.now if before.suspending_since is None else before.suspending_since
    state = _with_ends(state)
    state = state.to(state.status.evolve(phase="Suspending", suspending_since=since))
    if before.phase != "Suspending":
        status = state.status.evolve(meeting=before.meeting and trainers_aligned(observed))
        why = "" if state.spec.suspend else f"{resizing(state.spec, before) or why}: "
        message = f"{why}saving, then deleting all pods"
        state = state.to(status, Event("Normal", EventReason.SUSPENDING, message, f"suspending-{since:.0f}"))
    if any(not pod.is_stuck(observed.now) for pod in observed.pods):
        return _with_deletes(state)
    lost = tuple(shard.index for shard in state.status.shards if shard.state == "Lost")
    state = under_recovery(state, "ReplaceShards", "suspended", lost)
    status = after_failure(state.spec, state.status, state.now)
    progress = status.progress.evolve(protected_samples=None)  # parity goes with the pods
    status = status.evolve(phase="Suspended", suspending_since=None, recovery=None, spares=(), progress=progress)
    done = Event("Normal", EventReason.SUSPENDED, "all pods are gone", f"suspended-{since:.0f}")
    return replace(state.to(status, done), deletes=())


def resume(observed: ReconcileInput) -> ReconcileState:
    """New incarnations of all members, in the next group, with what the spec asks for now."""
    state = ReconcileState(observed, observed.before, {member.name: NoPod() for member in observed.before.members})
    state = resize(state) or _restore(state)
    counters = state.status.counters
    status = state.status.evolve(
        start_time=state.now,
        runtime=runtime(observed, source_anchor(observed.before.runtime)),
        counters=counters.evolve(group=counters.group + 1),
        shards=tuple(
            replacement(observed, shard).evolve(
                lost_at=_told_later(shard, state.now),
                floor_samples=shard.saved_samples,  # what it saved last: an older save would be a loss
                allowance=0,
                avoid="",
            )
            for shard in state.status.shards
        ),
        trainers=tuple(replacement(observed, t).evolve(lost_at=None, avoid="") for t in state.status.trainers),
        meeting=False,
        recovery=None,
        resume_at=None,
    )
    return starting(state.to(planned(state.spec, status, renew=True)))


def _restore(state: ReconcileState) -> ReconcileState:
    """The status with leave to restore what was flushed, or to go back to an anchor."""
    status = state.status
    decision = decide(_recovery_input(state.spec, status))
    said = Event("Normal", EventReason.RESUMED, decision.reason, f"resumed-{status.counters.group}")
    match decision:
        case Replace():
            return state.to(apply_replacement(state, decision).status, said)
        case RollBack():
            return apply_rollback(state.to(status, said), decision)
        case WaitForReport() | WaitForStore() | FailJob():
            raise AssertionError(f"no member lives that could report: {decision}")


def _recovery_input(spec: CPRJobSpec, status: Status) -> RecoveryInput:
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
        bound_exact=True,
        shard_state=bool(flushed),
        dense_saved=status.dense.saved_samples,
        dense_charged=spec.trainers.dense_sync == "AllReduce",
        anchors=status.anchors,
    )


def _told_later(shard: Shard, now: float) -> float | None:
    """Only a shard that lost something, now or before, has to tell what it was."""
    return now if shard.state == "Lost" else shard.lost_at


def _with_deletes(state: ReconcileState) -> ReconcileState:
    """Delete pods that have nothing left to save, or took too long: first trainers, then shards."""
    status, now = state.status, state.now
    patience_s, since = grace_s(status.policy.commit_seconds), status.suspending_since or now
    until = dict.fromkeys((t.uid for t in status.trainers), since + patience_s)
    until |= dict.fromkeys((s.uid for s in status.shards), since + 2 * patience_s)
    deletes = tuple(
        PodDelete(pod.name, pod.uid, "the job is suspended")
        for pod in state.observed.pods
        if pod.deleting_until is None and now >= until.get(pod.uid, now)
    )
    return replace(state, deletes=deletes)


def _with_ends(state: ReconcileState) -> ReconcileState:
    """The status with what members that have ended left behind. Their entries name no pod."""
    pods = {pod.name: pod for pod in state.observed.pods}
    for trainer in state.status.trainers:
        state = state.to(_with_trainers_end(state, trainer, pods.get(trainer.pod)))
    told = not any(trainer.uid for trainer in state.status.trainers)
    shards = tuple(_with_shards_end(state.observed, shard, pods, told=told) for shard in state.status.shards)
    return state.to(state.status.evolve(shards=shards))


def _with_trainers_end(state: ReconcileState, trainer: Trainer, pod: PodView | None) -> Status:
    status = state.status
    if pod is not None and _runs(state.observed, pod):
        return with_trainer(status, trainer.evolve(uid=pod.uid, state="Flushing"))
    failure = _failure(pod)
    save = flush_of(state.observed, failure) if failure else None
    if save is not None and save.samples > status.dense.saved_samples:
        status = status.evolve(dense=status.dense.evolve(saved_samples=save.samples))
    if failure is not None and failure.anchor is not None:
        status = with_anchor(status, Anchor.of(failure.anchor), state.spec.snapshots.keep)
    return with_trainer(status, _without_pod(trainer).evolve(state="Pending"))


def _with_shards_end(observed: ReconcileInput, shard: Shard, pods: Mapping[str, PodView], *, told: bool) -> Shard:
    """Pending once its save is known, Lost if it ended without one."""
    pod = pods.get(shard.pod)
    if shard.predecessor is not None:
        over, failure = end_of_predecessor(observed, shard)
        if not over:  # the pod that waits for it holds nothing
            return shard.evolve(uid="")
    elif pod is not None and _runs(observed, pod):
        return shard.evolve(uid=pod.uid, state="Flushing" if told else shard.state)
    elif (not shard.uid) if pod is None else (pod.phase == "Pending"):  # recorded before, or its process never ran
        return _without_pod(shard)
    else:
        failure = _failure(pod)
    loss = loss_of(observed, shard, failure)
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


def _runs(observed: ReconcileInput, pod: PodView) -> bool:
    """Whether a process runs that may save something."""
    return pod.phase != "Pending" and not pod.ended and not pod.is_stuck(observed.now)
