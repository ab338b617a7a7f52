"""What the cluster lacks of what the status wants. Level-triggered: a lost effect is found again by the next pass.

Only creates follow from a change of the status: a create whose answer was lost is never sent twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cpr_contract.processor import PRECISION_EMULATED
from cpr_contract.reports import IDS_SPELLED_TWICE, SPILL_UNAVAILABLE, TrainerReport, TrainerState
from cpr_operator.api.frozen_settings import replay_in_force
from cpr_operator.api.spec import CPRJobSpec
from cpr_operator.api.status import TERMINAL_PHASES, Shard, Status, Trainer
from cpr_operator.clocks import elapsed_s
from cpr_operator.cluster.protocol import Manifest, PodPatch
from cpr_operator.cluster.views import PodView
from cpr_operator.desired.names import JobId, pod_labels
from cpr_operator.desired.pod import PodPlan, grace_s, pod_manifest, spare_manifest
from cpr_operator.desired.rosters import Rosters
from cpr_operator.reconcile.apply_reports import with_shown
from cpr_operator.reconcile.history import with_history
from cpr_operator.reconcile.members import M
from cpr_operator.reconcile.plan import plan_events
from cpr_operator.reconcile.spares import as_members, is_spare, superfluous
from cpr_operator.reconcile.types import Outcome, PodDelete, ReconcileInput, ReconcileState

#: Phases of a pod whose process may run.
LIVE_PHASES = frozenset({"Pending", "Running", "Unknown"})
#: Looking again grows to this part of the time that was waited already.
PATIENCE = 0.1


def stamped(before: Status, after: Status) -> Status:
    """`after` with the next roster number, if anything that pods are told has changed, on all whom it concerns."""
    number = before.counters.roster + 1
    old, new = Rosters(_unnumbered(before)), Rosters(_unnumbered(after))

    def stamp(member: M, *, told: bool) -> M:
        return member if told else member.evolve(roster=number)

    contents = {s.index: old.shard(s, s.incarnation) for s in before.shards}
    shards = tuple(stamp(s, told=contents.get(s.index) == new.shard(s, s.incarnation)) for s in after.shards)
    incarnations = {t.index: t.incarnation for t in before.trainers}
    # What trainers are told lists every member: it is compared once for all of them.
    same = old.for_trainers == new.for_trainers
    trainers = tuple(stamp(t, told=same and incarnations.get(t.index) == t.incarnation) for t in after.trainers)
    if shards == after.shards and trainers == after.trainers:
        return after
    return after.evolve(shards=shards, trainers=trainers, counters=after.counters.evolve(roster=number))


def _unnumbered(status: Status) -> Status:
    return status.evolve(counters=status.counters.evolve(roster=0))


def creates(observed: ReconcileInput, after: Status) -> Iterator[Manifest]:
    """Pods of incarnations that this pass decided, and of those whose create was refused: shards, trainers, spares.

    A shard whose place a spare has taken has its pod already.
    """
    if after.runtime is None:
        return
    before = {(m.role, m.index): m.incarnation for m in observed.before.members}
    plan, told = pod_plan(observed.job.id, observed.job.spec, after), Rosters(after)
    for member in after.members:
        decided = before.get((member.role, member.index)) != member.incarnation
        if not member.uid and (decided or member.pod in observed.refusals):
            yield pod_manifest(plan, told.document(member, member.incarnation), member.avoid)
    known = {spare.number for spare in observed.before.spares}
    for spare in after.spares:
        if spare.number not in known or (not spare.uid and spare.pod in observed.refusals):
            yield spare_manifest(plan, spare.pod)


def pod_plan(job: JobId, spec: CPRJobSpec, status: Status) -> PodPlan:
    """What the job's pods are made from: as it was frozen when the job started."""
    if status.runtime is None:
        raise ValueError("a job that has not started has no pods")
    return PodPlan(
        job=job,
        spec=spec,
        image=status.runtime.image,
        job_spec=status.runtime.job_spec,
        grace_s=grace_s(status.policy.commit_seconds),
        key_digest=status.runtime.key_digest,
        placements=status.runtime.quota.placements if status.runtime.quota else (),
        replay=replay_in_force(spec, status),
        restart_rules=status.runtime.restart_rules,
    )


def deletes(observed: ReconcileInput, after: Status) -> Iterator[PodDelete]:
    """Pods of earlier incarnations: those that run, and ended ones but the last, whose log may be wanted.

    And spares that are none any more.
    """
    newest: Mapping[tuple[str, int], int] = {(m.role, m.index): m.incarnation for m in after.members}
    for pod in observed.pods:
        incarnation = newest.get((pod.role, pod.index))
        if pod.deleting_until is not None or incarnation is None or pod.incarnation >= incarnation:
            continue
        if pod.phase in LIVE_PHASES:
            yield PodDelete(pod.name, pod.uid, f"replaced by incarnation {incarnation}")
        elif pod.incarnation < incarnation - 1:
            yield PodDelete(pod.name, pod.uid, "the log of a later incarnation is kept")
    for pod in superfluous(observed, after):
        yield PodDelete(pod.name, pod.uid, "it is no spare any more")


def rosters(observed: ReconcileInput, after: Status) -> Iterator[PodPatch]:
    """Pods that were told less than the status says: trainers first, then shards, then fenced-off ones.

    Before all others spares that were promoted, with the labels of what they are now.

    At the start trainers are told once, when all addresses are known. A shard that may still flush is left alone.
    """
    members: Mapping[tuple[str, int], Shard | Trainer] = {(m.role, m.index): m for m in after.members}
    flushing = {shard.predecessor.uid for shard in after.shards if shard.predecessor}
    told = Rosters(after)
    early = after.phase == "Starting" and not all(m.host for m in after.members)
    spares = {pod.uid for pod in observed.pods if is_spare(pod)}
    pods = as_members(observed.pods, after)
    for pod in sorted(pods, key=lambda p: (p.uid not in spares, p.role != "trainer", p.index, -p.incarnation)):
        member = members.get((pod.role, pod.index))
        if member is None or pod.phase not in LIVE_PHASES or pod.uid in flushing:
            continue
        if pod.roster_version >= member.roster or pod.incarnation > member.incarnation:
            continue
        if not (early and pod.role == "trainer"):
            labels = pod_labels(observed.job.id, "shard", pod.index, pod.incarnation) if pod.uid in spares else {}
            yield PodPatch(pod.name, pod.uid, told.document(member, pod.incarnation).annotations, labels)


def live_pods(pods: tuple[PodView, ...]) -> tuple[PodView, ...]:
    """Those whose process may run."""
    return tuple(pod for pod in pods if pod.phase in LIVE_PHASES)


def outcome(state: ReconcileState) -> Outcome:
    """What the pass wants: the status, and all that the cluster lacks of it."""
    observed = state.observed
    status = stamped(state.before, state.status)
    status = with_history(state.before, status.evolve(observed_generation=observed.job.spec_generation))
    status = with_shown(status, observed.job.id.name)
    active = status.phase not in TERMINAL_PHASES and status.phase not in {"Pending", "Suspending", "Suspended"}
    stalled = status.phase == "Running" and (_waits_for_others(observed) or _is_missed(observed, status.members))
    return Outcome(
        status=status,
        creates=tuple(creates(observed, status)) if active else (),
        deletes=tuple(deletes(observed, status)) if state.deletes is None else state.deletes,
        rosters=tuple(rosters(observed, status)) if active or status.phase == "Suspending" else (),
        needs_prerequisites=active,
        events=(*state.events, *plan_events(state.before, status)),
        # A member is about to be called silent, and training stands still until it is replaced.
        wake_after_s=observed.timing.changing_s / 2 if stalled else _wake_after(state.to(status)),
        stalled=stalled,
    )


def _wake_after(state: ReconcileState) -> float | None:
    """Often while something is awaited, less often the longer it takes, seldom while all is well."""
    timing, status = state.observed.timing, state.status
    phase = status.phase
    if phase == "Suspended" and status.resume_at is not None:
        return max(timing.changing_s, min(timing.running_s, status.resume_at - state.now))
    if phase in {"Suspended", "Pending"}:
        return timing.running_s if phase == "Pending" or state.spec.suspend else timing.changing_s
    if phase == "Running" and state.leader_report is None:
        return timing.changing_s
    if phase == "Running":
        return max(timing.floor_s, min(timing.running_s, _save_interval(state) / 2))
    if phase in TERMINAL_PHASES or phase in {"Finishing", "Suspending"} or status.meeting:
        return timing.changing_s
    since = status.recovery.since if status.recovery else status.start_time or state.now
    patience = PATIENCE * elapsed_s(since, state.now)
    return min(max(timing.changing_s, patience), timing.running_s)


def _waits_for_others(observed: ReconcileInput) -> bool:
    """Whether training stands still because a trainer waits for others, and not for the store, which it says.

    It may name no member yet: a connection is not given up before its other end counts as silent.
    """
    trainers = (report for report in observed.reports.values() if isinstance(report, TrainerReport))
    paused = (report.problem for report in trainers if report.state is TrainerState.PAUSED)
    standing = {PRECISION_EMULATED, SPILL_UNAVAILABLE, IDS_SPELLED_TWICE}
    return any(problem is None or problem.reason in standing for problem in paused)


def _is_missed(observed: ReconcileInput, members: Sequence[Shard | Trainer]) -> bool:
    """Whether a member that should work is called silent, though not by enough to replace it."""
    missed = {name for report in observed.reports.values() for name in report.silent}
    return not missed.isdisjoint(member.name for member in members if member.state != "Finished")


def _save_interval(state: ReconcileState) -> float:
    """The shorter of the two intervals between saves: what is known of saves should not be older than they are."""
    dense, plan = float(state.spec.snapshots.dense_interval_seconds), state.status.plan
    return min(plan.interval_seconds, dense) if plan else dense
