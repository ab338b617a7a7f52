"""The lifecycle of a job: its phases, its start, the settings fixed at the start, and deadlines.

Pending -> Starting -> Running <-> Recovering | RollingBack -> Finishing -> Succeeded
Pending may go to Suspended, any later phase to Suspending -> Suspended -> Starting; all but those two to Failed
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cpr_contract.codec import pack, to_json
from cpr_operator.api.cprjob_spec import CPRJobSpec
from cpr_operator.api.frozen_settings import is_encrypted, replay_policy, sparse_updates, worker_count
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.status import Counters, Fork, Member, Phase, Runtime, Shard, Trainer
from cpr_operator.cluster.protocol import Event
from cpr_operator.desired.rosters import next_version, unsupported_version, version_of
from cpr_operator.reconcile.apply_reports import with_total
from cpr_operator.reconcile.completion import fail
from cpr_operator.reconcile.conditions import ConditionUpdate, listed, not_started, set_conditions
from cpr_operator.reconcile.effects import outcome
from cpr_operator.reconcile.issuance import next_authority, retained_key
from cpr_operator.reconcile.kueue import quota_of
from cpr_operator.reconcile.members import replacement
from cpr_operator.reconcile.observe import AT_WORK, is_settled
from cpr_operator.reconcile.restore_source import RestoreSource
from cpr_operator.reconcile.save_plan import planned
from cpr_operator.reconcile.types import (
    Active,
    AdmissionGate,
    EventReason,
    Fact,
    NeverSeen,
    Outcome,
    ReconcileInput,
    ReconcileState,
)
from cpr_operator.recovery.account import account_of, with_account

_WITH_PODS: frozenset[Phase] = frozenset({"Starting", "Running", "Recovering", "RollingBack", "Finishing"})

#: The phases that may follow each phase within one reconciliation. A phase may also stay. The last two are final.
TRANSITIONS: Mapping[Phase, frozenset[Phase]] = {
    "Pending": frozenset({"Starting", "Suspended", "Failed"}),
    **{phase: (_WITH_PODS - {"Starting", phase}) | {"Suspending", "Succeeded", "Failed"} for phase in _WITH_PODS},
    "Suspending": frozenset({"Suspended", "Succeeded"}),
    "Suspended": frozenset({"Starting"}),
    "Succeeded": frozenset(),
    "Failed": frozenset(),
}

#: Cause of a failed job, and reason of `Suspended`, after the deadline of a start and of a recovery.
EXCEEDED, RECOVERY_EXCEEDED = "StartupDeadlineExceeded", "RecoveryDeadlineExceeded"
#: Seconds until a job is resumed that was suspended after a deadline.
PAUSE_S = 300.0

#: Conditions that may explain why pods are not ready.
_TROUBLE = {("PodsReady", "False"), ("SnapshotsDegraded", "True")}


def settle_phase(state: ReconcileState) -> ReconcileState:
    """Set the phase that follows from the decisions. Fail or suspend the job after a deadline."""
    phase = phase_of(state)
    if phase == "Starting" and (late := _overdue(state)):
        status = state.status
        trained = max(status.progress.samples, status.dense.saved_samples, *(s.saved_samples for s in status.shards))
        # Its first pods cannot train before all of them run. After a replacement only the leader's report shows it.
        if trained == 0 and (status.restarts == 0 or state.leader_report is not None):
            remedy = "fix the cause, or raise spec.failurePolicy.startupDeadlineSeconds, and create the job again"
            return fail(state, EXCEEDED, f"{late}; {remedy}")
        remedy = "also raise spec.failurePolicy.startupDeadlineSeconds while it is suspended"
        return _suspend_for_a_while(state, EXCEEDED, late, remedy)
    if phase in {"Recovering", "RollingBack"} and (late := _not_replaced(state)):
        if state.spec.recovery.on_deadline == "Fail":
            remedy = "fix the cause, and create the job again; its saves are kept (spec.restoreFrom)"
            return fail(state, RECOVERY_EXCEEDED, f"{late}; {remedy}")
        return _suspend_for_a_while(state, RECOVERY_EXCEEDED, late, "raise or remove spec.recovery.deadlineSeconds")
    return state.to(state.status.evolve(phase=phase))


def phase_of(state: ReconcileState) -> Phase:
    """Return the phase of a job that has pods and has not ended."""
    status = state.status
    starts = state.before.phase in {"Pending", "Suspended", "Starting"}
    if starts and not all(is_settled(m) for m in status.members):
        return "Starting"
    if status.recovery is not None:
        return "RollingBack" if status.recovery.kind == "RollBack" else "Recovering"
    leader = status.trainers[status.leader or 0]
    return "Finishing" if leader.state in {"Finishing", "Finished"} else "Running"


def start(observed: ReconcileInput, source: RestoreSource) -> ReconcileState:
    """Start a new job with its first pods. Its image, contract, templates and `source` are fixed from now on."""
    spec, status = observed.job.spec, observed.before
    shards = (Shard(index=i, lost_row_updates=0) for i in range(spec.shards.replicas))
    status = status.evolve(
        start_time=observed.now,
        runtime=runtime(observed, source.job.key if source.job else None),
        source_job=source.job,
        counters=Counters(generation=1, group=1, roster=0),
        forks=(Fork(generation=1),),
        leader=0,
        shards=tuple(replacement(observed, shard) for shard in shards),
        trainers=tuple(replacement(observed, Trainer(index=i)) for i in range(spec.trainers.replicas)),
    )
    status = with_total(spec, status, spec.data.samples or 0)
    status = planned(spec, with_account(status, account_of(status)), renew=True)
    message = f"{len(status.trainers)} trainers and {len(status.shards)} shards{source.event_suffix}"
    event = Event("Normal", EventReason.STARTED, message, "started")
    return starting(ReconcileState(observed, status, events=(event,)))


def starting(state: ReconcileState) -> ReconcileState:
    """Set the conditions of a job that starts or resumes."""
    return set_conditions(
        state.to(state.status.evolve(phase="Starting")),
        ConditionUpdate("Suspended", "False", "Active"),
        ConditionUpdate("CRDOutdated", "False", "SchemaMatches"),
        ConditionUpdate("PodsReady", "False", "Starting", "the first pods are being created"),
    )


def runtime(observed: ReconcileInput, source: str | None) -> Runtime:
    """Return the settings of all pods until the next suspension. `source`: the anchor that the job begins with."""
    spec, job = observed.job.spec, observed.job.id
    before, version = observed.before.runtime, next_version(observed.before, spec.image)
    replay = replay_policy(spec, None if before is None else before.replay)
    is_gang = observed.pod_groups and spec.scheduling.gang == "Auto"
    workers, updates = worker_count(spec, before), sparse_updates(spec, before)
    described = to_job_spec(
        spec, job.uid, job.name, version, found=source, replay=replay, workers=workers, updates=updates.mode
    )
    encrypted, retained = is_encrypted(spec, observed.encryption), retained_key(observed)
    ca, issued = (retained.ca, retained.issued) if retained else next_authority(observed)
    return Runtime(
        image=spec.image,
        contract_version=version,
        template_hash=template_hash(spec),
        key_digest=retained.key_digest if retained else observed.key_digest,
        ca=ca,
        issued=issued,
        identity_digest=((retained and retained.identity_digest) or observed.identity_digest) if encrypted else "",
        job_spec=pack(to_json(described)),
        replay=replay,
        quota=quota_of(observed.queue),
        restart_rules=observed.restart_rules,
        # No two starts have the same group: a group that was placed once never waits for all its pods again.
        pod_group=f"{job.stem}-{observed.before.counters.group + 1}" if is_gang else "",
        workers=workers,
        sparse_updates=updates,
    )


def template_hash(spec: CPRJobSpec) -> str:
    """Return a hash of the pod templates."""
    templates = json.dumps([spec.trainers.template, spec.shards.template], sort_keys=True)
    return hashlib.sha256(templates.encode()).hexdigest()[:16]


def refuse_pods(observed: ReconcileInput, reason: str, message: str, *, warn: bool = True) -> Outcome:
    """Create no pods for a job: the cluster would reject them, or they have to wait. `warn`: with an event."""
    event = Event("Warning", EventReason.REFUSED, message, f"{reason}-{observed.job.spec_generation}")
    state = ReconcileState(observed, observed.before, events=(event,) if warn else ())
    state = set_conditions(state, ConditionUpdate("PodsReady", "False", reason, message))
    return replace(outcome(state), wake_after_s=observed.timing.running_s)


def stop_at_gate(observed: ReconcileInput, gate: AdmissionGate) -> Outcome:
    """Create no pods for a new job while the gate is closed."""
    why = ConditionUpdate("CRDOutdated", gate.status, gate.reason, gate.message)
    return outcome(set_conditions(ReconcileState(observed, observed.before), why))


def leave_alone(observed: ReconcileInput) -> Outcome:
    """Change no pods of a release with another contract: they train on without the operator."""
    message = unsupported_version(version_of(observed.before))
    unknown = ConditionUpdate("PodsReady", "Unknown", "ContractNotSpoken", message)
    state = set_conditions(ReconcileState(observed, observed.before), unknown)
    status = state.status.evolve(observed_generation=observed.job.spec_generation)
    return Outcome(status, needs_prerequisites=status.phase != "Suspending", wake_after_s=observed.timing.running_s)


def _overdue(state: ReconcileState) -> str:
    """Return a message with the late members of a starting job; empty if there are none.

    Only time in which this operator was running counts, because its rosters connect the pods.
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
    # Members that run wait for those that do not.
    late = [name for name in late if not_started(state.facts[name])] or late
    return _with_causes(state, f"not all pods were ready within {deadline_s} s", late)


def _not_replaced(state: ReconcileState) -> str:
    """Return a message with the replacements that did not start within the recovery's deadline; empty without any.

    A replacement that runs is not among them: it restores, or waits for others. Nor does the deadline count while
    training continues without the lost members, or may do so: a leader that runs has to answer.
    """
    deadline_s, leader = state.spec.recovery.deadline_seconds, state.leader_report
    if deadline_s is None or state.observed.watched_s < deadline_s:
        return ""
    waiting = {m.name: m for m in state.status.members if not_started(state.facts[m.name])}
    unresponsive = leader is None and state.status.trainers[state.status.leader or 0].name not in waiting
    if unresponsive or (leader is not None and leader.state in AT_WORK and not leader.waiting_for):
        return ""
    since = state.now - deadline_s
    late = [n for n, m in waiting.items() if _is_late(m, state.facts[n], since, leader_answers=False)]
    return _with_causes(state, f"replacements did not start within {deadline_s} s", late) if late else ""


def _is_late(member: Member, fact: Fact, since: float, *, leader_answers: bool) -> bool:
    """Return whether a member's pod was requested or created before `since`, and is not ready yet.

    The kubelet has the phase of a pod. If it runs and is not Ready, the leader has to confirm that it does not train:
    while the leader does not answer, training may be fine.
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


def _with_causes(state: ReconcileState, message: str, late: Sequence[str]) -> str:
    causes = [c.message for c in state.status.conditions if (c.type, c.status) in _TROUBLE]
    return "; ".join((f"{message}: {listed(late)}", *causes))


def _suspend_for_a_while(state: ReconcileState, reason: str, late: str, more_time: str) -> ReconcileState:
    """Save, delete the job's pods, and resume it after a pause."""
    message = (
        f"{late}; all pods are saved and deleted, and the job resumes automatically in {PAUSE_S:.0f} s; to resume now, "
        f"set spec.suspend to true and back to false; to allow more time, {more_time}"
    )
    now = state.now
    status = state.status.evolve(phase="Suspending", suspending_since=now, resume_at=now + PAUSE_S)
    event = Event("Warning", EventReason.SUSPENDING, message, f"suspending-{now:.0f}")
    return set_conditions(state.to(status, event), ConditionUpdate("Suspended", "False", reason, message))
