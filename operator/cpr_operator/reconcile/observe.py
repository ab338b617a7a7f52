"""From pods and reports to one fact per member: does its newest incarnation live, and if not, what happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cpr_contract.exits import ExitCode
from cpr_operator.api.status import Member, Shard, Trainer
from cpr_operator.cluster.views import PodView
from cpr_operator.failures import Failure, Trouble, classify, hung
from cpr_operator.reconcile.silence import Peer, Verdict, judge
from cpr_operator.reconcile.world import Report, World

#: How long after the end of its grace a pod that is being deleted counts as gone.
GRACE_SLACK_S = 1.0

#: States in which a trainer takes part in training; in any other it starts, or is not there.
TRAINING_STATES = frozenset({"Training", "Meeting", "Paused", "Finishing", "Finished"})


@dataclass(frozen=True, slots=True)
class NoPod:
    """No pod was ever wanted."""


@dataclass(frozen=True, slots=True)
class Unborn:
    """Wanted, never seen. With a `refusal` its create certainly did not happen; without, nobody knows."""

    refusal: str


@dataclass(frozen=True, slots=True)
class Alive:
    """It starts or runs; `trouble` says why it does not run yet."""

    pod: PodView
    trouble: Trouble | None


@dataclass(frozen=True, slots=True)
class Going:
    """Somebody deletes it, and its process may still save what it holds, until `until`."""

    pod: PodView
    failure: Failure
    until: float


@dataclass(frozen=True, slots=True)
class Done:
    """A trainer that trained everything: `message` is what it left in its termination file."""

    message: str


@dataclass(frozen=True, slots=True)
class Lost:
    """It is over, or nobody can reach it. `pod` is None if it is gone."""

    pod: PodView | None
    failure: Failure


Fact = NoPod | Unborn | Alive | Going | Done | Lost


def is_settled(member: Shard | Trainer) -> bool:
    """Whether it works and has told all it has to: it is no part of a recovery or of a start."""
    working = member.state == "Ready" if isinstance(member, Shard) else member.state in TRAINING_STATES
    return working and member.lost_at is None


def observe(world: World) -> Mapping[str, Fact]:
    """One fact per member, by its name."""
    pods = {(pod.role, pod.index, pod.incarnation): pod for pod in world.pods}
    status = world.job.status
    members = {m.name: m for m in status.members}
    facts = {name: _fact(world, member, pods) for name, member in members.items()}
    for name, verdict in _silent(world, members, facts).items():
        match facts[name]:
            case Alive(pod=pod) | Going(pod=pod):
                facts[name] = Lost(pod, hung(verdict.witnesses, verdict.beside))
            case _:
                pass
    return facts


def report_of(world: World, member: Member) -> Report | None:
    """The member's own report of this pass, if its newest incarnation answered."""
    report = world.reports.get(member.uid) if member.uid else None
    if report is None or report.job_uid != world.job.id.uid:
        return None
    return report if (report.index, report.incarnation) == (member.index, member.incarnation) else None


def _fact(world: World, member: Shard | Trainer, pods: Mapping[tuple[str, int, int], PodView]) -> Fact:
    pod = pods.get((member.role, member.index, member.incarnation))
    if member.incarnation == 0:
        return NoPod()
    if pod is None and not member.uid:
        return Unborn(world.refusals.get(member.pod, ""))
    if pod is None and member.state == "Finished":
        return Done("")
    match classify(pod):
        case Failure() as failure:
            until = pod.deleting_until if pod else None
            going = not failure.ended and until is not None and world.now < until + GRACE_SLACK_S
            return Going(pod, failure, until) if going and pod and until else Lost(pod, failure)
        case trouble:
            return _unharmed(pod, trouble) if pod else NoPod()


def _unharmed(pod: PodView, trouble: Trouble | None) -> Fact:
    container = pod.container
    if container is not None and container.kind == "Terminated" and container.exit_code == ExitCode.OK:
        return Done(container.message)
    return Alive(pod, trouble)


def _silent(world: World, members: Mapping[str, Shard | Trainer], facts: Mapping[str, Fact]) -> Mapping[str, Verdict]:
    """Members that are hung by the word of their peers' reports of the present generation."""
    generation, missed = world.job.status.counters.generation, {}
    for name, fact in facts.items():
        report = world.reports.get(members[name].uid) if isinstance(fact, Alive) else None
        if report is not None and report.silent and report.counters.generation == generation:
            missed[name] = report.silent
    if not missed:
        return {}
    living = {name: members[name] for name, fact in facts.items() if isinstance(fact, Alive | Going)}
    peers = {
        # A newcomer misses nobody until it has joined: nobody waits for its word.
        name: Peer(m.role, m.node, is_settled(m), isinstance(facts[name], Alive) and m.lost_at is None)
        for name, m in living.items()
    }
    return judge(peers, missed, _fallen(world, members))


def _fallen(world: World, members: Mapping[str, Shard | Trainer]) -> Mapping[str, str]:
    """Nodes on which a member fell silent so lately that others there may have done so at the same moment."""
    silence_s = world.job.spec.failure_policy.silence_seconds
    return {
        m.avoid: name
        for name, m in members.items()
        if m.avoid and m.lost_at is not None and world.now - m.lost_at <= silence_s
    }
