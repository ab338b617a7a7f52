"""What a pass sees of the members: whom to ask, what reports are worth, and one fact per member."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from cpr_contract.manifests import generation_prefix
from cpr_contract.reports import ExitCode, Recorded, SaveRef, ShardReport, TrainerReport, TrainerState
from cpr_contract.spec import steps_in
from cpr_operator.api.frozen_settings import replay_in_force
from cpr_operator.api.status import TERMINAL_PHASES, Anchor, Member, Shard, Status, Trainer
from cpr_operator.cluster.views import GRACE_SLACK_S, PodView
from cpr_operator.failures import Failure, Trouble, classify, forgetful, hung, warned
from cpr_operator.reconcile.silence import HungEvidence, Peer, find_hung, with_unwatched
from cpr_operator.reconcile.spare_pods import as_members, waiting
from cpr_operator.reconcile.types import (
    Active,
    Done,
    Fact,
    Lost,
    NeverSeen,
    NoPod,
    ReconcileInput,
    ReconcileState,
    Terminating,
)

#: States in which a trainer takes part in training; in any other it starts, or is not there.
TRAINING_STATES = frozenset({"Training", "Meeting", "Paused", "Finishing", "Finished"})


#: States of a leader's report that show its group at work.
AT_WORK = frozenset({TrainerState.TRAINING, TrainerState.MEETING, TrainerState.FINISHING, TrainerState.FINISHED})
_QUIET = TERMINAL_PHASES | {"Pending", "Suspending", "Suspended"}
#: Seconds after which a pod that does not start is looked up in the events of its namespace.
UNEXPLAINED_S = 10.0
#: A shard is asked if its last save is this many times as old as planned: it alone knows why.
LATE = 3


def is_settled(member: Shard | Trainer) -> bool:
    """Whether it works and has told all it has to: it is no part of a recovery or of a start."""
    working = member.state == "Ready" if isinstance(member, Shard) else member.state in TRAINING_STATES
    return working and member.lost_at is None


def begin(observed: ReconcileInput) -> ReconcileState:
    """The state that a pass over a job with pods begins with."""
    return ReconcileState(observed, observed.before, observe(observed))


def observe(observed: ReconcileInput) -> Mapping[str, Fact]:
    """One fact per member, by its name."""
    status = observed.before
    pods = {(pod.role, pod.index, pod.incarnation): pod for pod in as_members(observed.pods, status)}
    members = {m.name: m for m in status.members}
    facts = {name: _fact(observed, member, pods) for name, member in members.items()}
    for name, evidence in _silent(observed, members, facts).items():
        match facts[name]:
            case Active(pod=pod) | Terminating(pod=pod):
                facts[name] = Lost(pod, hung(evidence.witnesses, evidence.same_node))
            case _:
                pass
    return facts


def _fact(observed: ReconcileInput, member: Shard | Trainer, pods: Mapping[tuple[str, int, int], PodView]) -> Fact:
    pod = pods.get((member.role, member.index, member.incarnation))
    if member.incarnation == 0:
        return NoPod()
    if pod is None and not member.uid:
        return NeverSeen(observed.refusals.get(member.pod, ""))
    if pod is None and member.state == "Finished":
        return Done("")
    match classify(pod):
        case Failure() as failure:
            until = pod.deleting_until if pod else None
            going = not failure.ended and until is not None and observed.now < until + GRACE_SLACK_S
            return Terminating(pod, failure, until) if going and pod and until else Lost(pod, failure)
        case trouble:
            return _unharmed(observed, member, pod, trouble) if pod else NoPod()


def _unharmed(observed: ReconcileInput, member: Shard | Trainer, pod: PodView, trouble: Trouble | None) -> Fact:
    container = pod.container
    if container is not None and container.kind == "Terminated" and container.exit_code == ExitCode.OK:
        return Done(container.message)
    report = observed.report_of(member)
    # Each container has had a life at least. One that counts fewer does not know of those before it.
    if isinstance(report, ShardReport) and report.lives <= pod.restarts:
        return Lost(pod, forgetful(pod))
    warning = observed.warnings.get(pod.uid) if pod.phase == "Pending" else None
    return Active(pod, trouble or (warned(warning) if warning else None))


def unexplained(observed: ReconcileInput) -> tuple[PodView, ...]:
    """Pods of members that have a node and do not start, and whose containers do not say why."""
    since, names = observed.now - UNEXPLAINED_S, {m.pod for m in observed.before.members}
    waiting = (pod for pod in observed.pods if pod.phase == "Pending" and pod.node and pod.created <= since)
    return tuple(pod for pod in waiting if pod.name in names and classify(pod) is None)


def _silent(
    observed: ReconcileInput, members: Mapping[str, Shard | Trainer], facts: Mapping[str, Fact]
) -> Mapping[str, HungEvidence]:
    """Members that are hung by the word of their peers' reports of the present generation."""
    gone = _gone(observed, members, facts)
    ending = {name for name, member in members.items() if member.uid in observed.ending}
    missed: dict[str, tuple[str, ...]] = {}
    for name, fact in facts.items():
        report = observed.reports.get(members[name].uid) if isinstance(fact, Active) else None
        if report is None or not is_current(observed.before, report):
            continue
        if names := {*report.silent, *(name for name in report.overdue if name in gone)} - ending:
            missed[name] = tuple(names)
    if not missed:
        return {}
    living = {name: members[name] for name, fact in facts.items() if isinstance(fact, Active | Terminating)}
    peers = {
        # A replacement misses no heartbeat until it has joined, so its word is not waited for, nor one of a lost node.
        name: Peer(
            role=m.role,
            node=m.node,
            settled=is_settled(m),
            listens=isinstance(facts[name], Active) and m.lost_at is None and name not in gone,
        )
        for name, m in living.items()
    }
    return with_unwatched(find_hung(peers, missed, _failed_nodes(observed, members)), peers, gone)


def _gone(
    observed: ReconcileInput, members: Mapping[str, Shard | Trainer], facts: Mapping[str, Fact]
) -> Collection[str]:
    """Members of a lost node, once the heartbeats of all of them that work are overdue.

    Nobody there is only slow, so an overdue heartbeat is enough. They become overdue within a step of each other, and
    are one decision: the last one is waited for, but no shard's if no trainer is left to hear it.
    """
    gone = {name for name, member in members.items() if member.node == observed.lost_node != ""}
    if not gone:
        return gone
    reports = [report for report in observed.reports.values() if is_current(observed.before, report)]
    overdue = {name for report in reports for name in report.overdue}
    kinds = (Shard, Trainer) if any(isinstance(report, TrainerReport) for report in reports) else Trainer
    working = {
        name
        for name in gone
        if isinstance(facts[name], Active) and is_settled(member := members[name]) and isinstance(member, kinds)
    }
    ending = {name for name in gone if members[name].uid in observed.ending}
    return gone if working - ending <= overdue else ()


def unreported_ends(observed: ReconcileInput) -> frozenset[str]:
    """The uids of trainers that are silent, and whose last step every shard that answers has applied.

    They have most likely ended. Their kubelets tell of it a moment later, unless the node is lost: after an outage of
    the API server, reports of shards arrive before the news of kubelets. With `earlyStop` any step can be the last one,
    if all trainers are silent after the same.
    """
    status = observed.before
    total = status.ledger.total_samples
    current = [report for report in observed.reports.values() if is_current(status, report)]
    shards = [report.applied for report in current if isinstance(report, ShardReport)]
    if not total or not shards:
        return frozenset()
    silent = {name for report in current for name in report.silent}
    last = steps_in(total, observed.job.spec.data.batch_size)
    if observed.job.spec.evaluation.early_stop is not None and all(t.name in silent for t in status.trainers):
        last = max((step for applied in shards for step in applied), default=0)
    ended = (t for t in status.trainers if t.name in silent and not t.node == observed.lost_node != "")
    return frozenset(t.uid for t in ended if all(applied[t.index : t.index + 1] == (last,) for applied in shards))


def _failed_nodes(observed: ReconcileInput, members: Mapping[str, Shard | Trainer]) -> Mapping[str, str]:
    """Nodes on which a member fell silent so lately that others there may have done so at the same moment."""
    silence_s = observed.job.spec.failure_policy.silence_seconds
    return {
        m.avoid: name
        for name, m in members.items()
        if m.avoid and m.lost_at is not None and observed.now - m.lost_at <= silence_s
    }


def recorded_in(status: Status) -> Recorded:
    """What the status, as it was read, holds of the leader's reports: the leader is told when it is asked again."""
    held_out = status.progress.held_out
    anchor = status.anchors[-1].key if status.anchors else ""
    return Recorded(status.counters.generation, anchor, held_out.step if held_out else 0)


def is_current(status: Status, report: ShardReport | TrainerReport) -> bool:
    """Whether the report is about the present generation."""
    return report.counters.generation == status.counters.generation


def takes_part(report: TrainerReport) -> bool:
    """Whether the trainer holds the dense state and knows how far training is: a newcomer does not, until it joined."""
    return report.state in TRAINING_STATES and (report.state is not TrainerState.PAUSED or report.samples_started > 0)


def is_premature(state: ReconcileState, leader: TrainerReport) -> bool:
    """Whether a leader says that it is at work before any shard serves its generation: that is of the one before.

    The state holds what shards told in this pass. If none of them answered, the leader is believed.
    """
    told = any(isinstance(state.report_of(shard), ShardReport) for shard in state.status.shards)
    serving = any(shard.state == "Ready" for shard in state.status.shards)
    return leader.state in AT_WORK and leader.result is None and told and not serving


def start_anchor(status: Status) -> Anchor | None:
    """The anchor that this generation started from; None: step 0."""
    return status.forks[-1].anchor if status.forks else None


def on_lineage(status: Status, uid: str, save: SaveRef) -> bool:
    """Whether a save is of this generation of the job `uid`, or of where that started."""
    origin = start_anchor(status)
    prefix = generation_prefix(uid, status.counters.generation) + "/"
    return save.key.startswith(prefix) or save.samples == (origin.samples if origin else 0)


def first_round(observed: ReconcileInput) -> tuple[PodView, ...]:
    """The leader, members that are not known to work, shards whose saves are overdue, and spares.

    All members, if the leader did not answer the last time: its deadline is not waited for again. Of a job that
    succeeded the leader, which may wait until it hears that its last report is recorded.
    """
    status = observed.before
    if status.phase == "Succeeded":
        return _pods(observed, [m for m in status.trainers if _leads(observed, m)])
    if status.phase in _QUIET:
        return ()
    members = observed.before.members
    wanted = [m for m in members if not is_settled(m) or _leads(observed, m) or _saves_late(status, m)]
    return (*_pods(observed, members if observed.leader_unresponsive else wanted), *_answering(waiting(observed)))


def second_round(observed: ReconcileInput) -> tuple[PodView, ...]:
    """All others, if the leader cannot tell how far training is, or misses a member that works.

    All trainers, if they may have to push again what a shard has lost: each one knows that of itself alone. And members
    that have gone on in place, which alone know how long that took.
    """
    status = observed.before
    if status.phase in _QUIET:
        return ()
    leader = next((m for m in status.trainers if _leads(observed, m)), None)
    report = observed.reports.get(leader.uid) if leader else None
    settled = {m.name: m for m in observed.before.members if is_settled(m)}
    silent, overdue = (set(report.silent), set(report.overdue)) if report else (set(), set())
    if isinstance(report, TrainerReport) and takes_part(report) and not settled.keys() & (silent | overdue):
        replays, restarted = _may_replay(observed), _restarted(observed, report)
        settled = {n: m for n, m in settled.items() if (replays and isinstance(m, Trainer)) or n in restarted}
    asked = {pod.uid for pod in first_round(observed)}
    # One whose heartbeat is overdue would only hold up the pass: `suspects` sees to it.
    wanted = [m for name, m in settled.items() if name in silent or name not in overdue]
    return tuple(pod for pod in _pods(observed, wanted) if pod.uid not in asked)


def suspects(observed: ReconcileInput) -> tuple[PodView, ...]:
    """Pods by which to tell whether a node is lost: of all members that work there, if heartbeats of some are overdue.

    None if heartbeats from several nodes are overdue, or a member on their node answers.
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
    """The uids of members that work, as far as known, but that some report calls silent or overdue.

    A member that starts or restores is not among them: it may well answer, and only it knows how far it is.
    """
    missed = {name for report in observed.reports.values() for name in (*report.silent, *report.overdue)}
    return frozenset(m.uid for m in observed.before.members if is_settled(m) and m.name in missed)


def _pods(observed: ReconcileInput, members: Sequence[Shard | Trainer]) -> tuple[PodView, ...]:
    """Those whose process runs and has an address; a member that was just created is known by its name."""
    names = {m.pod for m in members}
    return _answering(pod for pod in observed.pods if pod.name in names)


def _answering(pods: Iterable[PodView]) -> tuple[PodView, ...]:
    return tuple(pod for pod in pods if pod.host and pod.phase == "Running")


def _restarted(observed: ReconcileInput, leader: TrainerReport) -> Collection[str]:
    """Members that went on in place and have not told yet how long that took, or that only the leader knows of."""
    status = observed.before
    numbers = {m.name: m.incarnation for m in status.members}
    untold = {
        name
        for f in status.failures
        if f.life and f.recovery_seconds is None and numbers.get(name := f"{f.role}/{f.index}") == f.incarnation
    }
    lives = zip(status.shards, leader.shard_lives, strict=False)
    return untold | {shard.name for shard, life in lives if life > max(shard.lives, 1)}


def _may_replay(observed: ReconcileInput) -> bool:
    """Whether a shard is lost, or waits for leave to restore, in a job whose trainers push again what it lacks."""
    if not replay_in_force(observed.job.spec, observed.before).enabled:
        return False
    facts = observe(observed)
    return any(
        isinstance(facts[shard.name], Lost) or shard.predecessor is not None or shard.state == "BelowFloor"
        for shard in observed.before.shards
    )


def _saves_late(status: Status, member: Member) -> bool:
    """Whether much more was trained since a shard's last save than the plan expects between two of them."""
    plan, speed = status.plan, status.policy.samples_per_second
    if not isinstance(member, Shard) or plan is None or speed is None:
        return False
    usual_s = plan.interval_seconds + plan.inputs.get("commitSeconds", 0.0)
    return status.progress.samples - member.saved_samples > LATE * usual_s * speed


def _leads(observed: ReconcileInput, member: Member) -> bool:
    return isinstance(member, Trainer) and member.index == observed.before.leader
