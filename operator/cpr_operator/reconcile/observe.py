"""Observe the members of a job: one fact per member, from its pod, its report and the reports of its peers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from cpr_contract.manifests import generation_prefix
from cpr_contract.reports import ExitCode, SaveRef, ShardReport, TrainerReport, TrainerState
from cpr_operator.api.status import Shard, Status, Trainer
from cpr_operator.cluster.views import GRACE_SLACK_S, PodView
from cpr_operator.desired.names import Role
from cpr_operator.desired.rosters import start_anchor
from cpr_operator.failures import Failure, Trouble, classify, failure_of, hung, restarted
from cpr_operator.reconcile.spares import as_members
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

#: States in which a trainer takes part in training; in any other it starts, or does not exist.
TRAINING_STATES = frozenset({"Training", "Meeting", "Paused", "Finishing", "Finished"})
#: States of a leader's report that show its group at work.
AT_WORK = frozenset({TrainerState.TRAINING, TrainerState.MEETING, TrainerState.FINISHING, TrainerState.FINISHED})
#: The number of peers that must miss a member's heartbeats before it counts as hung, if that many could.
WITNESSES = 2


@dataclass(frozen=True, slots=True)
class Peer:
    """An active member, which may be unresponsive or report others as unresponsive.

    node: the member's node, empty if unknown.
    settled: it can be found hung. Other members may still start or restore.
    watches: it takes part in training, so it would miss the heartbeats of others.
    """

    role: Role
    node: str
    settled: bool
    watches: bool


@dataclass(frozen=True, slots=True)
class HungEvidence:
    """The reason why a member counts as hung.

    witnesses: the members that report it as unresponsive; none if no member is left that could.
    same_node: another unresponsive member on the same node; empty if there is none.
    """

    witnesses: tuple[str, ...]
    same_node: str = ""


def begin(observed: ReconcileInput) -> ReconcileState:
    """Return the first state of the reconciliation of a job with pods."""
    return ReconcileState(observed, observed.before, observe(observed))


def observe(observed: ReconcileInput) -> Mapping[str, Fact]:
    """Return one fact per member, by its name."""
    status = observed.before
    pods = {(pod.role, pod.index, pod.incarnation): pod for pod in as_members(observed.pods, status)}
    members = {m.name: m for m in status.members}
    facts = {name: _fact(observed, member, pods) for name, member in members.items()}
    for name, evidence in _hung(observed, members, facts).items():
        match facts[name]:
            case Active(pod=pod) | Terminating(pod=pod):
                facts[name] = Lost(pod, hung(evidence.witnesses, evidence.same_node))
            case _:
                pass
    return facts


def is_settled(member: Shard | Trainer) -> bool:
    """Return whether the member works and has reported everything: no recovery or start concerns it."""
    working = member.state == "Ready" if isinstance(member, Shard) else member.state in TRAINING_STATES
    return working and member.lost_at is None


def is_current(status: Status, report: ShardReport | TrainerReport) -> bool:
    """Return whether the report is about the present generation."""
    return report.counters.generation == status.counters.generation


def takes_part(report: TrainerReport) -> bool:
    """Return whether the trainer holds the dense state and the position of training: a new one does once it joined."""
    return report.state in TRAINING_STATES and (report.state is not TrainerState.PAUSED or report.samples_started > 0)


def is_premature(state: ReconcileState, leader: TrainerReport) -> bool:
    """Return whether a leader reports work before any shard serves its generation: its report is outdated then.

    The state holds the reports of shards. Without any of them the leader's report counts.
    """
    reported = any(isinstance(state.report_of(shard), ShardReport) for shard in state.status.shards)
    serving = any(shard.state == "Ready" for shard in state.status.shards)
    return leader.state in AT_WORK and leader.result is None and reported and not serving


def on_lineage(status: Status, uid: str, save: SaveRef) -> bool:
    """Return whether a save is of this generation of the job `uid`, or the one that the generation started from."""
    start = start_anchor(status)
    prefix = generation_prefix(uid, status.counters.generation) + "/"
    return save.key.startswith(prefix) or save.samples == (start.samples if start else 0)


def flush_of(observed: ReconcileInput, failure: Failure) -> SaveRef | None:
    """Return the save that a member flushed before it ended, if it is on the present generation's lineage.

    A process that ended before it read the roster of a rollback may have flushed a state that the rollback undid.
    """
    save = failure.save
    return save if save is not None and on_lineage(observed.before, observed.job.id.uid, save) else None


def end_of_predecessor(observed: ReconcileInput, shard: Shard) -> tuple[bool, Failure | None]:
    """Return whether the predecessor's pod can commit no more, and its failure, if that was seen."""
    before = shard.predecessor
    pod = observed.pods_by_uid.get(before.uid) if before else None
    failure = failure_of(pod) if pod else None
    if failure is not None and failure.ended:
        return True, failure
    # By this operator's own view of the deletion: the entry's `until` may be of another operator's clock.
    return pod is None or pod.is_stuck(observed.now), None


def find_hung(
    peers: Mapping[str, Peer], missed: Mapping[str, tuple[str, ...]], failed_nodes: Mapping[str, str]
) -> Mapping[str, HungEvidence]:
    """Return the members that hang, by name.

    A broken link has two ends, and each may report the other as unresponsive. The member that most others report is
    therefore examined first. Once it is found hung, its own reports no longer count, so a member that is cut off does
    not cause the replacement of others.

    `missed` has the reports: by the name of a member, the names of members that it misses heartbeats of.
    `failed_nodes` has the nodes on which a member has just become unresponsive, with that member's name. The time is
    proportional to the number of names in `missed`.
    """
    reporters = _reporters(peers, missed)
    found = _by_enough(peers, reporters)
    for name in tuple(_in_doubt(peers, reporters, found)):
        del found[name]
    return found | dict(_on_same_nodes(peers, reporters, found, failed_nodes))


def with_unwatched(
    found: Mapping[str, HungEvidence], peers: Mapping[str, Peer], on_lost_node: Collection[str]
) -> Mapping[str, HungEvidence]:
    """Return the hung members with the shards of a lost node that no trainer is left to watch.

    `on_lost_node` has the names of all members of that node. Only trainers watch shards. If the last trainer hangs
    there, no report will ever name the shards of its node, and the job would wait for them.
    """
    watching = {name for name, peer in peers.items() if peer.role == "trainer" and peer.watches}
    trainer = next((name for name in found if name in on_lost_node and peers[name].role == "trainer"), "")
    if not trainer or watching - found.keys():
        return found
    shards = (name for name in on_lost_node if name in peers and peers[name].role == "shard" and peers[name].settled)
    return {**{name: HungEvidence((), same_node=trainer) for name in shards}, **found}


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
            terminating = not failure.ended and until is not None and observed.now < until + GRACE_SLACK_S
            return Terminating(pod, failure, until) if terminating and pod and until else Lost(pod, failure)
        case trouble:
            return _unharmed(observed, member, pod, trouble) if pod else NoPod()


def _unharmed(observed: ReconcileInput, member: Shard | Trainer, pod: PodView, trouble: Trouble | None) -> Fact:
    container = pod.container
    if container is not None and container.kind == "Terminated" and container.exit_code == ExitCode.OK:
        return Done(container.message)
    report = observed.report_of(member)
    # Each container has had at least one process. A shard that counts fewer has lost the state of those before it, as
    # with older images.
    if isinstance(report, ShardReport) and report.lives <= pod.restarts:
        message = "the container restarted without its memory"
        return Lost(pod, replace(restarted(pod), reason="MemoryLost", message=message, ended=False))
    warning = observed.warnings.get(pod.uid) if pod.phase == "Pending" else None
    if trouble is None and warning is not None:
        remedy = "correct what the message names; the kubelet tries again"
        trouble = Trouble(warning.reason, warning.message, remedy)
    return Active(pod, trouble)


def _hung(
    observed: ReconcileInput, members: Mapping[str, Shard | Trainer], facts: Mapping[str, Fact]
) -> Mapping[str, HungEvidence]:
    """Return the members that hang by their peers' reports of the present generation."""
    on_lost_node = _on_lost_node(observed, members, facts)
    ending = {name for name, member in members.items() if member.uid in observed.ending}
    missed: dict[str, tuple[str, ...]] = {}
    for name, fact in facts.items():
        report = observed.reports.get(members[name].uid) if isinstance(fact, Active) else None
        if report is None or not is_current(observed.before, report):
            continue
        if names := {*report.silent, *(name for name in report.overdue if name in on_lost_node)} - ending:
            missed[name] = tuple(names)
    if not missed:
        return {}
    active = {name: members[name] for name, fact in facts.items() if isinstance(fact, Active | Terminating)}
    peers = {
        # A replacement misses no heartbeat until it has joined, and a member of a lost node answers no more: neither
        # is awaited as a witness.
        name: Peer(
            role=m.role,
            node=m.node,
            settled=is_settled(m),
            watches=isinstance(facts[name], Active) and m.lost_at is None and name not in on_lost_node,
        )
        for name, m in active.items()
    }
    # Others on the node of a member that failed this recently may have failed at the same moment.
    silence_s = observed.job.spec.failure_policy.silence_seconds
    lost = ((m.avoid, name, m.lost_at) for name, m in members.items() if m.avoid and m.lost_at is not None)
    failed_nodes = {node: name for node, name, lost_at in lost if observed.now - lost_at <= silence_s}
    return with_unwatched(find_hung(peers, missed, failed_nodes), peers, on_lost_node)


def _on_lost_node(
    observed: ReconcileInput, members: Mapping[str, Shard | Trainer], facts: Mapping[str, Fact]
) -> Collection[str]:
    """Return the members of a lost node, once the heartbeats of all of them that work are overdue.

    On a lost node an overdue heartbeat is enough: no member there is only slow. The heartbeats become overdue within a
    step of each other, and all members are one decision, so the last heartbeat is awaited; that of a shard only while
    a trainer is left that watches it.
    """
    names = {name for name, member in members.items() if member.node == observed.lost_node != ""}
    if not names:
        return names
    reports = [report for report in observed.reports.values() if is_current(observed.before, report)]
    overdue = {name for report in reports for name in report.overdue}
    kinds = (Shard, Trainer) if any(isinstance(report, TrainerReport) for report in reports) else Trainer
    working = {
        name
        for name in names
        if isinstance(facts[name], Active) and is_settled(member := members[name]) and isinstance(member, kinds)
    }
    ending = {name for name in names if members[name].uid in observed.ending}
    return names if working - ending <= overdue else ()


def _reporters(peers: Mapping[str, Peer], missed: Mapping[str, tuple[str, ...]]) -> Mapping[str, tuple[str, ...]]:
    """Return the members that miss each settled member. Shards watch only trainers; trainers watch all members."""
    reporters: dict[str, list[str]] = defaultdict(list)
    for witness, names in missed.items():
        for name in names:
            peer = peers.get(name)
            if peer is not None and peer.settled and name != witness and "trainer" in (peer.role, peers[witness].role):
                reporters[name].append(witness)
    return {name: tuple(witnesses) for name, witnesses in reporters.items()}


def _by_enough(peers: Mapping[str, Peer], reporters: Mapping[str, tuple[str, ...]]) -> dict[str, HungEvidence]:
    """Return members that enough others miss, without hung ones. If two miss only each other, the trainer counts.

    A shard has state that no other member has. A trainer has a copy of state that others or a save have.
    """
    found: dict[str, HungEvidence] = {}
    watching = Counter(peer.role for peer in peers.values() if peer.watches)
    for name in sorted(reporters, key=lambda name: (-len(reporters[name]), peers[name].role != "trainer")):
        peer, witnesses = peers[name], tuple(witness for witness in reporters[name] if witness not in found)
        could = watching["trainer"] + sum(not peers[witness].watches for witness in witnesses)
        if peer.role == "trainer":
            could += watching["shard"] - peer.watches
        if witnesses and len(witnesses) >= min(WITNESSES, could):
            found[name] = HungEvidence(witnesses)
            watching[peer.role] -= peer.watches
    return found


def _in_doubt(
    peers: Mapping[str, Peer], reporters: Mapping[str, tuple[str, ...]], found: Mapping[str, HungEvidence]
) -> Iterator[str]:
    """Yield members that only one witness reports, if they are most of a role and the witness is itself reported.

    The witness may be at fault. If it is, its other peers report that a moment later.
    """
    sizes, by_witness = Counter(peer.role for peer in peers.values()), defaultdict(list)
    for name, evidence in found.items():
        if len(evidence.witnesses) == 1:
            by_witness[evidence.witnesses[0], peers[name].role].append(name)
    for (witness, role), names in by_witness.items():
        if witness in reporters and len(names) > max(1, sizes[role] // 2):
            yield from names


def _on_same_nodes(
    peers: Mapping[str, Peer],
    reporters: Mapping[str, tuple[str, ...]],
    found: Mapping[str, HungEvidence],
    failed_nodes: Mapping[str, str],
) -> Iterator[tuple[str, HungEvidence]]:
    """Yield further members of failed nodes. One witness on another node is enough, because the node itself failed."""
    nodes = {**failed_nodes, **{peers[name].node: name for name in found}}
    for name, witnesses in reporters.items():
        node = peers[name].node
        if name in found or not node or node not in nodes:
            continue
        elsewhere = tuple(w for w in witnesses if w not in found and peers[w].node not in nodes)
        if elsewhere:
            yield name, HungEvidence(elsewhere, same_node=nodes[node])
