"""A job's life: which phase follows which, how it starts, is suspended, and ends.

Pending -> Starting -> Running <-> Recovering | RollingBack -> Finishing -> Succeeded
Pending may go to Suspended, any later phase to Suspending -> Suspended -> Starting; all but those two to Failed
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace

from cpr_contract.codec import to_json
from cpr_contract.key import KEY_CHANGED
from cpr_contract.reports import ShardReport, ShardState
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.spec import CPRJobSpec
from cpr_operator.api.status import Anchor, Counters, Fork, Member, Phase, Runtime, Shard, Status, Trainer
from cpr_operator.cluster.protocol import Event
from cpr_operator.desired.versions import next_version
from cpr_operator.failures import Failure, Kind, classify
from cpr_operator.reconcile.apply_reports import with_total
from cpr_operator.reconcile.conditions import ConditionUpdate
from cpr_operator.reconcile.members import account_of, owed, replacement, with_account
from cpr_operator.reconcile.observe import AT_WORK, is_current, is_settled, leader_report, report_of
from cpr_operator.reconcile.pass_ import Alive, Done, EventReason, Fact, Lost, NeverSeen, PassInput, Step
from cpr_operator.reconcile.plan import planned

_ALIVE: frozenset[Phase] = frozenset({"Starting", "Running", "Recovering", "RollingBack", "Finishing"})

#: Which phases may follow which within one pass; a phase may also stay. Nothing follows the last two.
TRANSITIONS: Mapping[Phase, frozenset[Phase]] = {
    "Pending": frozenset({"Starting", "Suspended", "Failed"}),
    **{phase: (_ALIVE - {"Starting", phase}) | {"Suspending", "Succeeded", "Failed"} for phase in _ALIVE},
    "Suspending": frozenset({"Suspended", "Succeeded"}),
    "Suspended": frozenset({"Starting"}),
    "Succeeded": frozenset(),
    "Failed": frozenset(),
}


def phase_of(world: PassInput, status: Status) -> Phase:
    """The phase of a job that has pods and goes on."""
    before = world.job.status.phase
    starting = before in {"Pending", "Suspended", "Starting"}
    if starting and not all(is_settled(m) for m in status.members):
        return "Starting"
    if status.recovery is not None:
        return "RollingBack" if status.recovery.kind == "RollBack" else "Recovering"
    leader = status.trainers[status.leader or 0]
    return "Finishing" if leader.state in {"Finishing", "Finished"} else "Running"


def start(world: PassInput) -> Step:
    """The first pods of a new job are wanted: from here on its image, contract and templates are frozen."""
    spec, job, status = world.job.spec, world.job.id, world.job.status
    shards = (Shard(index=i, lost_row_updates=0) for i in range(spec.shards.replicas))
    status = status.evolve(
        start_time=world.now,
        runtime=runtime(world),
        counters=Counters(generation=1, group=1, roster=0),
        forks=(Fork(generation=1),),
        leader=0,
        shards=tuple(replacement(job, shard, world.now) for shard in shards),
        trainers=tuple(replacement(job, Trainer(index=i), world.now) for i in range(spec.trainers.replicas)),
    )
    status = with_total(world, status, spec.data.samples or 0)
    status = planned(spec, with_account(status, account_of(status)), anew=True)
    message = f"{len(status.trainers)} trainers and {len(status.shards)} shards"
    return Step(status).to(status, Event("Normal", EventReason.STARTED, message, "started"))


def runtime(world: PassInput) -> Runtime:
    """What all pods are made from until the job is suspended and resumed."""
    spec, job = world.job.spec, world.job.id
    before, version = world.job.status.runtime, next_version(world.job.status, spec.image)
    return Runtime(
        image=spec.image,
        contract_version=version,
        template_hash=template_hash(spec),
        key_digest=before.key_digest if before and not world.key_lost else world.key_digest,
        job_spec=to_json(to_job_spec(spec, job.uid, job.name, version)),
    )


def template_hash(spec: CPRJobSpec) -> str:
    """What tells the pod templates from others."""
    templates = json.dumps([spec.trainers.template, spec.shards.template], sort_keys=True)
    return hashlib.sha256(templates.encode()).hexdigest()[:16]


def succeed(world: PassInput, step: Step, result: Anchor) -> Step:
    """The final anchor is committed: the job has a model. What nobody settled any more counts as lost, at the worst."""
    status = step.status
    account = account_of(status).reserve(owed(status, result.samples))
    status = with_account(status, account.charge_reserved())
    progress = status.progress.evolve(step=result.step, samples=result.samples, percent=100, eta_seconds=0.0)
    status = status.evolve(
        phase="Succeeded",
        completion_time=world.now,
        result=result,
        progress=progress,
        shards=tuple(s if s.lost_at is None else s.evolve(lost_row_updates=None, allowance=0) for s in status.shards),
        recovery=None,
    )
    return step.to(status, Event("Normal", EventReason.SUCCEEDED, f"the model is {result.key}", "succeeded"))


def fail(world: PassInput, step: Step, cause: str, reason: str) -> Step:
    """The job ends without a model; its saves stay in the store."""
    status = step.status.evolve(phase="Failed", completion_time=world.now, recovery=None)
    return step.to(status, Event("Warning", EventReason.FAILED, f"{cause}: {reason}", "failed"))


_UNDONE = Failure(Kind.UNDONE, "Undone", "it trained to an end that does not count", ended=True, exit_code=0)
_TOO_LATE = Failure(
    Kind.UNDONE, "Late", "it restored a save older than the end, after which nobody trains", ended=False
)


def is_awaited(status: Status) -> bool:
    """Whether a shard has not told what it lost: it may be more than was set aside, and more than a trainer told.

    The process before it may have gone on for a while, if nobody saw it end. One that dies untold has a successor.
    """
    return any(shard.lost_at is not None or shard.lost_row_updates is None for shard in status.shards)


def with_result(status: Status, result: Anchor) -> Status:
    """The status with the final anchor, which holds a save of every member: a shard that finds none tells."""
    shards = tuple(s if s.state == "BelowFloor" else s.evolve(saved_samples=result.samples) for s in status.shards)
    dense = status.dense.evolve(saved_samples=result.samples)
    return status.evolve(result=result, shards=shards, dense=dense)


def with_late_shards_lost(world: PassInput, status: Status, facts: Mapping[str, Fact]) -> Mapping[str, Fact]:
    """The facts of a job with a final anchor: lost trainers are done, and shards that it left behind are lost.

    What a trainer held is in the anchor. So is what a shard lost that was cut off and trained to the end, while its
    heir restored an older save: only another heir will find it.
    """
    found = {n: Done("") if n.startswith("trainer/") and isinstance(f, Lost) else f for n, f in facts.items()}
    for shard in status.shards:
        name = shard.name
        match found[name]:
            case Alive(pod=pod) if _restored_too_late(world, status, shard):
                found[name] = Lost(pod, _TOO_LATE)
            case _:
                pass
    return found


def _restored_too_late(world: PassInput, status: Status, shard: Shard) -> bool:
    """Whether an heir waits for pushes that nobody will send. One that stands at the end has told by now."""
    report = report_of(world, shard)
    restored = isinstance(report, ShardReport) and report.state is ShardState.READY and is_current(status, report)
    return restored and shard.lost_at is not None


def without_result(status: Status, facts: Mapping[str, Fact], *, refused: bool) -> Mapping[str, Fact]:
    """With trainers that ended well as lost, where the job did not end with them.

    While the leader lives the others may end before it does; once it has ended without a result that counts, they all
    have to come back.
    """
    leader = f"trainer/{status.leader or 0}"
    end = facts.get(leader)
    if not isinstance(end, Done | Lost):
        return facts
    undone = _UNDONE
    if refused:
        undone = replace(undone, message="it trained to the end, and more was lost than the budget allows")
    found = {name: Lost(None, undone) if isinstance(fact, Done) else fact for name, fact in facts.items()}
    if isinstance(end, Done) and not end.message:
        nothing = Failure(Kind.CRASHED, "NoResult", "the leader ended and left no result", ended=True, exit_code=0)
        found[leader] = Lost(None, nothing)
    return found


#: Cause of a failed job, and reason of `Suspended`.
EXCEEDED = "StartupDeadlineExceeded"
#: A resume that took too long is tried again after so long.
PAUSE_S = 300.0
#: Conditions that may say why pods do not work.
_TROUBLE = {("PodsReady", "False"), ("SnapshotsDegraded", "True")}
_SHOWN = 8


def overdue(world: PassInput, status: Status, facts: Mapping[str, Fact]) -> str:
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
        case NeverSeen(refusal=words) if words:
            return member.started_at is not None and member.started_at <= since
        case _:
            return False


def never_trained(world: PassInput, status: Status) -> bool:
    """Whether nothing would be lost with the job, for certain.

    Its first pods cannot train before all of them run. Once one was replaced, only the leader can tell.
    """
    told = max(status.progress.samples, status.dense.saved_samples, *(s.saved_samples for s in status.shards))
    return told == 0 and (status.restarts == 0 or leader_report(world) is not None)


def give_up_start(world: PassInput, step: Step, late: str) -> tuple[Step, ConditionUpdate]:
    """The job gives its pods back and is suspended for a while; with the condition that says why."""
    message = (
        f"{late}; nothing is lost, and the job resumes by itself in {PAUSE_S:.0f} s; to resume at once, set "
        "spec.suspend to true and back to false; to give it longer, also raise "
        "spec.failurePolicy.startupDeadlineSeconds while it is suspended"
    )
    resume_at = world.now + PAUSE_S
    status = step.status.evolve(phase="Suspending", suspending_since=world.now, resume_at=resume_at)
    event = Event("Warning", EventReason.SUSPENDING, message, f"suspending-{world.now:.0f}")
    return step.to(status, event), ConditionUpdate("Suspended", "False", EXCEEDED, message)


def waits_to_resume(world: PassInput) -> bool:
    """Whether a suspended job waits until it is resumed again."""
    resume_at = world.job.status.resume_at
    return resume_at is not None and world.now < resume_at


KEY_LOST = "the job's key was lost, and all members go on under a new one"


def needs_new_key(world: PassInput) -> bool:
    """Whether the key of a job that has started is gone, or a member found another one in its place."""
    status = world.job.status
    if status.runtime is None or status.runtime.key_digest == world.key_digest:
        return False
    return world.key_lost or _is_replaced(world)


def with_new_key(world: PassInput) -> PassInput:
    """The world in which pods are made with the next key."""
    status = world.job.status
    if status.runtime is None:
        return world
    status = status.evolve(runtime=status.runtime.evolve(key_digest=world.key_digest))
    return replace(world, job=replace(world.job, status=status))


def _is_replaced(world: PassInput) -> bool:
    status = world.job.status
    own = {member.pod for member in status.members}
    ends = (classify(pod) for pod in world.pods if pod.name in own)
    return any(isinstance(end, Failure) and end.problem and end.problem.reason == KEY_CHANGED for end in ends)
