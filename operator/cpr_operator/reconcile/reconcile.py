"""`reconcile`: one pure function from what a pass sees to what it wants. Run at any moment, after any crash."""

from __future__ import annotations

from cpr_operator.api.status import TERMINAL_PHASES, Phase, Status
from cpr_operator.cluster.protocol import Event
from cpr_operator.reconcile import effects
from cpr_operator.reconcile.absorb import absorb
from cpr_operator.reconcile.conditions import EXPECTED, REFUSAL_REMEDY, Finding, findings, truth, with_findings
from cpr_operator.reconcile.deletion import delete
from cpr_operator.reconcile.edit import is_overspent
from cpr_operator.reconcile.ending import is_awaited, with_late_heirs, with_result, without_result
from cpr_operator.reconcile.figures import result_of, with_last_word
from cpr_operator.reconcile.life import fail, is_overdue, phase_of, start, succeed
from cpr_operator.reconcile.observe import observe
from cpr_operator.reconcile.planning import plan_news, planned
from cpr_operator.reconcile.recover import recover
from cpr_operator.reconcile.resize import have_met, resizing
from cpr_operator.reconcile.suspend import resume, suspend
from cpr_operator.reconcile.world import EventReason, Outcome, PodDelete, Step, World, change

#: How long trainers may take to end by themselves once the job has succeeded.
LINGER_S = 30.0
#: Looking again grows to this part of the time that was waited already.
PATIENCE = 0.1


def reconcile(world: World) -> Outcome:
    """What becomes of the job now."""
    status = world.job.status
    if world.job.deleting:
        return delete(world)
    if status.phase in TERMINAL_PHASES:
        return _after_the_end(world)
    if world.job.spec.suspend or status.phase == "Suspending" or (_wants_others(world, status) and have_met(world)):
        return _suspend(world)
    if status.start_time is None:
        return _held(world) if world.hold else _begin(world, start(world))
    return _begin(world, resume(world)) if status.phase == "Suspended" else _go_on(world)


def _wants_others(world: World, status: Status) -> bool:
    """Whether a job with pods is to go on with another number of trainers: it stops, and resumes as so many."""
    wanted = world.job.spec.trainers.replicas
    return status.phase not in {"Pending", "Suspended"} and len(status.trainers) != wanted


def _held(world: World) -> Outcome:
    """No new job may start."""
    finding = Finding("CRDOutdated", "True", "SchemaDiffers", world.hold)
    return _outcome(world, Step(_with(world, world.job.status, finding)))


def _suspend(world: World) -> Outcome:
    facts = observe(world)
    result = result_of(world.job.status, facts)
    done = None if result is None else succeed(world, Step(with_last_word(world.job.status, facts)), result)
    if result is not None and done is not None and not is_overspent(done.status):
        return _ended(world, done, Finding("Complete", "True", "Trained", result.key))
    step, deletes = suspend(world)
    state = truth(step.status.phase == "Suspended")
    reason = "spec.suspend is true" if world.job.spec.suspend else resizing(world.job.spec, step.status)
    finding = Finding("Suspended", state, step.status.phase, reason)
    return _outcome(world, step.to(_with(world, step.status, finding)), deletes)


def _begin(world: World, step: Step) -> Outcome:
    status = change(step.status, phase="Starting")
    status = _with(
        world,
        status,
        Finding("Suspended", "False", "Active"),
        Finding("CRDOutdated", "False", "SchemaMatches"),
        Finding("PodsReady", "False", "Starting", "the first pods are being created"),
    )
    return _outcome(world, step.to(status))


def _with_meeting(world: World, step: Step) -> Step:
    """Trainers whose number is to change come to one step first, where ranks stand at steps of their own.

    Not before each shard has told what it lost, which takes pushes: at its worst that may not fit into the budget, and
    then no anchor would do.
    """
    told = all(shard.lost_at is None for shard in step.status.shards)
    meeting = told and _wants_others(world, step.status)
    status = change(step.status, meeting=meeting)
    if not meeting or step.status.meeting:
        return step.to(status)
    message = f"{resizing(world.job.spec, status)}: all go on to one step first, and are saved there"
    return step.to(status, Event("Normal", EventReason.MEETING, message, f"meeting-{world.job.generation}"))


def _go_on(world: World) -> Outcome:
    """A pass over a job that has pods."""
    facts = observe(world)
    step = _with_meeting(world, Step(absorb(world, facts)))
    result, refused, restarts = result_of(step.status, facts), False, step.status.restarts
    if result is not None and is_awaited(step.status):
        step = Step(with_result(step.status, result))
        facts = with_late_heirs(world, step.status, facts)
    elif result is not None:
        done = succeed(world, step.to(with_last_word(step.status, facts)), result)
        if not is_overspent(done.status):
            return _ended(world, done, Finding("Complete", "True", "Trained", result.key))
        step, refused = Step(change(step.status, ledger=done.status.ledger)), True
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
    if is_overdue(world, status, phase):
        waited = world.job.spec.failure_policy.startup_deadline_seconds
        reason = f"not all pods worked within {waited} s: {_condition(status, 'PodsReady')}"
        return _failed(world, step.to(status), "StartupDeadlineExceeded", reason)
    status = change(status, phase=phase)
    status = _with(world, status, *findings(world, status, facts))
    return _outcome(world, step.to(status, *_news(world, status)))


def _news(world: World, status: Status) -> tuple[Event, ...]:
    """Events that follow from what has changed."""
    before = world.job.status
    news = []
    if status.phase == "Running" and before.phase == "Starting":
        news.append(Event("Normal", EventReason.RUNNING, "all pods work", f"running-{status.counters.group}"))
    for kind, wrong, reason in (
        ("PodsReady", "False", EventReason.POD_STUCK),
        ("SnapshotsDegraded", "True", EventReason.SNAPSHOTS_DEGRADED),
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


def _failed(world: World, step: Step, cause: str, reason: str) -> Outcome:
    return _ended(world, fail(world, step, cause, reason), Finding("Failed", "True", cause, reason))


def _ended(world: World, step: Step, finding: Finding) -> Outcome:
    ready = Finding("PodsReady", "False", step.status.phase)
    recovering = Finding("Recovering", "False", step.status.phase)
    status = _with(world, step.status, finding, ready, recovering)
    if status.phase == "Succeeded":  # its last anchor is in the store
        status = _with(world, status, Finding("SnapshotsDegraded", "False", "Healthy"))
    return _outcome(world, step.to(status), tuple(_superfluous(world, status)))


def _after_the_end(world: World) -> Outcome:
    """Terminal stays terminal: what still runs is removed, and in time the job itself."""
    status, ttl = world.job.status, world.job.spec.ttl_seconds_after_finished
    ended = status.completion_time or world.now
    deletes = tuple(_superfluous(world, status))
    left = None if ttl is None else max(ended + ttl - world.now, 0.0)
    lingering = bool(effects.live_pods(world.pods))
    return Outcome(
        status,
        deletes=deletes,
        delete_job=left == 0.0,
        wake_after_s=world.timing.running_s if lingering else left,
    )


def _superfluous(world: World, status: Status) -> list[PodDelete]:
    """Pods that may still run; after success, trainers get time to end by themselves."""
    lingers = status.phase == "Succeeded" and world.now < (status.completion_time or 0.0) + LINGER_S
    return [
        PodDelete(pod.name, pod.uid, f"the job has {status.phase.lower()}")
        for pod in effects.live_pods(world.pods)
        if pod.deleting_until is None and not (lingers and pod.role == "trainer")
    ]


def _outcome(world: World, step: Step, deletes: tuple[PodDelete, ...] | None = None) -> Outcome:
    """The outcome with everything that the cluster lacks of what the status wants."""
    status = effects.stamped(world.job.status, step.status)
    status = change(status, observed_generation=world.job.generation)
    active = status.phase not in TERMINAL_PHASES and status.phase not in {"Pending", "Suspending", "Suspended"}
    return Outcome(
        status=status,
        creates=tuple(effects.creates(world, status)) if active else (),
        deletes=tuple(effects.deletes(world, status)) if deletes is None else deletes,
        rosters=tuple(effects.rosters(world, status)) if active or status.phase == "Suspending" else (),
        guarded=active,
        events=(*step.events, *plan_news(world.job.status, status)),
        wake_after_s=_wake_after(world, status),
    )


def _wake_after(world: World, status: Status) -> float | None:
    """Often while something is awaited, less often the longer it takes, seldom while all is well."""
    timing, phase = world.timing, status.phase
    if phase in {"Suspended", "Pending"}:
        return timing.running_s if phase == "Pending" or world.job.spec.suspend else timing.changing_s
    if phase == "Running":
        return max(timing.floor_s, min(timing.running_s, _save_interval(world, status) / 2))
    if _is_end(phase) or status.meeting:
        return timing.changing_s
    since = status.recovery.since if status.recovery else status.start_time or world.now
    patience = PATIENCE * max(world.now - since, 0.0)
    return min(max(timing.changing_s, patience), timing.running_s)


def _save_interval(world: World, status: Status) -> float:
    """The shorter of the two intervals between saves: what is known of saves should not be older than they are."""
    dense = float(world.job.spec.snapshots.dense_interval_seconds)
    return min(status.plan.interval_seconds, dense) if status.plan else dense


def _is_end(phase: Phase) -> bool:
    return phase in TERMINAL_PHASES or phase in {"Finishing", "Suspending"}


def _with(world: World, status: Status, *found: Finding) -> Status:
    return with_findings(status, world.job.generation, world.now, *found)


def _condition(status: Status, kind: str) -> str:
    return next((c.message for c in status.conditions if c.type == kind), "")
