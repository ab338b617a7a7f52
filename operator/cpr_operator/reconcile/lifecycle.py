"""The lifecycle of a job: its phases, its start, and its end.

Pending -> Starting -> Running <-> Recovering | RollingBack -> Finishing -> Succeeded
Pending may go to Suspended, any later phase to Suspending -> Suspended -> Starting; all but those two to Failed
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cpr_contract.reports import ShardReport, ShardState
from cpr_operator.api.status import (
    Anchor,
    Counters,
    Fork,
    Phase,
    Shard,
    Status,
    Trainer,
)
from cpr_operator.cluster.protocol import Event
from cpr_operator.desired.description import not_spoken, version_of
from cpr_operator.failures import RESULT_UNREADABLE, Failure, Kind
from cpr_operator.reconcile.apply_reports import with_shown, with_total
from cpr_operator.reconcile.conditions import ConditionUpdate, set_conditions
from cpr_operator.reconcile.deadlines import (
    EXCEEDED,
    RECOVERY_EXCEEDED,
    give_back,
    never_trained,
    not_replaced,
    overdue,
)
from cpr_operator.reconcile.effects import live_pods, outcome
from cpr_operator.reconcile.frozen import runtime
from cpr_operator.reconcile.members import replacement
from cpr_operator.reconcile.observe import is_current, is_settled
from cpr_operator.reconcile.plan import planned
from cpr_operator.reconcile.restore_source import AWAITED, RestoreSource
from cpr_operator.reconcile.results import final_anchor, result_of, with_termination_message
from cpr_operator.reconcile.types import (
    Active,
    AdmissionGate,
    Done,
    EventReason,
    Fact,
    Lost,
    Outcome,
    PodDelete,
    ReconcileInput,
    ReconcileState,
)
from cpr_operator.recovery.account import account_of, is_overspent, with_account

#: Seconds in which trainers may exit by themselves after the job has succeeded.
LINGER_S = 30.0

_WITH_PODS: frozenset[Phase] = frozenset({"Starting", "Running", "Recovering", "RollingBack", "Finishing"})

#: The phases that may follow each phase within one pass. A phase may also stay. The last two are final.
TRANSITIONS: Mapping[Phase, frozenset[Phase]] = {
    "Pending": frozenset({"Starting", "Suspended", "Failed"}),
    **{phase: (_WITH_PODS - {"Starting", phase}) | {"Suspending", "Succeeded", "Failed"} for phase in _WITH_PODS},
    "Suspending": frozenset({"Suspended", "Succeeded"}),
    "Suspended": frozenset({"Starting"}),
    "Succeeded": frozenset(),
    "Failed": frozenset(),
}

#: Failures of members that have exited normally, or are healthy, but of no use to the job.
_UNDONE = Failure(Kind.UNDONE, "Undone", "its training ended, but the result does not count", ended=True, exit_code=0)
_UNREADABLE = replace(
    _UNDONE,
    reason=RESULT_UNREADABLE,
    message="its training ended, but its termination message is not a result, or was cut by the kubelet",
)
_TOO_LATE = Failure(
    Kind.UNDONE, "Late", "it restored a save older than the end of training, so nothing will update it", ended=False
)


def settle_phase(state: ReconcileState) -> ReconcileState:
    """Set the phase that follows from the decisions. Give up a start that takes too long."""
    phase = phase_of(state)
    if phase == "Starting" and (late := overdue(state)):
        if never_trained(state):
            remedy = "fix the cause, or raise spec.failurePolicy.startupDeadlineSeconds, and create the job again"
            return fail(state, EXCEEDED, f"{late}; {remedy}")
        remedy = "also raise spec.failurePolicy.startupDeadlineSeconds while it is suspended"
        return give_back(state, EXCEEDED, late, remedy)
    if phase in {"Recovering", "RollingBack"} and (late := not_replaced(state)):
        if state.spec.recovery.on_deadline == "Fail":
            remedy = "fix the cause, and create the job again; its saves are kept (spec.restoreFrom)"
            return fail(state, RECOVERY_EXCEEDED, f"{late}; {remedy}")
        return give_back(state, RECOVERY_EXCEEDED, late, "raise or remove spec.recovery.deadlineSeconds")
    return state.to(state.status.evolve(phase=phase))


def phase_of(state: ReconcileState) -> Phase:
    """The phase of a job that has pods and has not ended."""
    status = state.status
    starting = state.before.phase in {"Pending", "Suspended", "Starting"}
    if starting and not all(is_settled(m) for m in status.members):
        return "Starting"
    if status.recovery is not None:
        return "RollingBack" if status.recovery.kind == "RollBack" else "Recovering"
    leader = status.trainers[status.leader or 0]
    return "Finishing" if leader.state in {"Finishing", "Finished"} else "Running"


def start(observed: ReconcileInput, source: RestoreSource) -> ReconcileState:
    """Start a new job with its first pods. From here on, its image, contract, templates and `origin` are frozen."""
    spec, status = observed.job.spec, observed.before
    shards = (Shard(index=i, lost_row_updates=0) for i in range(spec.shards.replicas))
    status = status.evolve(
        start_time=observed.now,
        runtime=runtime(observed, source.key),
        ancestor=source.ancestor,
        counters=Counters(generation=1, group=1, roster=0),
        forks=(Fork(generation=1),),
        leader=0,
        shards=tuple(replacement(observed, shard) for shard in shards),
        trainers=tuple(replacement(observed, Trainer(index=i)) for i in range(spec.trainers.replicas)),
    )
    status = with_total(spec, status, spec.data.samples or 0)
    status = planned(spec, with_account(status, account_of(status)), renew=True)
    message = f"{len(status.trainers)} trainers and {len(status.shards)} shards{source.event_suffix}"
    return starting(
        ReconcileState(observed, status, events=(Event("Normal", EventReason.STARTED, message, "started"),))
    )


def starting(state: ReconcileState) -> ReconcileState:
    """Set the conditions of a job that starts or resumes."""
    return set_conditions(
        state.to(state.status.evolve(phase="Starting")),
        ConditionUpdate("Suspended", "False", "Active"),
        ConditionUpdate("CRDOutdated", "False", "SchemaMatches"),
        ConditionUpdate("PodsReady", "False", "Starting", "the first pods are being created"),
    )


def succeed(state: ReconcileState, result: Anchor) -> ReconcileState:
    """End the job with its final anchor, or with the best one. What members have not reported is charged in full."""
    status = state.status
    status = with_account(status, account_of(status).charge_pending(result.samples))
    early = result.samples < status.ledger.total_samples
    percent = 100 * result.samples // status.ledger.total_samples if early else 100
    progress = status.progress.evolve(step=result.step, samples=result.samples, percent=percent, eta_seconds=0.0)
    model = result if status.best is None else status.best.anchor
    status = status.evolve(
        phase="Succeeded",
        completion_time=state.now,
        result=model,
        progress=progress,
        shards=tuple(_with_last_count(state, shard, result) for shard in status.shards),
        recovery=None,
        spares=(),
    )
    event = Event("Normal", EventReason.SUCCEEDED, f"the model is {model.key}", "succeeded")
    return _end(state.to(status, event), ConditionUpdate("Complete", "True", *_why_complete(status, early=early)))


def _with_last_count(state: ReconcileState, shard: Shard, result: Anchor) -> Shard:
    """Return the shard with its final count of lost row updates, which is unknown if it never reported one.

    Trainers that went back may have pushed some of them again since its last report. The count is therefore an upper
    bound, unless the shard reports in this pass that it has applied the last step.
    """
    if shard.lost_at is not None:
        return shard.evolve(lost_row_updates=None, allowance=0)
    report = state.report_of(shard)
    if not shard.lost_row_updates or (
        isinstance(report, ShardReport) and min(report.applied, default=0) >= result.step
    ):
        return shard
    return shard.evolve(lost_row_updates_exact=False)


def _why_complete(status: Status, *, early: bool) -> tuple[str, str]:
    """Reason and message: where the model is, and why not at the last sample."""
    key, best = status.result.key if status.result else "", status.best
    if not early:
        return "Trained", key
    if best is None:
        return "EarlyStopped", f"evaluations were no better; the model is {key}"
    return "EarlyStopped", f"the last {best.since} evaluations were no better than {best.value:.6g}; the model is {key}"


def fail(state: ReconcileState, cause: str, reason: str) -> ReconcileState:
    """End the job without a model. Its saves stay in the store."""
    status = state.status.evolve(phase="Failed", completion_time=state.now, recovery=None, spares=())
    event = Event("Warning", EventReason.FAILED, f"{cause}: {reason}", "failed")
    return _end(state.to(status, event), ConditionUpdate("Failed", "True", cause, reason))


def _end(state: ReconcileState, why: ConditionUpdate) -> ReconcileState:
    """Set the last conditions of a job, and delete its pods."""
    phase = state.status.phase
    ready, recovering = ConditionUpdate("PodsReady", "False", phase), ConditionUpdate("Recovering", "False", phase)
    state = set_conditions(state, why, ready, recovering)
    if phase == "Succeeded":  # its last anchor is in the store
        state = set_conditions(state, ConditionUpdate("SnapshotsDegraded", "False", "Healthy"))
    return replace(state, deletes=_superfluous(state.observed, state.status))


def clean_up(observed: ReconcileInput) -> Outcome:
    """Delete the pods of an ended job that still run, and after its time to live the job itself."""
    status, ttl = observed.before, observed.job.spec.ttl_seconds_after_finished
    ended = status.completion_time or observed.now
    left = None if ttl is None else max(ended + ttl - observed.now, 0.0)
    lingering = live_pods(observed.pods)
    # A leader may wait to hear that its last report is recorded.
    waiting = any(pod.role == "trainer" for pod in lingering)
    again_s = observed.timing.changing_s if waiting else observed.timing.running_s
    return Outcome(
        with_shown(status, observed.job.id.name),
        deletes=_superfluous(observed, status),
        delete_job=left == 0.0,
        wake_after_s=again_s if lingering else left,
    )


def _superfluous(observed: ReconcileInput, ended: Status) -> tuple[PodDelete, ...]:
    """Pods to delete because they may still run. After success, trainers get time to exit by themselves."""
    lingers = ended.phase == "Succeeded" and observed.now < (ended.completion_time or 0.0) + LINGER_S
    return tuple(
        PodDelete(pod.name, pod.uid, f"the job has {ended.phase.lower()}")
        for pod in live_pods(observed.pods)
        if pod.deleting_until is None and not (lingers and pod.role == "trainer")
    )


def complete(state: ReconcileState) -> ReconcileState:
    """Let the job succeed if the leader has trained everything. Otherwise mark the members that must come back.

    The result does not count if the losses exceed the budget. Then the recovery that follows rolls the job back.
    """
    result, refused = result_of(state.status, state.facts), False
    if result is not None and is_awaited(state.status):
        return with_late_shards_lost(state.to(with_result(state.status, result)))
    if result is not None:
        done = succeed(state.to(with_termination_message(state.spec, state.status, state.facts)), result)
        if not is_overspent(done.status):
            return done
        state, refused = state.to(state.status.evolve(ledger=done.status.ledger)), True
    return replace(state, facts=without_result(state.status, state.facts, refused=refused))


def is_awaited(status: Status) -> bool:
    """Whether a shard has not reported its losses yet. They may exceed its reservation and the trainers' reports.

    If the end of its predecessor was not observed, that process may have continued for a while. A shard that dies
    before it has reported is replaced.
    """
    return any(shard.lost_at is not None or shard.lost_row_updates is None for shard in status.shards)


def with_result(status: Status, result: Anchor) -> Status:
    """Set the final anchor, which has a save of every member. A shard that does not find its save reports that."""
    shards = tuple(s if s.state == "BelowFloor" else s.evolve(saved_samples=result.samples) for s in status.shards)
    dense = status.dense.evolve(saved_samples=result.samples)
    return status.evolve(result=result, shards=shards, dense=dense)


def with_late_shards_lost(state: ReconcileState) -> ReconcileState:
    """With a final anchor, count lost trainers as done, and shards that restored an older save as lost.

    The anchor has the state of the trainers. It also has the rows of a shard that was cut off and trained to the end
    while its replacement restored an older save. Only another replacement will restore the anchor.
    """
    facts = state.facts.items()
    found = {n: Done("") if n.startswith("trainer/") and isinstance(f, Lost) else f for n, f in facts}
    for shard in state.status.shards:
        name = shard.name
        match found[name]:
            case Active(pod=pod) if _restored_too_late(state, shard):
                found[name] = Lost(pod, _TOO_LATE)
            case _:
                pass
    return replace(state, facts=found)


def _restored_too_late(state: ReconcileState, shard: Shard) -> bool:
    """Whether a replacement waits for pushes that no trainer will send. Other replacements have reported by now."""
    report = state.report_of(shard)
    if not isinstance(report, ShardReport) or report.state is not ShardState.READY:
        return False
    return is_current(state.status, report) and shard.lost_at is not None


def without_result(status: Status, facts: Mapping[str, Fact], *, refused: bool) -> Mapping[str, Fact]:
    """Count trainers that exited normally as lost if the job has not ended with them.

    While the leader lives, the others may exit before it. Once it has exited without a valid result, all trainers have
    to come back.
    """
    leader = f"trainer/{status.leader or 0}"
    end = facts.get(leader)
    if not isinstance(end, Done | Lost):
        return facts
    undone = _UNDONE
    if refused:
        undone = replace(undone, message="it trained to the end, but the losses exceed the budget")
    elif isinstance(end, Done) and final_anchor(end.message) is None:
        undone = _UNREADABLE
    found = {name: Lost(None, undone) if isinstance(fact, Done) else fact for name, fact in facts.items()}
    if isinstance(end, Done) and not end.message:
        nothing = Failure(Kind.CRASHED, "NoResult", "the leader ended without a result", ended=True, exit_code=0)
        found[leader] = Lost(None, nothing)
    return found


def refuse_pods(observed: ReconcileInput, reason: str, message: str) -> Outcome:
    """Create no pods for a job, because the cluster would reject them."""
    event = Event("Warning", EventReason.REFUSED, message, f"{reason}-{observed.job.spec_generation}")
    state = ReconcileState(observed, observed.before, events=(event,))
    state = set_conditions(state, ConditionUpdate("PodsReady", "False", reason, message))
    return replace(outcome(state), wake_after_s=observed.timing.running_s)


def await_anchor(observed: ReconcileInput, message: str) -> Outcome:
    """Create no pods for a job before there is what it starts from."""
    state = ReconcileState(observed, observed.before)
    state = set_conditions(state, ConditionUpdate("PodsReady", "False", AWAITED, message))
    return replace(outcome(state), wake_after_s=observed.timing.running_s)


def stop_at_gate(observed: ReconcileInput, admission_gate: AdmissionGate) -> Outcome:
    """No new job may start."""
    why = ConditionUpdate("CRDOutdated", admission_gate.status, admission_gate.reason, admission_gate.message)
    return outcome(set_conditions(ReconcileState(observed, observed.before), why))


def leave_alone(observed: ReconcileInput) -> Outcome:
    """Pods of a release that this one cannot talk to train on by themselves."""
    words = not_spoken(version_of(observed.before))
    state = set_conditions(
        ReconcileState(observed, observed.before), ConditionUpdate("PodsReady", "Unknown", "ContractNotSpoken", words)
    )
    status = state.status.evolve(observed_generation=observed.job.spec_generation)
    return Outcome(status, needs_prerequisites=status.phase != "Suspending", wake_after_s=observed.timing.running_s)
