"""Choose the pods to poll for reports: the leader alone while a job trains, all members otherwise."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from cpr_contract.reports import Recorded, ShardReport, TrainerReport
from cpr_contract.spec import steps_in
from cpr_operator.api.frozen_settings import replay_in_force
from cpr_operator.api.status import TERMINAL_PHASES, Member, Shard, Status, Trainer
from cpr_operator.clocks import elapsed_s
from cpr_operator.cluster.views import PodView
from cpr_operator.failures import classify
from cpr_operator.reconcile.observe import is_current, is_settled, observe, takes_part
from cpr_operator.reconcile.spares import waiting
from cpr_operator.reconcile.types import Lost, ReconcileInput

#: Seconds after which the events of the namespace are read for a pod that does not start.
UNEXPLAINED_S = 10.0
#: A shard is polled if its last save is this many times as old as planned: only its own report has the reason.
LATE = 3
#: Seconds between two polls of all shards for the counts of dynamic tables.
TABLES_S = 60.0

_QUIET = TERMINAL_PHASES | {"Pending", "Suspending", "Suspended"}


def first_round(observed: ReconcileInput) -> tuple[PodView, ...]:
    """Return the leader, members that may not work, spares, and some shards.

    These are shards with overdue saves, those with a problem, until they report none, and all if the counts of dynamic
    tables are overdue. Return all members if the leader did not answer the last time: its deadline is not awaited
    again. Once a job has succeeded, only the leader is polled, which may wait until its last report is acknowledged.
    """
    status = observed.before
    if status.phase == "Succeeded":
        return _pods(observed, [m for m in status.trainers if _leads(observed, m)])
    if status.phase in _QUIET:
        return ()
    members = status.members
    tables_overdue = _tables_overdue(observed)
    needed = [
        m
        for m in members
        if not is_settled(m)
        or _leads(observed, m)
        or (isinstance(m, Shard) and (tables_overdue or m.problem or _saves_late(status, m)))
    ]
    return (*_pods(observed, members if observed.leader_unresponsive else needed), *_answering(waiting(observed)))


def second_round(observed: ReconcileInput) -> tuple[PodView, ...]:
    """Return all others, if the leader does not report the position of training, or misses a member that works.

    Return all trainers if they may have to replay losses of a shard: each one reports only its own part. Members that
    restarted in place are polled, too: only their own reports have the duration.
    """
    status = observed.before
    if status.phase in _QUIET:
        return ()
    leader = next((m for m in status.trainers if _leads(observed, m)), None)
    report = observed.reports.get(leader.uid) if leader else None
    settled = {m.name: m for m in status.members if is_settled(m)}
    unresponsive, overdue = (set(report.silent), set(report.overdue)) if report else (set(), set())
    if isinstance(report, TrainerReport) and takes_part(report) and not settled.keys() & (unresponsive | overdue):
        replays, restarted = _may_replay(observed), _restarted(observed, report)
        settled = {n: m for n, m in settled.items() if (replays and isinstance(m, Trainer)) or n in restarted}
    polled = {pod.uid for pod in first_round(observed)}
    # A member with only an overdue heartbeat would delay the reconciliation: `suspects` has it.
    needed = [m for name, m in settled.items() if name in unresponsive or name not in overdue]
    return tuple(pod for pod in _pods(observed, needed) if pod.uid not in polled)


def suspects(observed: ReconcileInput) -> tuple[PodView, ...]:
    """Return the working members' pods of a node that may be lost, because heartbeats of some of them are overdue.

    Return none if heartbeats from several nodes are overdue, or a member of the node answers.
    """
    reports = [report for report in observed.reports.values() if is_current(observed.before, report)]
    overdue = {name for report in reports for name in report.overdue}
    settled = [m for m in observed.before.members if is_settled(m)]
    nodes = {m.node for m in settled if m.name in overdue}
    answered = {m.node for m in observed.before.members if m.uid in observed.reports}
    if len(nodes) != 1 or "" in nodes or nodes & answered:
        return ()
    return _pods(observed, [m for m in settled if m.node in nodes])


def missed_by_peers(observed: ReconcileInput) -> frozenset[str]:
    """Return the uids of members that work, as far as known, but are unresponsive or overdue in some report.

    A member that starts or restores is not among them: it may well answer, and only its own report has its progress.
    """
    missed = {name for report in observed.reports.values() for name in (*report.silent, *report.overdue)}
    return frozenset(m.uid for m in observed.before.members if is_settled(m) and m.name in missed)


def unexplained(observed: ReconcileInput) -> tuple[PodView, ...]:
    """Return the members' pods that have a node and do not start, without a reason in their containers."""
    since, names = observed.now - UNEXPLAINED_S, {m.pod for m in observed.before.members}
    pending = (pod for pod in observed.pods if pod.phase == "Pending" and pod.node and pod.created <= since)
    return tuple(pod for pod in pending if pod.name in names and classify(pod) is None)


def unreported_ends(observed: ReconcileInput) -> frozenset[str]:
    """Return the uids of unresponsive trainers if every shard that answers has applied their last step.

    They have most likely ended. Their kubelets report it a moment later, unless the node is lost: after an outage of
    the API server, reports of shards arrive before the news of kubelets. With `earlyStop` any step can be the last one,
    if all trainers are unresponsive after the same step.
    """
    status = observed.before
    total = 0 if status.has_open_data else status.known_samples  # trainers that wait for data do not end
    current = [report for report in observed.reports.values() if is_current(status, report)]
    shards = [report.applied for report in current if isinstance(report, ShardReport)]
    if not total or not shards:
        return frozenset()
    unresponsive = {name for report in current for name in report.silent}
    last = steps_in(total, observed.job.spec.data.batch_size)
    if observed.job.spec.evaluation.early_stop is not None and all(t.name in unresponsive for t in status.trainers):
        last = max((step for applied in shards for step in applied), default=0)
    ended = (t for t in status.trainers if t.name in unresponsive and not t.node == observed.lost_node != "")
    return frozenset(t.uid for t in ended if all(applied[t.index : t.index + 1] == (last,) for applied in shards))


def recorded_in(status: Status) -> Recorded:
    """Return the part of the leader's reports that the status holds: the next request for a report carries it."""
    held_out = status.progress.held_out
    anchor = status.anchors[-1].key if status.anchors else ""
    return Recorded(status.counters.generation, anchor, held_out.step if held_out else 0)


def _pods(observed: ReconcileInput, members: Sequence[Shard | Trainer]) -> tuple[PodView, ...]:
    """Return the members' pods that can answer. A member that was just created is found by its pod's name."""
    names = {m.pod for m in members}
    return _answering(pod for pod in observed.pods if pod.name in names)


def _answering(pods: Iterable[PodView]) -> tuple[PodView, ...]:
    return tuple(pod for pod in pods if pod.host and pod.phase == "Running")


def _leads(observed: ReconcileInput, member: Member) -> bool:
    return isinstance(member, Trainer) and member.index == observed.before.leader


def _tables_overdue(observed: ReconcileInput) -> bool:
    """Return whether the job has dynamic tables, and their counts are old."""
    known = observed.before.tables
    if known:
        return elapsed_s(known[0].updated, observed.now) >= TABLES_S
    return any(table.ids == "Dynamic" for table in observed.job.spec.model.tables)


def _saves_late(status: Status, member: Shard) -> bool:
    """Return whether much more was trained since a shard's last save than the plan expects between two of them."""
    plan, speed = status.plan, status.policy.samples_per_second
    if plan is None or speed is None:
        return False
    usual_s = plan.interval_seconds + plan.inputs.get("commitSeconds", 0.0)
    return status.progress.samples - member.saved_samples > LATE * usual_s * speed


def _may_replay(observed: ReconcileInput) -> bool:
    """Return whether a shard is lost, or waits for leave to restore, in a job with replay."""
    if not replay_in_force(observed.job.spec, observed.before).enabled:
        return False
    facts = observe(observed)
    return any(
        isinstance(facts[shard.name], Lost) or shard.predecessor is not None or shard.state == "BelowFloor"
        for shard in observed.before.shards
    )


def _restarted(observed: ReconcileInput, leader: TrainerReport) -> Collection[str]:
    """Return members that restarted in place and have not reported the duration, or that only the leader reports."""
    status = observed.before
    numbers = {m.name: m.incarnation for m in status.members}
    unreported = {
        name
        for f in status.failures
        if f.process and f.recovery_seconds is None and numbers.get(name := f"{f.role}/{f.index}") == f.incarnation
    }
    counts = zip(status.shards, leader.shard_lives, strict=False)
    return unreported | {shard.name for shard, count in counts if count > max(shard.processes, 1)}
