"""Deadlines of a start and of a recovery: who is late, and how a job gives its nodes back."""

from __future__ import annotations

from collections.abc import Sequence

from cpr_operator.api.status import Member
from cpr_operator.cluster.protocol import Event
from cpr_operator.reconcile.conditions import ConditionUpdate, not_started, set_conditions
from cpr_operator.reconcile.observe import AT_WORK, is_settled
from cpr_operator.reconcile.types import Active, EventReason, Fact, NeverSeen, ReconcileState

#: Cause of a failed job, and reason of `Suspended`.
EXCEEDED = "StartupDeadlineExceeded"
#: The same for a recovery.
RECOVERY_EXCEEDED = "RecoveryDeadlineExceeded"
#: Seconds until a job that was given back is resumed.
PAUSE_S = 300.0
#: Conditions that may explain why pods are not ready.
_TROUBLE = {("PodsReady", "False"), ("SnapshotsDegraded", "True")}
_SHOWN = 8


def overdue(state: ReconcileState) -> str:
    """The late members of a starting job, in words; empty if there are none.

    Only time in which this operator was running counts, because it tells the pods about each other.
    """
    deadline_s = state.spec.failure_policy.startup_deadline_seconds
    leader = state.leader_report
    if state.observed.watched_s < deadline_s or (leader is not None and leader.state in AT_WORK):
        return ""
    since, leader_answers = state.now - deadline_s, leader is not None
    members = {m.name: m for m in state.status.members if not is_settled(m)}
    late = [n for n, m in members.items() if _is_late(m, state.facts[n], since, leader_answers=leader_answers)]
    if not late:
        return ""
    # Those that run wait for those that do not.
    late = [name for name in late if not_started(state.facts[name])] or late
    return _with_causes(state, f"not all pods were ready within {deadline_s} s", late)


def not_replaced(state: ReconcileState) -> str:
    """The replacements whose pods have not started within the recovery's deadline, in words; empty without any.

    A replacement that runs is not among them: it restores, or waits for others. Nor does the deadline count while
    training goes on without the lost members, or may do so: a leader that runs has to answer.
    """
    deadline_s, leader = state.spec.recovery.deadline_seconds, state.leader_report
    if deadline_s is None or state.observed.watched_s < deadline_s:
        return ""
    waiting = {m.name: m for m in state.status.members if not_started(state.facts[m.name])}
    silent = leader is None and state.status.trainers[state.status.leader or 0].name not in waiting
    if silent or (leader is not None and leader.state in AT_WORK and not leader.waiting_for):
        return ""
    since = state.now - deadline_s
    late = [n for n, m in waiting.items() if _is_late(m, state.facts[n], since, leader_answers=False)]
    return _with_causes(state, f"replacements did not start within {deadline_s} s", late) if late else ""


def _with_causes(state: ReconcileState, words: str, late: Sequence[str]) -> str:
    shown = ", ".join(late[:_SHOWN]) + (", ..." if len(late) > _SHOWN else "")
    causes = [c.message for c in state.status.conditions if (c.type, c.status) in _TROUBLE]
    return "; ".join((f"{words}: {shown}", *causes))


def _is_late(member: Member, fact: Fact, since: float, *, leader_answers: bool) -> bool:
    """Whether a member's pod was requested or created before `since`, and is not ready yet.

    The kubelet knows whether a pod runs. If it runs and is not Ready, the leader has to confirm that it does not
    train: while the leader does not answer, training may be fine.
    """
    match fact:
        case Active(pod=pod) if pod.phase == "Pending":
            return pod.created <= since
        case Active(pod=pod):
            return leader_answers and not pod.ready and pod.created <= since
        case NeverSeen(refusal=refusal) if refusal:
            return member.started_at is not None and member.started_at <= since
        case _:
            return False


def never_trained(state: ReconcileState) -> bool:
    """Whether the job has certainly not trained yet, so that nothing would be lost with it.

    Its first pods cannot train before all of them run. Once one was replaced, only the leader knows.
    """
    status = state.status
    trained = max(status.progress.samples, status.dense.saved_samples, *(s.saved_samples for s in status.shards))
    return trained == 0 and (status.restarts == 0 or state.leader_report is not None)


def give_back(state: ReconcileState, reason: str, late: str, more_time: str) -> ReconcileState:
    """Save, delete the job's pods, and suspend it for a while."""
    message = (
        f"{late}; all pods are saved and deleted, and the job resumes automatically in {PAUSE_S:.0f} s; to resume now, "
        f"set spec.suspend to true and back to false; to allow more time, {more_time}"
    )
    now = state.now
    status = state.status.evolve(phase="Suspending", suspending_since=now, resume_at=now + PAUSE_S)
    event = Event("Warning", EventReason.SUSPENDING, message, f"suspending-{now:.0f}")
    return set_conditions(state.to(status, event), ConditionUpdate("Suspended", "False", reason, message))
