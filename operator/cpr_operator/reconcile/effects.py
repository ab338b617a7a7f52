"""Effects of a reconciliation: the pods, rosters and deletions that the status requires and the cluster lacks.

Level-triggered: the next reconciliation repeats a lost effect. Only creates follow from a change of the status, so
none is sent twice, even if its answer was lost. The status receives its roster numbers and its metrics for people.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import ROUND_CEILING, Context

from cpr_contract import env
from cpr_contract.processor import PRECISION_EMULATED
from cpr_contract.reports import IDS_SPELLED_TWICE, SPILL_UNAVAILABLE, TrainerReport, TrainerState
from cpr_operator.api.cprjob_spec import CPRJobSpec
from cpr_operator.api.frozen_settings import replay_in_force, sparse_updates
from cpr_operator.api.progress_status import HistoryPoint
from cpr_operator.api.status import MAX_HISTORY, TERMINAL_PHASES, Scale, Shard, Shown, Status, Trainer
from cpr_operator.clocks import elapsed_s
from cpr_operator.cluster.protocol import Manifest, PodPatch
from cpr_operator.cluster.views import PodView
from cpr_operator.desired.names import JobId, pod_labels
from cpr_operator.desired.pod import PodPlan, grace_s, pod_manifest, spare_manifest
from cpr_operator.desired.rosters import Rosters
from cpr_operator.policy.plan import duration
from cpr_operator.reconcile.members import M
from cpr_operator.reconcile.save_plan import plan_events
from cpr_operator.reconcile.spares import as_members, is_spare, superfluous
from cpr_operator.reconcile.time_account import with_goodput
from cpr_operator.reconcile.types import Outcome, PodDelete, ReconcileInput, ReconcileState
from cpr_operator.recovery.account import account_of

#: Phases of a pod that may have a running process.
LIVE_PHASES = frozenset({"Pending", "Running", "Unknown"})
#: The pause before the next reconciliation grows to this part of the time waited so far.
BACKOFF = 0.1
#: A job without rollbacks has about this many points of history at its end. The rest of the list is for repetitions.
POINTS = 80
_FOUR_DIGITS_UP = Context(prec=4, rounding=ROUND_CEILING)


def outcome(state: ReconcileState) -> Outcome:
    """Return the effects of a state: its status, and everything that the cluster lacks of it."""
    observed = state.observed
    status = stamped(state.before, state.status)
    status = with_history(state.before, status.evolve(observed_generation=observed.job.spec_generation))
    status = with_shown(with_goodput(state, status), observed.job.id.name)
    _check_order(state.before, status)
    active = status.phase not in TERMINAL_PHASES and status.phase not in {"Pending", "Suspending", "Suspended"}
    stalled = status.phase == "Running" and _is_stalled(observed, status.members)
    return Outcome(
        status=status,
        creates=tuple(creates(observed, status)) if active else (),
        deletes=tuple(deletes(observed, status)) if state.deletes is None else state.deletes,
        rosters=tuple(rosters(observed, status)) if active or status.phase == "Suspending" else (),
        needs_prerequisites=active,
        events=(*state.events, *plan_events(state.before, status)),
        # Training stands still until a member is found hung and replaced.
        wake_after_s=observed.timing.changing_s / 2 if stalled else _wake_after(state.to(status)),
        stalled=stalled,
    )


def stamped(before: Status, after: Status) -> Status:
    """Return `after` with the next roster number on all members with a changed roster."""
    number = before.counters.roster + 1
    old, new = (Rosters(s.evolve(counters=s.counters.evolve(roster=0))) for s in (before, after))

    def stamp(member: M, *, unchanged: bool) -> M:
        return member if unchanged else member.evolve(roster=number)

    contents = {s.index: old.shard(s, s.incarnation) for s in before.shards}
    shards = tuple(stamp(s, unchanged=contents.get(s.index) == new.shard(s, s.incarnation)) for s in after.shards)
    incarnations = {t.index: t.incarnation for t in before.trainers}
    # Rosters of trainers list every member: they are compared once for all trainers.
    same = old.for_trainers == new.for_trainers
    trainers = tuple(stamp(t, unchanged=same and incarnations.get(t.index) == t.incarnation) for t in after.trainers)
    if shards == after.shards and trainers == after.trainers:
        return after
    return after.evolve(shards=shards, trainers=trainers, counters=after.counters.evolve(roster=number))


def with_history(before: Status, status: Status) -> Status:
    """Return the status with one more point if a new report shows that the job has trained on, or was rolled back."""
    progress = status.progress
    if progress.updated is None or progress.updated == before.progress.updated or not progress.total_samples:
        return status
    if status.history:
        further = progress.samples - status.history[-1].samples
        if 0 <= further * POINTS < progress.total_samples:
            return status
    points = status.history
    if len(points) >= MAX_HISTORY:
        # Every second point stays, the last one, and the first of each generation: rollbacks stay in place.
        thinned = [
            here
            for place, here in enumerate(points)
            if place % 2 == 0 or here.generation != points[place - 1].generation or place + 1 == len(points)
        ]
        points = tuple(thinned[-MAX_HISTORY + 1 :])
    return status.evolve(history=(*points, point(status, progress.updated)))


def point(status: Status, now: float) -> HistoryPoint:
    """Return the job's state as a point of its history, with six digits because many points are kept."""
    progress, plan, budget = status.progress, status.plan, status.budget
    # A report has its metrics in the order of the labels, with several as LABEL.calibration: the first one's counts.
    calibrations = (value for name, value in progress.metrics.items() if name.rpartition(".")[2] == "calibration")
    return HistoryPoint(
        time=round(now, 3),
        samples=progress.samples,
        samples_per_second=_short(progress.samples_per_second),
        loss=_short(progress.loss),
        logloss=_short(progress.logloss),
        auc=_short(progress.auc),
        calibration=_short(next(calibrations, None)),
        spent=_short(budget.spent if budget else None),
        saved_samples=status.anchors[-1].samples if status.anchors else 0,
        interval_seconds=_short(plan.interval_seconds if plan else None),
        mode=plan.mode if plan else None,
        shards=len(status.shards),
        trainers=len(status.trainers),
        generation=status.counters.generation,
    )


def with_shown(status: Status, job_name: str) -> Status:
    """Return the status with its metrics for people, rounded and with units, and the subresource scale."""
    progress, plan, budget = status.progress, status.plan, status.budget
    ratio = None if status.goodput is None else status.goodput.ratio
    is_running = status.phase == "Running"
    speed, eta_s = (progress.samples_per_second, progress.eta_seconds) if is_running else (None, None)
    shown_progress = f"{progress.percent}%" if progress.total_samples else ""
    if status.data is not None and status.has_open_data:
        shown_progress = f"lag {status.data.lag_samples}" if status.data.lag_samples else "caught up"
    shown = Shown(
        progress=shown_progress,
        interval=duration(plan.interval_seconds) if plan else "",
        spent=_portion(budget.spent) if budget else "",
        limit=_portion(budget.limit) if budget else "",
        auc="" if progress.auc is None else f"{progress.auc:.4f}",
        speed="" if speed is None else f"{speed:.0f}/s",
        eta="" if eta_s is None else duration(eta_s),
        goodput="" if ratio is None else f"{ratio:.1%}",
    )
    selector = f"{env.LABEL_JOB}={job_name},{env.LABEL_ROLE}={env.ROLE_TRAINER}"
    return status.evolve(shown=shown, scale=Scale(replicas=len(status.trainers), selector=selector))


def creates(observed: ReconcileInput, after: Status) -> Iterator[Manifest]:
    """Yield the pods of new incarnations without a spare's pod, those with a refused create, and spares."""
    if after.runtime is None:
        return
    before = {(m.role, m.index): m.incarnation for m in observed.before.members}
    plan, documents = pod_plan(observed.job.id, observed.job.spec, after), Rosters(after)
    for member in after.members:
        decided = before.get((member.role, member.index)) != member.incarnation
        if not member.uid and (decided or member.pod in observed.refusals):
            yield pod_manifest(plan, documents.document(member, member.incarnation), member.avoid)
    known = {spare.number for spare in observed.before.spares}
    for spare in after.spares:
        if spare.number not in known or (not spare.uid and spare.pod in observed.refusals):
            yield spare_manifest(plan, spare.pod)


def pod_plan(job: JobId, spec: CPRJobSpec, status: Status) -> PodPlan:
    """Return the input of the job's pods, as it was fixed when the job started."""
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
        updates=sparse_updates(spec, status.runtime).mode,
        restart_rules=status.runtime.restart_rules,
        pod_group=status.runtime.pod_group,
        encrypted=bool(status.runtime.ca),
        issued_ca=status.runtime.issued_ca,
    )


def deletes(observed: ReconcileInput, after: Status) -> Iterator[PodDelete]:
    """Yield pods of earlier incarnations that run, ended ones but the last, for its log, and superfluous spares."""
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
        yield PodDelete(pod.name, pod.uid, "it is no longer a spare")


def rosters(observed: ReconcileInput, after: Status) -> Iterator[PodPatch]:
    """Yield patches of pods with an older roster: promoted spares with their new labels, trainers, shards.

    Fenced-off pods follow last. At the start trainers get one roster, when all addresses are known. A shard that may
    still flush gets none.
    """
    members: Mapping[tuple[str, int], Shard | Trainer] = {(m.role, m.index): m for m in after.members}
    flushing = {shard.predecessor.uid for shard in after.shards if shard.predecessor}
    documents = Rosters(after)
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
            yield PodPatch(pod.name, pod.uid, documents.document(member, pod.incarnation).annotations, labels)


def live_pods(pods: tuple[PodView, ...]) -> tuple[PodView, ...]:
    """Return the pods that may have a running process."""
    return tuple(pod for pod in pods if pod.phase in LIVE_PHASES)


def works(pod: PodView) -> bool:
    """Return whether a pod runs or starts, and will not be deleted."""
    return pod.phase in LIVE_PHASES and not pod.ended and pod.deleting_until is None


def _check_order(before: Status, after: Status) -> None:
    """Assert the order of the job's history, on which restores, rosters and the budget rely."""
    old, new = before.counters, after.counters
    assert new.generation >= old.generation, f"the generation fell from {old.generation} to {new.generation}"
    assert new.group >= old.group, f"the group fell from {old.group} to {new.group}"
    assert new.roster >= old.roster, f"the roster fell from {old.roster} to {new.roster}"
    earlier = {(member.role, member.index): member.incarnation for member in before.members}
    for member in after.members:
        last = earlier.get((member.role, member.index), 0)
        assert member.incarnation >= last, f"{member.name} fell from incarnation {last} to {member.incarnation}"
    if new.generation == old.generation and before.ledger.ranges != after.ledger.ranges:
        charged = account_of(before).ledger.spent, account_of(after).ledger.spent
        assert charged[0] <= charged[1], f"losses fell from {charged[0]} to {charged[1]} sample-shards in a generation"


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def _portion(value: float) -> str:
    """Return a portion, rounded up: the printed spent budget, used as a limit, allows the losses."""
    return f"{_FOUR_DIGITS_UP.create_decimal(repr(value)).normalize():f}"


def _wake_after(state: ReconcileState) -> float | None:
    """Return the pause: short while the job changes, longer the longer that takes, long while the job trains."""
    timing, status = state.observed.timing, state.status
    phase = status.phase
    if phase == "Suspended" and status.resume_at is not None:
        return max(timing.changing_s, min(timing.running_s, status.resume_at - state.now))
    if phase in {"Suspended", "Pending"}:
        # A resized job starts at once. If it is still suspended after that, something keeps it from its start.
        again_s = 0.0 if state.before.phase == "Suspending" else timing.changing_s
        return timing.running_s if phase == "Pending" or state.spec.suspend else again_s
    if phase == "Running" and state.leader_report is None:
        return timing.changing_s
    if phase == "Running":  # knowledge of saves should not be older than the saves are
        dense_s = float(state.spec.snapshots.dense_interval_seconds)
        interval_s = min(status.plan.interval_seconds, dense_s) if status.plan else dense_s
        return max(timing.floor_s, min(timing.running_s, interval_s / 2))
    if phase in TERMINAL_PHASES or phase in {"Finishing", "Suspending"} or status.aligning:
        return timing.changing_s
    since = status.recovery.since if status.recovery else status.start_time or state.now
    return min(max(timing.changing_s, BACKOFF * elapsed_s(since, state.now)), timing.running_s)


def _is_stalled(observed: ReconcileInput, members: Sequence[Shard | Trainer]) -> bool:
    """Return whether training stands still because a trainer waits for members, and not for the store.

    The report may name no member yet. Or a member that should work is unresponsive in too few reports to replace it.
    """
    reports = observed.reports.values()
    paused = (r.problem for r in reports if isinstance(r, TrainerReport) and r.state is TrainerState.PAUSED)
    harmless = {PRECISION_EMULATED, SPILL_UNAVAILABLE, IDS_SPELLED_TWICE}
    missed = {name for report in reports for name in report.silent}
    waits = any(problem is None or problem.reason in harmless for problem in paused)
    return waits or any(member.name in missed and member.state != "Finished" for member in members)
