"""A job's life: which phase follows which, how it starts, and how it ends.

Pending -> Starting -> Running <-> Recovering | RollingBack -> Finishing -> Succeeded
Pending may go to Suspended, any later phase to Suspending -> Suspended -> Starting; all but those two to Failed
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace

from cpr_contract.codec import to_json
from cpr_contract.reports import ShardReport, ShardState
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.spec import CPRJobSpec
from cpr_operator.api.status import Anchor, Counters, Fork, Member, Phase, Runtime, Shard, Status, Trainer
from cpr_operator.cluster.protocol import Event
from cpr_operator.desired.versions import next_version, not_spoken, version_of
from cpr_operator.failures import Failure, Kind
from cpr_operator.reconcile.apply_reports import result_of, with_shown, with_termination_message, with_total
from cpr_operator.reconcile.conditions import ConditionUpdate, set_conditions
from cpr_operator.reconcile.effects import live_pods, outcome
from cpr_operator.reconcile.members import account_of, is_overspent, owed, replacement, with_account
from cpr_operator.reconcile.observe import AT_WORK, is_current, is_settled, leader_report, report_of
from cpr_operator.reconcile.pass_ import (
    Alive,
    Done,
    Draft,
    EventReason,
    Fact,
    Hold,
    Lost,
    NeverSeen,
    Outcome,
    PassInput,
    PodDelete,
)
from cpr_operator.reconcile.plan import planned

#: How long trainers may take to end by themselves once the job has succeeded.
LINGER_S = 30.0

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

#: Failures of members that ended well, or work, where that is of no use to the job.
_UNDONE = Failure(Kind.UNDONE, "Undone", "its training ended, but the result does not count", ended=True, exit_code=0)
_TOO_LATE = Failure(
    Kind.UNDONE, "Late", "it restored a save older than the end of training, so nothing will update it", ended=False
)
#: Cause of a failed job, and reason of `Suspended`.
EXCEEDED = "StartupDeadlineExceeded"
#: A resume that took too long is tried again after so long.
PAUSE_S = 300.0
#: Conditions that may say why pods do not work.
_TROUBLE = {("PodsReady", "False"), ("SnapshotsDegraded", "True")}
_SHOWN = 8


def settle_phase(draft: Draft) -> Draft:
    """The phase that follows from what was decided. A start that takes too long is given up."""
    phase = phase_of(draft)
    late = overdue(draft) if phase == "Starting" else ""
    if late and never_trained(draft):
        remedy = "fix the cause, or raise spec.failurePolicy.startupDeadlineSeconds, and create the job again"
        return fail(draft, EXCEEDED, f"{late}; {remedy}")
    return give_up_start(draft, late) if late else draft.to(draft.status.evolve(phase=phase))


def phase_of(draft: Draft) -> Phase:
    """The phase of a job that has pods and goes on."""
    status = draft.status
    starting = draft.before.phase in {"Pending", "Suspended", "Starting"}
    if starting and not all(is_settled(m) for m in status.members):
        return "Starting"
    if status.recovery is not None:
        return "RollingBack" if status.recovery.kind == "RollBack" else "Recovering"
    leader = status.trainers[status.leader or 0]
    return "Finishing" if leader.state in {"Finishing", "Finished"} else "Running"


def start(observed: PassInput) -> Draft:
    """The first pods of a new job are wanted: from here on its image, contract and templates are frozen."""
    spec, status = observed.job.spec, observed.before
    shards = (Shard(index=i, lost_row_updates=0) for i in range(spec.shards.replicas))
    status = status.evolve(
        start_time=observed.now,
        runtime=runtime(observed),
        counters=Counters(generation=1, group=1, roster=0),
        forks=(Fork(generation=1),),
        leader=0,
        shards=tuple(replacement(observed, shard) for shard in shards),
        trainers=tuple(replacement(observed, Trainer(index=i)) for i in range(spec.trainers.replicas)),
    )
    status = with_total(spec, status, spec.data.samples or 0)
    status = planned(spec, with_account(status, account_of(status)), renew=True)
    message = f"{len(status.trainers)} trainers and {len(status.shards)} shards"
    return starting(Draft(observed, status, events=(Event("Normal", EventReason.STARTED, message, "started"),)))


def starting(draft: Draft) -> Draft:
    """The conditions of a job whose pods are being created: it starts or resumes."""
    return set_conditions(
        draft.to(draft.status.evolve(phase="Starting")),
        ConditionUpdate("Suspended", "False", "Active"),
        ConditionUpdate("CRDOutdated", "False", "SchemaMatches"),
        ConditionUpdate("PodsReady", "False", "Starting", "the first pods are being created"),
    )


def runtime(observed: PassInput) -> Runtime:
    """What all pods are made from until the job is suspended and resumed."""
    spec, job = observed.job.spec, observed.job.id
    before, version = observed.before.runtime, next_version(observed.before, spec.image)
    return Runtime(
        image=spec.image,
        contract_version=version,
        template_hash=template_hash(spec),
        key_digest=before.key_digest if before and not observed.key_lost else observed.key_digest,
        job_spec=to_json(to_job_spec(spec, job.uid, job.name, version)),
    )


def template_hash(spec: CPRJobSpec) -> str:
    """What tells the pod templates from others."""
    templates = json.dumps([spec.trainers.template, spec.shards.template], sort_keys=True)
    return hashlib.sha256(templates.encode()).hexdigest()[:16]


def succeed(draft: Draft, result: Anchor) -> Draft:
    """The final anchor is committed. Any reservation that is still open is charged in full."""
    status = draft.status
    account = account_of(status).reserve(owed(status, result.samples))
    status = with_account(status, account.charge_reserved())
    progress = status.progress.evolve(step=result.step, samples=result.samples, percent=100, eta_seconds=0.0)
    status = status.evolve(
        phase="Succeeded",
        completion_time=draft.now,
        result=result,
        progress=progress,
        shards=tuple(s if s.lost_at is None else s.evolve(lost_row_updates=None, allowance=0) for s in status.shards),
        recovery=None,
    )
    said = Event("Normal", EventReason.SUCCEEDED, f"the model is {result.key}", "succeeded")
    return _end(draft.to(status, said), ConditionUpdate("Complete", "True", "Trained", result.key))


def fail(draft: Draft, cause: str, reason: str) -> Draft:
    """The job ends without a model; its saves stay in the store."""
    status = draft.status.evolve(phase="Failed", completion_time=draft.now, recovery=None)
    said = Event("Warning", EventReason.FAILED, f"{cause}: {reason}", "failed")
    return _end(draft.to(status, said), ConditionUpdate("Failed", "True", cause, reason))


def _end(draft: Draft, why: ConditionUpdate) -> Draft:
    """The last conditions of a job. Its pods are deleted."""
    phase = draft.status.phase
    ready, recovering = ConditionUpdate("PodsReady", "False", phase), ConditionUpdate("Recovering", "False", phase)
    draft = set_conditions(draft, why, ready, recovering)
    if phase == "Succeeded":  # its last anchor is in the store
        draft = set_conditions(draft, ConditionUpdate("SnapshotsDegraded", "False", "Healthy"))
    return replace(draft, deletes=_superfluous(draft.observed, draft.status))


def clean_up(observed: PassInput) -> Outcome:
    """Terminal stays terminal: what still runs is removed, and in time the job itself."""
    status, ttl = observed.before, observed.job.spec.ttl_seconds_after_finished
    ended = status.completion_time or observed.now
    left = None if ttl is None else max(ended + ttl - observed.now, 0.0)
    lingering = bool(live_pods(observed.pods))
    return Outcome(
        with_shown(status),
        deletes=_superfluous(observed, status),
        delete_job=left == 0.0,
        wake_after_s=observed.timing.running_s if lingering else left,
    )


def _superfluous(observed: PassInput, ended: Status) -> tuple[PodDelete, ...]:
    """Pods that may still run; after success, trainers get time to end by themselves."""
    lingers = ended.phase == "Succeeded" and observed.now < (ended.completion_time or 0.0) + LINGER_S
    return tuple(
        PodDelete(pod.name, pod.uid, f"the job has {ended.phase.lower()}")
        for pod in live_pods(observed.pods)
        if pod.deleting_until is None and not (lingers and pod.role == "trainer")
    )


def complete(draft: Draft) -> Draft:
    """If the leader has trained everything, the job succeeds, or the facts say who has to come back.

    The end does not count if more was lost than the budget allows. Then the recovery that follows
    rolls the job back.
    """
    result, refused = result_of(draft.status, draft.facts), False
    if result is not None and is_awaited(draft.status):
        return with_late_shards_lost(draft.to(with_result(draft.status, result)))
    if result is not None:
        done = succeed(draft.to(with_termination_message(draft.status, draft.facts)), result)
        if not is_overspent(done.status):
            return done
        draft, refused = draft.to(draft.status.evolve(ledger=done.status.ledger)), True
    return replace(draft, facts=without_result(draft.status, draft.facts, refused=refused))


def is_awaited(status: Status) -> bool:
    """Whether a shard has not told what it lost: it may be more than was set aside, and more than a trainer told.

    The process before it may have gone on for a while, if nobody saw it end. A shard that dies
    before it has told is replaced.
    """
    return any(shard.lost_at is not None or shard.lost_row_updates is None for shard in status.shards)


def with_result(status: Status, result: Anchor) -> Status:
    """The status with the final anchor, which holds a save of every member: a shard that finds none tells."""
    shards = tuple(s if s.state == "BelowFloor" else s.evolve(saved_samples=result.samples) for s in status.shards)
    dense = status.dense.evolve(saved_samples=result.samples)
    return status.evolve(result=result, shards=shards, dense=dense)


def with_late_shards_lost(draft: Draft) -> Draft:
    """A job with a final anchor: lost trainers are done, and shards that it left behind are lost.

    What a trainer held is in the anchor. So is what a shard lost that was cut off and trained to the end, while its
    replacement restored an older save: only another replacement will find it.
    """
    facts = draft.facts.items()
    found = {n: Done("") if n.startswith("trainer/") and isinstance(f, Lost) else f for n, f in facts}
    for shard in draft.status.shards:
        name = shard.name
        match found[name]:
            case Alive(pod=pod) if _restored_too_late(draft, shard):
                found[name] = Lost(pod, _TOO_LATE)
            case _:
                pass
    return replace(draft, facts=found)


def _restored_too_late(draft: Draft, shard: Shard) -> bool:
    """Whether a replacement waits for pushes that no trainer will send. Others have told by now."""
    report = report_of(draft.observed, shard)
    if not isinstance(report, ShardReport) or report.state is not ShardState.READY:
        return False
    return is_current(draft.status, report) and shard.lost_at is not None


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
        undone = replace(undone, message="it trained to the end, but the losses exceed the budget")
    found = {name: Lost(None, undone) if isinstance(fact, Done) else fact for name, fact in facts.items()}
    if isinstance(end, Done) and not end.message:
        nothing = Failure(Kind.CRASHED, "NoResult", "the leader ended without a result", ended=True, exit_code=0)
        found[leader] = Lost(None, nothing)
    return found


def overdue(draft: Draft) -> str:
    """Which members of a starting job are late, in words; empty if none is.

    Only time counts in which this operator was there, because it tells pods of each other.
    """
    deadline_s = draft.spec.failure_policy.startup_deadline_seconds
    leader = leader_report(draft.observed)
    if draft.observed.watched_s < deadline_s or (leader is not None and leader.state in AT_WORK):
        return ""
    since, leader_answers = draft.now - deadline_s, leader is not None
    members = {m.name: m for m in draft.status.members if not is_settled(m)}
    late = [n for n, m in members.items() if _is_late(m, draft.facts[n], since, leader_answers=leader_answers)]
    if not late:
        return ""
    shown = ", ".join(late[:_SHOWN]) + (", ..." if len(late) > _SHOWN else "")
    said = [c.message for c in draft.status.conditions if (c.type, c.status) in _TROUBLE]
    return "; ".join((f"not all pods were ready within {deadline_s} s: {shown}", *said))


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


def never_trained(draft: Draft) -> bool:
    """Whether nothing would be lost with the job, for certain.

    Its first pods cannot train before all of them run. Once one was replaced, only the leader can tell.
    """
    status = draft.status
    told = max(status.progress.samples, status.dense.saved_samples, *(s.saved_samples for s in status.shards))
    return told == 0 and (status.restarts == 0 or leader_report(draft.observed) is not None)


def give_up_start(draft: Draft, late: str) -> Draft:
    """The job gives its pods back and is suspended for a while."""
    message = (
        f"{late}; nothing is lost, and the job resumes automatically in {PAUSE_S:.0f} s; to resume now, set "
        "spec.suspend to true and back to false; to allow more time, also raise "
        "spec.failurePolicy.startupDeadlineSeconds while it is suspended"
    )
    now = draft.now
    status = draft.status.evolve(phase="Suspending", suspending_since=now, resume_at=now + PAUSE_S)
    event = Event("Warning", EventReason.SUSPENDING, message, f"suspending-{now:.0f}")
    return set_conditions(draft.to(status, event), ConditionUpdate("Suspended", "False", EXCEEDED, message))


def refuse_pods(observed: PassInput, reason: str, words: str) -> Outcome:
    """A job without pods gets none, because its pods would not be taken."""
    said = Event("Warning", EventReason.REFUSED, words, f"{reason}-{observed.job.generation}")
    draft = Draft(observed, observed.before, events=(said,))
    draft = set_conditions(draft, ConditionUpdate("PodsReady", "False", reason, words))
    return replace(outcome(draft), wake_after_s=observed.timing.running_s)


def hold_back(observed: PassInput, hold: Hold) -> Outcome:
    """No new job may start."""
    why = ConditionUpdate("CRDOutdated", hold.status, hold.reason, hold.message)
    return outcome(set_conditions(Draft(observed, observed.before), why))


def leave_alone(observed: PassInput) -> Outcome:
    """Pods of a release that this one cannot talk to train on by themselves."""
    words = not_spoken(version_of(observed.before))
    draft = set_conditions(
        Draft(observed, observed.before), ConditionUpdate("PodsReady", "Unknown", "ContractNotSpoken", words)
    )
    status = draft.status.evolve(observed_generation=observed.job.generation)
    return Outcome(status, guarded=status.phase != "Suspending", wake_after_s=observed.timing.running_s)
