"""The job's conditions, each with a reason and a remedy. A closed list, with the semantics of metav1."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from cpr_contract.processor import PRECISION_EMULATED
from cpr_contract.reports import IDS_SPELLED_TWICE, SPILL_UNAVAILABLE, TrainerReport
from cpr_operator.api import transitions
from cpr_operator.api.cprjob_spec import CPRJobSpec
from cpr_operator.api.status import Condition, ConditionType, Status
from cpr_operator.cluster.protocol import Event
from cpr_operator.failures import UNSCHEDULABLE, Trouble
from cpr_operator.policy.plan import duration
from cpr_operator.reconcile.observe import is_current, is_settled
from cpr_operator.reconcile.types import Active, EventReason, Fact, Lost, NeverSeen, ReconcileInput, ReconcileState
from cpr_operator.recovery.account import account_of

#: Problems of pods with the store or the saves in it, as the trainer image reports them.
STORE_PROBLEMS = frozenset(
    {
        "StoreUnreachable",
        "StoreBusy",
        "BucketMissing",
        "CredentialsRefused",
        "StoreFull",
        "StoreUnsuitable",
        "ObjectMissing",
        "ObjectExists",
        "ObjectChanged",
        "SaveOutrun",
        "DamagedSave",
        "AnchorDamaged",
    }
)
#: The fraction of the budget from which it is at risk.
AT_RISK = 0.75
#: The remedy for an object that the API server rejected.
REFUSAL_REMEDY = "free quota, or correct the pod template; the operator retries"
#: Reasons of PodsReady=False and CertificateIssued=False that need no action, or that have an event of their own.
EXPECTED = frozenset({"Starting", "Waiting", "CreateRefused", "NotRequested"})
#: A change of a condition to this status causes an event of this reason.
WARNINGS: tuple[tuple[ConditionType, str, EventReason], ...] = (
    ("PodsReady", "False", EventReason.POD_STUCK),
    ("SnapshotsDegraded", "True", EventReason.SNAPSHOTS_DEGRADED),
    ("DataOutdated", "True", EventReason.DATA_OUTDATED),
    ("IdsSpelledTwice", "True", EventReason.IDS_SPELLED_TWICE),
    ("PrecisionEmulated", "True", EventReason.PRECISION_EMULATED),
    ("SpillUnavailable", "True", EventReason.SPILL_UNAVAILABLE),
    ("ReplayMemoryShort", "True", EventReason.REPLAY_MEMORY_SHORT),
    ("TableTooSmall", "True", EventReason.TABLE_TOO_SMALL),
    ("PublishingDegraded", "True", EventReason.PUBLISHING_DEGRADED),
    ("BudgetExhausted", "True", EventReason.BUDGET_EXHAUSTED),
    ("CertificateIssued", "False", EventReason.CERTIFICATE_NOT_ISSUED),
)
_MESSAGE_CHARS = 4096


@dataclass(frozen=True, slots=True)
class ConditionUpdate:
    """The new state of a condition."""

    type: ConditionType
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""


def with_conditions(status: Status, spec_generation: int, now: float, *updates: ConditionUpdate) -> Status:
    """Return the status with these conditions; the time of transition changes only with a condition's status."""
    conditions = {condition.type: condition for condition in status.conditions}
    for update in updates:
        old = conditions.get(update.type)
        moved = old is None or old.status != update.status
        conditions[update.type] = Condition(
            type=update.type,
            status=update.status,
            reason=update.reason,
            message=update.message[:_MESSAGE_CHARS],
            last_transition_time=now if moved or old is None else old.last_transition_time,
            observed_generation=spec_generation,
        )
    return status.evolve(conditions=tuple(conditions.values()))


def amended(status: Mapping[str, Any], spec_generation: int, now: float, update: ConditionUpdate) -> dict[str, Any]:
    """Add a condition to a JSON status that cannot be parsed. Everything else stays unchanged."""
    raw = status.get("conditions")
    others = [c for c in raw if isinstance(c, dict)] if isinstance(raw, list) else []
    before = next((c for c in others if c.get("type") == update.type), None)
    try:
        known = (Condition.model_validate(before),) if before else ()
    except ValidationError:
        known = ()
    (condition,) = with_conditions(Status(conditions=known), spec_generation, now, update).conditions
    return {**status, "conditions": [*(c for c in others if c is not before), condition.to_dict()]}


def set_conditions(state: ReconcileState, *updates: ConditionUpdate) -> ReconcileState:
    """Return the state with these conditions."""
    return state.to(with_conditions(state.status, state.observed.job.spec_generation, state.now, *updates))


def update_conditions(state: ReconcileState) -> ReconcileState:
    """Update all conditions of a job that has pods, as far as the inputs determine them."""
    return set_conditions(
        state,
        suspended(state),
        pods_ready(state),
        recovering(state.status, state.facts),
        *reports_available(state),
        *budget(state.status),
        *snapshots(state),
        *data(state.observed),
        *caught_up(state),
        *precision(state.status),
        *spill(state.status),
        *replay_memory(state.status, state.leader_report),
        *tables(state.spec, state.status),
    )


def record_events(state: ReconcileState) -> ReconcileState:
    """Add events for changes: all pods are ready, a condition became bad, a pod was rejected."""
    before, status = state.before, state.status
    events = []
    if status.phase == "Running" and before.phase == "Starting":
        events.append(Event("Normal", EventReason.RUNNING, "all pods are ready", f"running-{status.counters.group}"))
    events += condition_events(before, status)
    if status.data is not None and status.data.late_files > (before.data.late_files if before.data else 0):
        many, names = status.data.late_files, listed(status.data.last_late_files)
        message = (
            f"{many} files in all came after files with later names; they are trained after those; the last: {names}"
        )
        events.append(Event("Warning", EventReason.LATE_FILES, message, f"late-{many}"))
    for pod, refusal in state.observed.refusals.items():
        events.append(Event("Warning", EventReason.REFUSED, f"{refusal}; {REFUSAL_REMEDY}", f"refused-{pod}"))
    return state.to(status, *events)


def condition_events(before: Status, status: Status) -> Iterator[Event]:
    """Yield an event for each condition of `WARNINGS` that has become bad, or is bad for another reason."""
    for kind, wrong, reason in WARNINGS:
        old, new = (next((c for c in s.conditions if c.type == kind), None) for s in (before, status))
        if new is None or new.status != wrong or new.reason in EXPECTED:
            continue
        if old is None or old.reason != new.reason:
            yield Event("Warning", reason, new.message, f"{kind}-{new.reason}-{new.last_transition_time:.0f}")


def suspended(state: ReconcileState) -> ConditionUpdate:
    """Return Suspended, False while there are pods. Its message names a change that waits for a suspension."""
    now = len(state.status.shards)
    if state.spec.shards.replicas == now:
        return ConditionUpdate("Suspended", "False", "Active")
    return ConditionUpdate(
        "Suspended", "False", "ShardsDiffer", f"{transitions.SHARDS.text}; until then the job keeps {now} shards"
    )


def pods_ready(state: ReconcileState) -> ConditionUpdate:
    """Return PodsReady. If False, the message names the first member with a problem, or all missing ones."""
    members = state.status.members
    for name, fact in state.facts.items():
        match fact:
            case Active(trouble=Trouble(reason=reason, message=message, remedy=remedy)):
                text = f"{name}: {message}; {remedy}{_no_gang(state, reason)}"
                return ConditionUpdate("PodsReady", "False", reason, text)
            case NeverSeen(refusal=refusal) if refusal:
                return ConditionUpdate("PodsReady", "False", "CreateRefused", f"{name}: {refusal}; {REFUSAL_REMEDY}")
            case _:
                pass
    spares = {spare.pod for spare in state.status.spares}  # training needs none of them
    for pod_name, refusal in state.observed.refusals.items():
        if pod_name in spares:
            continue
        return ConditionUpdate("PodsReady", "False", "CreateRefused", f"{pod_name}: {refusal}; {REFUSAL_REMEDY}")
    waiting = [m.name for m in members if not is_settled(m)]
    if not waiting:
        return ConditionUpdate("PodsReady", "True", "AllReady", f"{len(members)} pods are ready")
    missing = [name for name in waiting if not_started(state.facts.get(name))]
    others = [name for name in waiting if name not in missing]
    if not missing or not others:
        return ConditionUpdate("PodsReady", "False", "Waiting", f"waiting for {listed(waiting)}")
    message = f"waiting for {listed(missing)} to start; {listed(others)} run, and are not ready before that"
    return ConditionUpdate("PodsReady", "False", "Waiting", message)


def _no_gang(state: ReconcileState, reason: str) -> str:
    """Return the hint that a job with pods that find no node may hold the nodes of another one; empty without need."""
    runtime = state.status.runtime
    if reason != UNSCHEDULABLE or state.status.phase != "Starting" or (runtime and runtime.pod_group):
        return ""
    cause = "spec.scheduling.gang is Off" if state.spec.scheduling.gang == "Off" else "the cluster has no PodGroups"
    return f" (NoGang: {cause}, so jobs that do not fit together may wait for each other)"


def not_started(fact: Fact | None) -> bool:
    """Return whether the member's pod does not run yet, so that members which run may wait for it."""
    return isinstance(fact, NeverSeen) or (isinstance(fact, Active) and fact.pod.phase == "Pending")


def recovering(status: Status, facts: Mapping[str, Fact]) -> ConditionUpdate:
    """Return Recovering, with the reason of a recovery and the causes of its delay."""
    if status.recovery is None:
        return ConditionUpdate("Recovering", "False", "NoFailure")
    stuck = [
        f"{name}: {fact.trouble.message}" for name, fact in facts.items() if isinstance(fact, Active) and fact.trouble
    ]
    stuck += [f"{name}: {fact.failure.message}" for name, fact in facts.items() if isinstance(fact, Lost)]
    until = min((shard.allowance for shard in status.shards if shard.lost_at is not None), default=0)
    continues = f"training continues up to sample {until}" if status.progress.samples < until else ""
    parts = (status.recovery.reason, continues, *stuck)
    return ConditionUpdate("Recovering", "True", status.recovery.kind, "; ".join(filter(None, parts)))


def reports_available(state: ReconcileState) -> Iterator[ConditionUpdate]:
    """Yield ReportsAvailable: whether the leader answers. Nothing else follows from its silence."""
    status = state.status
    if state.leader_report is not None:
        yield ConditionUpdate("ReportsAvailable", "True", "LeaderAnswers")
    elif status.trainers and status.trainers[status.leader or 0].host:
        message = "the leader does not answer on its HTTP port; check its log and the network policies"
        yield ConditionUpdate("ReportsAvailable", "False", "NoAnswer", message)


def budget(status: Status) -> Iterator[ConditionUpdate]:
    """Yield BudgetExhausted and BudgetAtRisk: whether the next failure fits the remaining budget.

    Both use the inputs of the plan in force, so that they do not flap between two plans.
    """
    portions, ledger = status.budget, account_of(status).ledger
    if portions is None or not ledger.total:
        return
    used, inputs = portions.spent + portions.reserved, status.plan.inputs if status.plan else {}
    left = ledger.left if not ledger.window else min(ledger.left, account_of(status).left(status.progress.samples))
    balance = f"{used:.4g} of {portions.limit:.4g} is spent or reserved"
    remedy = "losses that exceed the budget roll the job back; a larger accuracyBudget avoids that"
    # A shard that dies right after a commit loses the training since the cut of that save.
    least = max(inputs.get("samplesPerSecond", 0.0) * inputs.get("commitSeconds", 0.0), 1.0)
    if ledger.limit > 0 and left < least:
        message = f"{balance}: a shard that dies right after a save loses {least:.0f} samples, but only {left} are left"
        yield ConditionUpdate("BudgetExhausted", "True", "NothingFits", f"{message}; {remedy}")
    else:
        yield ConditionUpdate("BudgetExhausted", "False", "Enough", balance)
    worst, exposed = _losses_of_next_failure(status)
    if ledger.limit > 0 and used >= AT_RISK * portions.limit:
        yield ConditionUpdate("BudgetAtRisk", "True", "AlmostSpent", balance)
    elif worst > left:
        message = f"{balance}: a failure right before a save loses about {worst:.0f} samples, but only {left} are left"
        yield ConditionUpdate("BudgetAtRisk", "True", "NextMayNotFit", f"{message}; {remedy}")
    elif exposed > left:
        message = f"{balance}: a failure now would lose more than the remaining {left} samples; {_at_risk(status)}"
        yield ConditionUpdate("BudgetAtRisk", "True", "SavesOverdue", f"{message}; {remedy}")
    else:
        yield ConditionUpdate("BudgetAtRisk", "False", "Enough", balance)


def snapshots(state: ReconcileState) -> Iterator[ConditionUpdate]:
    """Yield SnapshotsDegraded: whether members have reported problems with saves."""
    names = {m.uid: m.name for m in state.before.members}
    for uid, report in state.observed.reports.items():
        problem = report.problem
        if problem is not None and problem.reason in STORE_PROBLEMS and uid in names:
            message = f"{names[uid]}: {problem.message}; {problem.remedy}; {_at_risk(state.status)}"
            yield ConditionUpdate("SnapshotsDegraded", "True", problem.reason, message)
            return
    if state.leader_report is not None or not state.status.conditions:
        yield ConditionUpdate("SnapshotsDegraded", "False", "Healthy")


def data(observed: ReconcileInput) -> Iterator[ConditionUpdate]:
    """Yield IdsSpelledTwice and DataOutdated, by the leader's report.

    Only the first leader examines ids, so IdsSpelledTwice is unchanged without such a report.
    """
    report = observed.leader_report
    if report is not None and report.problem is not None and report.problem.reason == IDS_SPELLED_TWICE:
        text = f"{report.problem.message} {report.problem.remedy}"
        yield ConditionUpdate("IdsSpelledTwice", "True", "TwoSpellings", text)
    if report is not None and report.new_files:
        message = f"{report.new_files} files of data.uri were added after the job had begun and are not trained"
        yield ConditionUpdate(
            "DataOutdated", "True", "NewFiles", f"{message}; train them in a new job (snapshots.restoreFrom)"
        )


def caught_up(state: ReconcileState) -> Iterator[ConditionUpdate]:
    """Yield CaughtUp of a job that follows its data: whether an anchor has all pinned samples.

    Trainers of a job whose data may end hold the last whole batch back until they know whether it ends the data.
    """
    data, leader = state.status.data, state.leader_report
    if data is None or leader is None or not is_current(state.status, leader):
        return
    follow = state.spec.data.follow
    held_back = state.spec.data.batch_size if follow is not None and follow.may_end and not data.ended else 0
    anchor = state.status.anchors[-1].samples if state.status.anchors else 0
    if not anchor or max(data.lag_samples, data.pinned_samples - anchor) > held_back:
        text = "pinned samples are not trained, or not saved yet; status.data.lagSamples counts those to train"
        yield ConditionUpdate("CaughtUp", "False", "Training", text)
    elif data.ended:
        yield ConditionUpdate("CaughtUp", "True", "Ended", "all samples are trained and saved, and the data has ended")
    else:
        text = f"the job waits for data; all before it is trained, and saved at step {state.status.anchors[-1].step}"
        yield ConditionUpdate("CaughtUp", "True", "NoData", text)


def precision(status: Status) -> Iterator[ConditionUpdate]:
    """Yield PrecisionEmulated: whether trainers report that their CPU lacks the instructions of the job's precision."""
    text = (
        "spec.trainers.precision is bf16, but the CPU has no bf16 instructions, so training is far slower than in "
        "fp32; train in fp32 in a new job (snapshots.restoreFrom), or on nodes with AVX512-BF16 or AMX"
    )
    bad, good = ("NoInstructions", text), ("Instructions", "the CPUs of all trainers have bf16 instructions")
    yield from _reported(status, "PrecisionEmulated", PRECISION_EMULATED, bad, good)


def spill(status: Status) -> Iterator[ConditionUpdate]:
    """Yield SpillUnavailable: whether trainers report that their disk is too full for pushes."""
    text = (
        "the disk has no room for spec.recovery.replay.spill, so the oldest pushes are dropped as soon as the memory "
        "is full; free the disks of the nodes, or request less in a new job"
    )
    bad, good = ("DiskFull", text), ("Allocated", "all trainers have the room on disk")
    yield from _reported(status, "SpillUnavailable", SPILL_UNAVAILABLE, bad, good)


def replay_memory(status: Status, report: TrainerReport | None) -> Iterator[ConditionUpdate]:
    """Yield ReplayMemoryShort: whether the memory for pushes, and not the plan, sets the interval of saves."""
    if report is None or not report.saves or status.plan is None:
        return
    planned = duration(status.plan.interval_seconds)
    if report.early_save_s is not None:
        message = f"trainers' memory for pushes is full {duration(report.early_save_s)} after a save"
        remedy = "raise spec.recovery.replay.memory or state spill, in a suspended or a new job"
        text = f"{message}, so saves are made before the planned {planned} are over; {remedy}"
        yield ConditionUpdate("ReplayMemoryShort", "True", "MemoryFull", text)
    elif any(each.type == "ReplayMemoryShort" for each in status.conditions):
        yield ConditionUpdate("ReplayMemoryShort", "False", "Planned", f"a save is made every {planned}, as planned")


def tables(spec: CPRJobSpec, status: Status) -> Iterator[ConditionUpdate]:
    """Yield TableTooSmall if dynamic tables have dropped gradients. It stays, because `rows` cannot change."""
    places = {table.name: place for place, table in enumerate(spec.model.tables)}
    small = [f"spec.model.tables[{places[each.name]}].rows" for each in status.tables if each.dropped]
    if small:
        message = "a step had gradients for all rows that a new id may take, so the gradient of the new id was dropped"
        yield ConditionUpdate(
            "TableTooSmall", "True", "GradientsDropped", f"{message}; raise {listed(small)} in a new job"
        )


def listed(names: Sequence[str]) -> str:
    """Return the first names, as text."""
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")  # noqa: PLR2004 -- enough for a message


def _losses_of_next_failure(status: Status) -> tuple[float, float]:
    """Return the expected permanent loss of a failure right before a save, and of one now, in sample-shards."""
    plan = status.plan
    if plan is None or plan.mode == "Full":
        return 0.0, 0.0
    age_s = plan.interval_seconds + plan.inputs.get("commitSeconds", 0.0)
    each = min(age_s * plan.inputs.get("samplesPerSecond", 0.0), status.ledger.total_samples)
    # Losses of shards that are already lost are reserved, so they do not count.
    at_risk = (status.progress.samples - shard.saved_samples for shard in status.shards if shard.lost_at is None)
    lost = plan.inputs.get("lostPerFailure", 1.0)
    # The law lets exactly one failure before a save fit, so a rounding error must not count as a risk.
    return 0.999 * each * lost, max(at_risk, default=0) * lost


def _at_risk(status: Status) -> str:
    """Describe the cost of a loss without another save. The message stays the same until the next save."""
    oldest = min((shard.saved_samples for shard in status.shards), default=0)
    if (status.progress.protected_samples or 0) > oldest:
        return f"parity rebuilds a shard that is lost alone now, and several go back to sample {oldest:,}"
    return f"a shard that is lost now goes back to sample {oldest:,}"


def _reported(
    status: Status, kind: ConditionType, problem: str, bad: tuple[str, str], good: tuple[str, str]
) -> Iterator[ConditionUpdate]:
    """Yield a condition, with reason and message, about a problem that trainers report, once it is certain.

    A trainer that starts, or has another problem, may report it later, so the condition stays unchanged meanwhile.
    """
    having = [trainer.name for trainer in status.trainers if trainer.problem == problem]
    all_well = all(is_settled(trainer) and not trainer.problem for trainer in status.trainers)
    if having:
        yield ConditionUpdate(kind, "True", bad[0], f"{listed(having)}: {bad[1]}")
    elif all_well and any(condition.type == kind for condition in status.conditions):
        yield ConditionUpdate(kind, "False", *good)
