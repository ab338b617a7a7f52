"""`reconcile`: one pure function from what a pass sees to what it wants. Run at any moment, after any crash."""

from __future__ import annotations

from dataclasses import replace

from cpr_contract.processor import PRECISION_EMULATED
from cpr_contract.reports import TrainerReport, TrainerState
from cpr_operator.api.status import TERMINAL_PHASES, Phase, Status
from cpr_operator.cluster.protocol import Event
from cpr_operator.desired.versions import is_spoken, not_spoken, version_of
from cpr_operator.reconcile import effects
from cpr_operator.reconcile.apply_reports import apply_reports, result_of, with_shown, with_termination_message
from cpr_operator.reconcile.conditions import (
    EXPECTED,
    REFUSAL_REMEDY,
    ConditionUpdate,
    findings,
    truth,
    with_conditions,
)
from cpr_operator.reconcile.deletion import delete
from cpr_operator.reconcile.lifecycle import (
    EXCEEDED,
    KEY_LOST,
    fail,
    give_up_start,
    is_awaited,
    needs_new_key,
    never_trained,
    overdue,
    phase_of,
    start,
    succeed,
    waits_to_resume,
    with_late_shards_lost,
    with_new_key,
    with_result,
    without_result,
)
from cpr_operator.reconcile.members import is_overspent
from cpr_operator.reconcile.observe import leader_report, observe
from cpr_operator.reconcile.pass_ import EventReason, Hold, Outcome, PassInput, PodDelete, Step
from cpr_operator.reconcile.plan import plan_news, planned
from cpr_operator.reconcile.recover import recover
from cpr_operator.reconcile.resize import resizing, trainers_aligned
from cpr_operator.reconcile.suspend import resume, suspend

#: How long trainers may take to end by themselves once the job has succeeded.
LINGER_S = 30.0
#: Looking again grows to this part of the time that was waited already.
PATIENCE = 0.1


def reconcile(world: PassInput) -> Outcome:
    """What becomes of the job now."""
    status = world.job.status
    if world.job.deleting:
        return delete(world)
    if status.phase in TERMINAL_PHASES:
        return _after_the_end(world)
    if status.phase not in {"Pending", "Suspended"} and not is_spoken(version_of(status)):
        return _leave_alone(world)
    return _live(world)


def _live(world: PassInput) -> Outcome:
    """A job that is not over, of a version that is spoken."""
    status = world.job.status
    if needs_new_key(world):
        world = with_new_key(world)
        if status.phase not in {"Suspending", "Suspended"} and effects.live_pods(world.pods):
            return _suspend(world, KEY_LOST)
    if (
        world.job.spec.suspend
        or status.phase == "Suspending"
        or (_wants_others(world, status) and trainers_aligned(world))
    ):
        return _suspend(world)
    if status.start_time is not None and status.phase != "Suspended":
        return _go_on(world)
    if world.restriction is not None and (words := world.restriction.refuses(world.job.spec)):
        return refuse_pods(world, "TemplateRefused", words)
    if status.start_time is None:
        return _begin(world, start(world)) if world.hold is None else _held(world, world.hold)
    return _outcome(world, Step(status)) if waits_to_resume(world) else _begin(world, resume(world))


def refuse_pods(world: PassInput, reason: str, words: str) -> Outcome:
    """A job without pods gets none, because its pods would not be taken."""
    status = _with(world, world.job.status, ConditionUpdate("PodsReady", "False", reason, words))
    said = Event("Warning", EventReason.REFUSED, words, f"{reason}-{world.job.generation}")
    return replace(_outcome(world, Step(status, (said,))), wake_after_s=world.timing.running_s)


def _wants_others(world: PassInput, status: Status) -> bool:
    """Whether a job with pods is to go on with another number of trainers: it stops, and resumes as so many."""
    wanted = world.job.spec.trainers.replicas
    return status.phase not in {"Pending", "Suspended"} and len(status.trainers) != wanted


def _held(world: PassInput, hold: Hold) -> Outcome:
    """No new job may start."""
    finding = ConditionUpdate("CRDOutdated", hold.status, hold.reason, hold.message)
    return _outcome(world, Step(_with(world, world.job.status, finding)))


def _leave_alone(world: PassInput) -> Outcome:
    """Pods of a release that this one cannot talk to train on by themselves."""
    finding = ConditionUpdate("PodsReady", "Unknown", "ContractNotSpoken", not_spoken(version_of(world.job.status)))
    status = _with(world, world.job.status, finding).evolve(observed_generation=world.job.generation)
    return Outcome(status, guarded=status.phase != "Suspending", wake_after_s=world.timing.running_s)


def _suspend(world: PassInput, why: str = "") -> Outcome:
    """The next step of a suspension. `why`: it begins now, and neither by the spec's `suspend` nor by its numbers."""
    facts = observe(world)
    result = result_of(world.job.status, facts)
    done = None if result is None else succeed(world, Step(with_termination_message(world.job.status, facts)), result)
    if result is not None and done is not None and not is_overspent(done.status):
        return _ended(world, done, ConditionUpdate("Complete", "True", "Trained", result.key))
    step, deletes = suspend(world, why)
    return _outcome(world, step.to(_with(world, step.status, _suspended(world, step.status, why))), deletes)


def _suspended(world: PassInput, status: Status, why: str) -> ConditionUpdate:
    """Whether all pods are gone, and why they go."""
    state = truth(status.phase == "Suspended")
    if world.job.spec.suspend:
        return ConditionUpdate("Suspended", state, status.phase, "spec.suspend is true")
    if status.resume_at is not None:
        return ConditionUpdate("Suspended", state, EXCEEDED, _condition(status, "Suspended"))
    reason = resizing(world.job.spec, status) or why or _condition(status, "Suspended")
    return ConditionUpdate("Suspended", state, status.phase, reason)


def _begin(world: PassInput, step: Step) -> Outcome:
    status = step.status.evolve(phase="Starting")
    status = _with(
        world,
        status,
        ConditionUpdate("Suspended", "False", "Active"),
        ConditionUpdate("CRDOutdated", "False", "SchemaMatches"),
        ConditionUpdate("PodsReady", "False", "Starting", "the first pods are being created"),
    )
    return _outcome(world, step.to(status))


def _align_trainers(world: PassInput, step: Step) -> Step:
    """Trainers whose number is to change come to one step first, where ranks stand at steps of their own.

    Not before each shard has told what it lost, which takes pushes: at its worst that may not fit into the budget, and
    then no anchor would do.
    """
    told = all(shard.lost_at is None for shard in step.status.shards)
    meeting = told and _wants_others(world, step.status)
    status = step.status.evolve(meeting=meeting)
    if not meeting or step.status.meeting:
        return step.to(status)
    message = f"{resizing(world.job.spec, status)}: all go on to one step first, and are saved there"
    return step.to(status, Event("Normal", EventReason.MEETING, message, f"meeting-{world.job.generation}"))


def _go_on(world: PassInput) -> Outcome:
    """A pass over a job that has pods."""
    facts = observe(world)
    step = _align_trainers(world, Step(apply_reports(world, facts)))
    result, refused, restarts = result_of(step.status, facts), False, step.status.restarts
    if result is not None and is_awaited(step.status):
        step = Step(with_result(step.status, result))
        facts = with_late_shards_lost(world, step.status, facts)
    elif result is not None:
        done = succeed(world, step.to(with_termination_message(step.status, facts)), result)
        if not is_overspent(done.status):
            return _ended(world, done, ConditionUpdate("Complete", "True", "Trained", result.key))
        step, refused = Step(step.status.evolve(ledger=done.status.ledger)), True
    if result is None or refused:
        facts = without_result(step.status, facts, refused=refused)
    step, hopeless = recover(world, step, facts)
    if hopeless is not None:
        return _failed(world, step, hopeless.cause, hopeless.reason)
    status = step.status
    if status.recovery is None:
        anew = restarts != status.restarts or world.job.status.recovery is not None
        status = planned(world.job.spec, status, anew=anew)
    phase = phase_of(world, status)
    late = overdue(world, status, facts) if phase == "Starting" else ""
    if late and never_trained(world, status):
        remedy = "mend the cause, or raise spec.failurePolicy.startupDeadlineSeconds, and create the job anew"
        return _failed(world, step.to(status), EXCEEDED, f"{late}; {remedy}")
    if late:
        step, why = give_up_start(world, step.to(status), late)
        return _outcome(world, step.to(_with(world, step.status, why)))
    status = status.evolve(phase=phase)
    status = _with(world, status, *findings(world, status, facts))
    return _outcome(world, step.to(status, *_news(world, status)))


def _news(world: PassInput, status: Status) -> tuple[Event, ...]:
    """Events that follow from what has changed."""
    before = world.job.status
    news = []
    if status.phase == "Running" and before.phase == "Starting":
        news.append(Event("Normal", EventReason.RUNNING, "all pods work", f"running-{status.counters.group}"))
    for kind, wrong, reason in (
        ("PodsReady", "False", EventReason.POD_STUCK),
        ("SnapshotsDegraded", "True", EventReason.SNAPSHOTS_DEGRADED),
        ("DataOutdated", "True", EventReason.DATA_OUTDATED),
        ("PrecisionEmulated", "True", EventReason.PRECISION_EMULATED),
        ("BudgetExhausted", "True", EventReason.BUDGET_EXHAUSTED),
    ):
        old, new = (next((c for c in s.conditions if c.type == kind), None) for s in (before, status))
        if new is None or new.status != wrong or new.reason in EXPECTED:
            continue
        if old is None or old.reason != new.reason:
            news.append(Event("Warning", reason, new.message, f"{kind}-{new.reason}-{new.last_transition_time:.0f}"))
    for pod, words in world.refusals.items():
        news.append(Event("Warning", EventReason.REFUSED, f"{words}; {REFUSAL_REMEDY}", f"refused-{pod}"))
    return tuple(news)


def _failed(world: PassInput, step: Step, cause: str, reason: str) -> Outcome:
    return _ended(world, fail(world, step, cause, reason), ConditionUpdate("Failed", "True", cause, reason))


def _ended(world: PassInput, step: Step, finding: ConditionUpdate) -> Outcome:
    ready = ConditionUpdate("PodsReady", "False", step.status.phase)
    recovering = ConditionUpdate("Recovering", "False", step.status.phase)
    status = _with(world, step.status, finding, ready, recovering)
    if status.phase == "Succeeded":  # its last anchor is in the store
        status = _with(world, status, ConditionUpdate("SnapshotsDegraded", "False", "Healthy"))
    return _outcome(world, step.to(status), tuple(_superfluous(world, status)))


def _after_the_end(world: PassInput) -> Outcome:
    """Terminal stays terminal: what still runs is removed, and in time the job itself."""
    status, ttl = world.job.status, world.job.spec.ttl_seconds_after_finished
    ended = status.completion_time or world.now
    deletes = tuple(_superfluous(world, status))
    left = None if ttl is None else max(ended + ttl - world.now, 0.0)
    lingering = bool(effects.live_pods(world.pods))
    return Outcome(
        with_shown(status),
        deletes=deletes,
        delete_job=left == 0.0,
        wake_after_s=world.timing.running_s if lingering else left,
    )


def _superfluous(world: PassInput, status: Status) -> list[PodDelete]:
    """Pods that may still run; after success, trainers get time to end by themselves."""
    lingers = status.phase == "Succeeded" and world.now < (status.completion_time or 0.0) + LINGER_S
    return [
        PodDelete(pod.name, pod.uid, f"the job has {status.phase.lower()}")
        for pod in effects.live_pods(world.pods)
        if pod.deleting_until is None and not (lingers and pod.role == "trainer")
    ]


def _outcome(world: PassInput, step: Step, deletes: tuple[PodDelete, ...] | None = None) -> Outcome:
    """The outcome with everything that the cluster lacks of what the status wants."""
    status = effects.stamped(world.job.status, step.status)
    status = with_shown(status.evolve(observed_generation=world.job.generation))
    active = status.phase not in TERMINAL_PHASES and status.phase not in {"Pending", "Suspending", "Suspended"}
    stalled = status.phase == "Running" and (_waits_for_others(world) or _is_somebody_missed(world, status))
    return Outcome(
        status=status,
        creates=tuple(effects.creates(world, status)) if active else (),
        deletes=tuple(effects.deletes(world, status)) if deletes is None else deletes,
        rosters=tuple(effects.rosters(world, status)) if active or status.phase == "Suspending" else (),
        guarded=active,
        events=(*step.events, *plan_news(world.job.status, status)),
        # Its peers are about to call somebody silent, and training stands still until it is replaced.
        wake_after_s=world.timing.changing_s / 2 if stalled else _wake_after(world, status),
        stalled=stalled,
    )


def _wake_after(world: PassInput, status: Status) -> float | None:
    """Often while something is awaited, less often the longer it takes, seldom while all is well."""
    timing, phase = world.timing, status.phase
    if phase == "Suspended" and status.resume_at is not None:
        return max(timing.changing_s, min(timing.running_s, status.resume_at - world.now))
    if phase in {"Suspended", "Pending"}:
        return timing.running_s if phase == "Pending" or world.job.spec.suspend else timing.changing_s
    if phase == "Running" and leader_report(world) is None:
        return timing.changing_s
    if phase == "Running":
        return max(timing.floor_s, min(timing.running_s, _save_interval(world, status) / 2))
    if _is_end(phase) or status.meeting:
        return timing.changing_s
    since = status.recovery.since if status.recovery else status.start_time or world.now
    patience = PATIENCE * max(world.now - since, 0.0)
    return min(max(timing.changing_s, patience), timing.running_s)


def _waits_for_others(world: PassInput) -> bool:
    """Whether training stands still because a trainer waits for others, and not for the store, which it says.

    It may name nobody yet: a connection that nothing comes through is not given up before the other end is silent.
    """
    trainers = (report for report in world.reports.values() if isinstance(report, TrainerReport))
    paused = (report.problem for report in trainers if report.state is TrainerState.PAUSED)
    return any(problem is None or problem.reason == PRECISION_EMULATED for problem in paused)


def _is_somebody_missed(world: PassInput, status: Status) -> bool:
    """Whether a member that should work is called silent, though not by enough to replace it."""
    missed = {name for report in world.reports.values() for name in report.silent}
    shards = (shard.name for shard in status.shards)
    trainers = (t.name for t in status.trainers if t.state != "Finished")
    return not missed.isdisjoint((*shards, *trainers))


def _save_interval(world: PassInput, status: Status) -> float:
    """The shorter of the two intervals between saves: what is known of saves should not be older than they are."""
    dense = float(world.job.spec.snapshots.dense_interval_seconds)
    return min(status.plan.interval_seconds, dense) if status.plan else dense


def _is_end(phase: Phase) -> bool:
    return phase in TERMINAL_PHASES or phase in {"Finishing", "Suspending"}


def _with(world: PassInput, status: Status, *found: ConditionUpdate) -> Status:
    return with_conditions(status, world.job.generation, world.now, *found)


def _condition(status: Status, kind: str) -> str:
    return next((c.message for c in status.conditions if c.type == kind), "")
