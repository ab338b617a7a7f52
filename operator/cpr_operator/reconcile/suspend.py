"""Suspend, resume and resize: trainers stop first, then shards, until only the status and the saves are left.

Rosters stop the pods. Pods are deleted once the status holds their flushes and results: their objects keep these until
then, so no operator can miss them. Only a pod that does not stop in time is deleted earlier.

With another number of shards or trainers in its spec, a job resumes from an anchor, usually that of the suspension
(docs/adr/0013, 0019). In a shadow mode an anchor is aligned only if all trainers have reached a common step before the
job stops. Otherwise, or if the budget forbids that anchor, the job resumes with its old numbers.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from cpr_contract.roster import KEY_CHANGED
from cpr_operator.api.cprjob_spec import CPRJobSpec
from cpr_operator.api.status import Anchor, Shard, Status, Trainer
from cpr_operator.cluster.protocol import Event
from cpr_operator.cluster.views import PodView
from cpr_operator.desired.pod import grace_s
from cpr_operator.failures import failure_of
from cpr_operator.ledger import limit_of
from cpr_operator.reconcile.apply_reports import restorable, with_anchor
from cpr_operator.reconcile.completion import result_of, succeed
from cpr_operator.reconcile.conditions import ConditionUpdate, set_conditions
from cpr_operator.reconcile.members import M, replacement, with_trainer
from cpr_operator.reconcile.observe import begin, end_of_predecessor, flush_of, is_current
from cpr_operator.reconcile.phases import runtime, starting
from cpr_operator.reconcile.recover import apply_replacement, apply_rollback, under_recovery
from cpr_operator.reconcile.recovery_decision import loss_of
from cpr_operator.reconcile.restore_source import source_anchor_in
from cpr_operator.reconcile.save_plan import after_failure, after_resharding, planned
from cpr_operator.reconcile.types import EventReason, NoPod, PodDelete, ReconcileInput, ReconcileState
from cpr_operator.recovery.account import account_of, is_overspent, with_account
from cpr_operator.recovery.decide import (
    FailJob,
    Loss,
    RecoveryInput,
    Replace,
    RollBack,
    WaitForReport,
    WaitForStore,
    decide,
    roll_back,
)

#: The reason to suspend a job after the loss of its handshake key. A member reads the key once, at its start. Without
#: the Secret a new member has no key or another one, and its peers reject it. All are saved, stop, and resume.
KEY_LOST = "the job's key was lost, and all members continue with a new one"
#: The exit code of a shard that stopped on its roster before every trainer had pushed to it.
TERMINATED = 128 + signal.SIGTERM


def needs_new_key(observed: ReconcileInput) -> bool:
    """Return whether the key of a job that has started is missing, or a member found another key."""
    status = observed.before
    if status.runtime is None or status.runtime.key_digest == observed.key_digest:
        return False
    own = {member.pod for member in status.members}
    ends = (failure_of(pod) for pod in observed.pods if pod.name in own)
    return observed.key_lost or any(end and end.problem and end.problem.reason == KEY_CHANGED for end in ends)


def with_new_key(observed: ReconcileInput) -> ReconcileInput:
    """Return the input with the next key in force."""
    status = observed.before
    if status.runtime is None:
        return observed
    renewed = status.runtime.evolve(key_digest=observed.key_digest)
    if renewed.ca:  # encryption itself may change when the job resumes
        renewed = renewed.evolve(ca=observed.next_ca, identity_digest=observed.identity_digest, issued=None)
    status = status.evolve(runtime=renewed)
    return replace(observed, job=replace(observed.job, status=status))


def waits_to_resume(observed: ReconcileInput) -> bool:
    """Return whether the pause of a suspended job is not over."""
    resume_at = observed.before.resume_at
    return resume_at is not None and observed.now < resume_at


def suspend(observed: ReconcileInput, why: str = "") -> ReconcileState:
    """Return the next step of a suspension. `why`: the reason if it is neither spec.suspend nor another size."""
    state = begin(observed)
    result = result_of(state.status, state.facts)
    if result is not None:
        # The job has its model: it succeeds without resuming.
        done = succeed(state, result)
        if not is_overspent(done.status):
            return done
    state = _stop(state, why)
    return set_conditions(state, _suspended(state, why))


def resume(observed: ReconcileInput) -> ReconcileState:
    """Return new incarnations of all members, in the next group, by the present spec."""
    state = ReconcileState(observed, observed.before, {member.name: NoPod() for member in observed.before.members})
    state = resize(state) or _restore(state)
    counters, before = state.status.counters, observed.before.runtime
    status = state.status.evolve(
        start_time=state.now,
        runtime=runtime(observed, None if before is None else source_anchor_in(before.job_spec)),
        counters=counters.evolve(group=counters.group + 1),
        shards=tuple(
            replacement(observed, shard).evolve(
                # Only a shard that lost something, now or before, has a loss to report.
                lost_at=state.now if shard.state == "Lost" else shard.lost_at,
                floor_samples=shard.saved_samples,  # its last save: an older one would be a loss
                allowance=0,
                avoid="",
            )
            for shard in state.status.shards
        ),
        trainers=tuple(replacement(observed, t).evolve(lost_at=None, avoid="") for t in state.status.trainers),
        aligning=False,
        recovery=None,
        resume_at=None,
    )
    return starting(state.to(planned(state.spec, status, renew=True)))


def wants_other_trainers(spec: CPRJobSpec, status: Status) -> bool:
    """Return whether a job with pods must stop and resume with another number of trainers."""
    return status.phase not in {"Pending", "Suspended"} and len(status.trainers) != spec.trainers.replicas


def align_trainers(state: ReconcileState) -> ReconcileState:
    """Let trainers in a shadow mode advance to a common step before their number changes.

    First every shard must have reported its losses, which takes pushes. Its worst-case loss may exceed
    the budget, and then no anchor would be acceptable.
    """
    reported = all(shard.lost_at is None for shard in state.status.shards)
    status = state.status.evolve(aligning=reported and wants_other_trainers(state.spec, state.status))
    if not status.aligning or state.status.aligning:
        return state.to(status)
    message = f"{_size_change(state.spec, status)}: all trainers first advance to a common step and save there"
    key = f"meeting-{state.observed.job.spec_generation}"
    return state.to(status, Event("Normal", EventReason.MEETING, message, key))


def trainers_aligned(observed: ReconcileInput) -> bool:
    """Return whether all trainers are at the step of the newest anchor, or will be when they stop."""
    if _is_synchronous(observed.job.spec):
        return True
    leader, status = observed.leader_report, observed.before
    met = leader.met if leader is not None and is_current(status, leader) else None
    return met is not None and bool(status.anchors) and status.anchors[-1].key == met.key


def resize(state: ReconcileState) -> ReconcileState | None:
    """Return a new generation of a suspended job, by the numbers of members in its spec; None if it keeps its own."""
    spec, status, synchronous = state.spec, state.status, _is_synchronous(state.spec)
    reason = _size_change(spec, status)
    if not reason or not (synchronous or status.aligning):
        return None
    trained = max(status.progress.samples, status.dense.saved_samples, *(s.saved_samples for s in status.shards))
    aligned = status.anchors if synchronous else status.anchors[-1:]
    decision = roll_back(account_of(status), aligned, reason)
    if decision.anchor is None and not synchronous:
        return None
    step, samples = (decision.anchor.step, decision.anchor.samples) if decision.anchor else (0, 0)
    rollbacks = status.budget.rollbacks if status.budget else 0
    status = apply_rollback(state, decision).status
    status = _with_new_shards(spec, status, samples).evolve(anchors=restorable(status, aligned))
    if len(status.trainers) != spec.trainers.replicas:
        newest = max(trainer.incarnation for trainer in status.trainers)
        trainers = tuple(Trainer(index=i, incarnation=newest) for i in range(spec.trainers.replicas))
        status = status.evolve(trainers=trainers, leader=0)
    message = f"{reason}; all members continue from the anchor of step {step}"
    if samples != trained:
        message += "; what was trained since then is trained again, because it was not saved as one anchor"
    elif status.budget is not None:
        status = status.evolve(budget=status.budget.evolve(rollbacks=rollbacks))
    return state.to(status, Event("Normal", EventReason.RESUMED, message, f"resized-{status.counters.generation}"))


def _size_change(spec: CPRJobSpec, status: Status) -> str:
    """Return the change of the numbers of members of a started job, as text; empty if there is none."""
    sizes = (
        (len(status.shards), spec.shards.replicas, "shards"),
        (len(status.trainers), spec.trainers.replicas, "trainers"),
    )
    return " and ".join(f"{now} {name} become {desired}" for now, desired, name in sizes if now != desired)


def _is_synchronous(spec: CPRJobSpec) -> bool:
    return spec.trainers.dense_sync == "AllReduce"


def _with_new_shards(spec: CPRJobSpec, status: Status, samples: int) -> Status:
    """Return the status with the shards of the spec, at an anchor of `samples` samples."""
    before, desired = len(status.shards), spec.shards.replicas
    if before == desired:
        return status
    newest = max(shard.incarnation for shard in status.shards)  # so that no name of a pod is used twice
    limit = limit_of(spec.accuracy_budget.portion, status.ledger.total_samples, desired)
    account = account_of(status).reshard(desired, limit)
    shards = tuple(
        Shard(index=i, incarnation=newest, floor_samples=samples, saved_samples=samples) for i in range(desired)
    )
    status = status.evolve(shards=shards, policy=after_resharding(status.policy, before, desired))
    return with_account(status, account)


def _stop(state: ReconcileState, why: str) -> ReconcileState:
    """Record the ends of members, and select the pods to delete."""
    before, observed = state.before, state.observed
    if before.phase == "Pending":
        return replace(state.to(before.evolve(phase="Suspended")), deletes=())
    if before.phase == "Suspended":
        return _with_deletes(state.to(before.evolve(resume_at=None)))
    since = state.now if before.suspending_since is None else before.suspending_since
    state = _with_ends(state)
    state = state.to(state.status.evolve(phase="Suspending", suspending_since=since))
    if before.phase != "Suspending":
        status = state.status.evolve(aligning=before.aligning and trainers_aligned(observed))
        why = "" if state.spec.suspend else f"{_size_change(state.spec, before) or why}: "
        message = f"{why}saving, then deleting all pods"
        state = state.to(status, Event("Normal", EventReason.SUSPENDING, message, f"suspending-{since:.0f}"))
    if any(not pod.is_stuck(observed.now) for pod in observed.pods):
        return _with_deletes(state)
    lost = tuple(shard.index for shard in state.status.shards if shard.state == "Lost")
    state = under_recovery(state, "ReplaceShards", "suspended", lost)
    status = after_failure(state.spec, state.status, state.now)
    progress = status.progress.evolve(protected_samples=None)  # parity does not outlive the pods
    status = status.evolve(phase="Suspended", suspending_since=None, recovery=None, spares=(), progress=progress)
    done = Event("Normal", EventReason.SUSPENDED, "all pods are gone", f"suspended-{since:.0f}")
    return replace(state.to(status, done), deletes=())


def _suspended(state: ReconcileState, why: str) -> ConditionUpdate:
    """Return the condition Suspended: whether all pods are gone, and the reason."""
    status, spec = state.status, state.spec
    stopped: Literal["True", "False"] = "True" if status.phase == "Suspended" else "False"
    reason, before = next(((c.reason, c.message) for c in status.conditions if c.type == "Suspended"), ("", ""))
    if spec.suspend:
        return ConditionUpdate("Suspended", stopped, status.phase, "spec.suspend is true")
    if status.resume_at is not None:
        return ConditionUpdate("Suspended", stopped, reason, before)
    return ConditionUpdate("Suspended", stopped, status.phase, _size_change(spec, status) or why or before)


def _with_deletes(state: ReconcileState) -> ReconcileState:
    """Delete pods that have nothing left to save, or took too long: first trainers, then shards."""
    status, now = state.status, state.now
    limit_s, since = grace_s(status.policy.commit_seconds), status.suspending_since or now
    until = dict.fromkeys((t.uid for t in status.trainers), since + limit_s)
    until |= dict.fromkeys((s.uid for s in status.shards), since + 2 * limit_s)
    deletes = tuple(
        PodDelete(pod.name, pod.uid, "the job is suspended")
        for pod in state.observed.pods
        if pod.deleting_until is None and now >= until.get(pod.uid, now)
    )
    return replace(state, deletes=deletes)


def _with_ends(state: ReconcileState) -> ReconcileState:
    """Record the flushes and results of members that have ended. Their entries name no pod any more."""
    pods = {pod.name: pod for pod in state.observed.pods}
    for trainer in state.status.trainers:
        state = state.to(_with_trainers_end(state, trainer, pods.get(trainer.pod)))
    stopping = not any(trainer.uid for trainer in state.status.trainers)
    shards = tuple(_with_shards_end(state.observed, shard, pods, stopping=stopping) for shard in state.status.shards)
    return state.to(state.status.evolve(shards=shards))


def _with_trainers_end(state: ReconcileState, trainer: Trainer, pod: PodView | None) -> Status:
    status = state.status
    if pod is not None and _runs(state.observed, pod):
        return with_trainer(status, trainer.evolve(uid=pod.uid, state="Flushing"))
    failure = failure_of(pod)
    save = flush_of(state.observed, failure) if failure else None
    if save is not None and save.samples > status.dense.saved_samples:
        status = status.evolve(dense=status.dense.evolve(saved_samples=save.samples))
    if failure is not None and failure.anchor is not None:
        status = with_anchor(status, Anchor.of(failure.anchor), state.spec.snapshots.keep)
    return with_trainer(status, _without_pod(trainer).evolve(state="Pending"))


def _with_shards_end(observed: ReconcileInput, shard: Shard, pods: Mapping[str, PodView], *, stopping: bool) -> Shard:
    """Return the entry, Pending once its save is known, Lost if it ended without one."""
    pod = pods.get(shard.pod)
    if shard.predecessor is not None:
        over, failure = end_of_predecessor(observed, shard)
        if not over:  # the pod that waits for it holds nothing
            return shard.evolve(uid="")
    elif pod is not None and _runs(observed, pod):
        return shard.evolve(uid=pod.uid, state="Flushing" if stopping else shard.state)
    elif (not shard.uid) if pod is None else (pod.phase == "Pending"):  # recorded before, or its process never ran
        return _without_pod(shard)
    else:
        failure = failure_of(pod)
    loss = loss_of(observed, shard, failure)
    # The shard had lost nothing before, and no push of a trainer was lost either.
    untouched = shard.lost_at is None and failure is not None and failure.exit_code == TERMINATED
    saved = loss.flushed or untouched
    shard = shard.evolve(saved_samples=loss.saved, predecessor=None, may_restore=True)
    return _without_pod(shard).evolve(state="Pending" if saved else "Lost")


def _without_pod(member: M) -> M:
    return member.evolve(pod="", uid="")


def _runs(observed: ReconcileInput, pod: PodView) -> bool:
    """Return whether a process runs that may save something."""
    return pod.phase != "Pending" and not pod.ended and not pod.is_stuck(observed.now)


def _restore(state: ReconcileState) -> ReconcileState:
    """Give leave to restore the flushes, or go back to an anchor."""
    status = state.status
    flushed = tuple(shard.saved_samples for shard in status.shards if shard.state != "Lost")
    given = RecoveryInput(
        mode=status.plan.mode if status.plan else "Partial",
        account=account_of(status),
        losses=tuple(Loss(shard.index, shard.saved_samples) for shard in status.shards if shard.state == "Lost"),
        lost_trainers=(),
        survivors=(),
        leader=status.leader or 0,
        trainer_bound=None,
        shard_bound=max(flushed, default=None),  # the flushes have the position of training
        bound_exact=True,
        shard_state=bool(flushed),
        dense_saved=status.dense.saved_samples,
        dense_charged=_is_synchronous(state.spec),
        anchors=status.anchors,
    )
    decision = decide(given)
    resumed = Event("Normal", EventReason.RESUMED, decision.reason, f"resumed-{status.counters.group}")
    match decision:
        case Replace():
            return state.to(apply_replacement(state, decision).status, resumed)
        case RollBack():
            return apply_rollback(state.to(status, resumed), decision)
        case WaitForReport() | WaitForStore() | FailJob():
            raise AssertionError(f"no active member could report: {decision}")
