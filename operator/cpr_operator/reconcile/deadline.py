"""The startup deadline, judged by what the kubelet says of pods: that the operator hears nothing is no evidence.

A job that never trained fails. One that has trained goes back to Suspended, and resumes again later by itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from cpr_operator.api.status import Member, Status
from cpr_operator.cluster.protocol import Event
from cpr_operator.reconcile.conditions import Finding
from cpr_operator.reconcile.observe import Alive, Fact, Unborn, is_settled
from cpr_operator.reconcile.reports import AT_WORK, leader_report
from cpr_operator.reconcile.world import EventReason, Step, World

#: Cause of a failed job, and reason of `Suspended`.
EXCEEDED = "StartupDeadlineExceeded"
#: A resume that took too long is tried again after so long.
PAUSE_S = 300.0
#: Conditions that may say why pods do not work.
_TROUBLE = {("PodsReady", "False"), ("SnapshotsDegraded", "True")}
_SHOWN = 8


def overdue(world: World, status: Status, facts: Mapping[str, Fact]) -> str:
    """Who is late in a job that starts, in words; empty if nobody is.

    Only time counts in which this operator was there: before, nobody told pods of each other.
    """
    deadline_s = world.job.spec.failure_policy.startup_deadline_seconds
    leader = leader_report(world)
    if world.watched_s < deadline_s or (leader is not None and leader.state in AT_WORK):
        return ""
    since, leader_answers = world.now - deadline_s, leader is not None
    members = {m.name: m for m in status.members if not is_settled(m)}
    late = [n for n, m in members.items() if _is_late(m, facts[n], since, leader_answers=leader_answers)]
    if not late:
        return ""
    shown = ", ".join(late[:_SHOWN]) + (", ..." if len(late) > _SHOWN else "")
    said = [c.message for c in status.conditions if (c.type, c.status) in _TROUBLE]
    return "; ".join((f"not all pods worked within {deadline_s} s: {shown}", *said))


def _is_late(member: Member, fact: Fact, since: float, *, leader_answers: bool) -> bool:
    """Whether a member's pod was wanted or made before `since`, and does not work yet.

    That a pod does not run the kubelet knows. Where it runs and is not Ready, the leader has to say that it does not
    train: as long as the leader is silent, all may be well.
    """
    match fact:
        case Alive(pod=pod) if pod.phase == "Pending":
            return pod.created <= since
        case Alive(pod=pod):
            return leader_answers and not pod.ready and pod.created <= since
        case Unborn(refusal=words) if words:
            return member.started_at is not None and member.started_at <= since
        case _:
            return False


def never_trained(world: World, status: Status) -> bool:
    """Whether nothing would be lost with the job, for certain.

    Its first pods cannot train before all of them run. Once one was replaced, only the leader can tell.
    """
    told = max(status.progress.samples, status.dense.saved_samples, *(s.saved_samples for s in status.shards))
    return told == 0 and (status.restarts == 0 or leader_report(world) is not None)


def give_back(world: World, step: Step, late: str) -> tuple[Step, Finding]:
    """The job gives its pods back and is suspended for a while; with the condition that says why."""
    message = (
        f"{late}; nothing is lost, and the job resumes by itself in {PAUSE_S:.0f} s; to resume at once, set "
        "spec.suspend to true and back to false; to give it longer, also raise "
        "spec.failurePolicy.startupDeadlineSeconds while it is suspended"
    )
    resume_at = world.now + PAUSE_S
    status = step.status.evolve(phase="Suspending", suspending_since=world.now, resume_at=resume_at)
    event = Event("Warning", EventReason.SUSPENDING, message, f"suspending-{world.now:.0f}")
    return step.to(status, event), Finding("Suspended", "False", EXCEEDED, message)


def is_resting(world: World) -> bool:
    """Whether a suspended job waits until it is resumed again."""
    resume_at = world.job.status.resume_at
    return resume_at is not None and world.now < resume_at
