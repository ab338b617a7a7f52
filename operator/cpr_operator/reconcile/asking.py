"""Whom to ask for a report. Few are asked while all is well; everybody who may know while something is lost."""

from __future__ import annotations

from cpr_operator.api.status import TERMINAL_PHASES, Member, Shard, Trainer
from cpr_operator.cluster.views import PodView
from cpr_operator.reconcile.observe import Alive, Going, Lost, is_settled, member_name, observe, role_of
from cpr_operator.reconcile.world import World

_QUIET = TERMINAL_PHASES | {"Pending", "Suspending", "Suspended"}


def first_round(world: World) -> tuple[PodView, ...]:
    """The leader, and everybody who is not known to work."""
    status = world.job.status
    if status.phase in _QUIET:
        return ()
    wanted = [m for m in _members(world) if not is_settled(m) or _leads(world, m)]
    return _pods(world, wanted)


def second_round(world: World) -> tuple[PodView, ...]:
    """After the first: all others, if the leader did not answer, somebody is lost, or the leader misses somebody."""
    status = world.job.status
    if status.phase in _QUIET:
        return ()
    facts = observe(world)
    leader = next((m for m in status.trainers if _leads(world, m)), None)
    report = world.reports.get(leader.uid) if leader else None
    lost = any(isinstance(fact, Lost | Going) for fact in facts.values())
    known = {member_name(role_of(m), m.index) for m in _members(world) if is_settled(m)}
    missed = report is not None and any(name in known for name in report.silent)
    if report is not None and not missed and not (lost and isinstance(leader and facts[_name(leader)], Lost)):
        return ()
    return _pods(world, [m for m in _members(world) if m.uid not in world.reports])


def _pods(world: World, members: list[Shard | Trainer]) -> tuple[PodView, ...]:
    """Those whose process runs and has an address; a member that was just created is known by its name."""
    names = {m.pod for m in members}
    return tuple(pod for pod in world.pods if pod.name in names and pod.host and pod.phase == "Running")


def _members(world: World) -> tuple[Shard | Trainer, ...]:
    return (*world.job.status.shards, *world.job.status.trainers)


def _name(member: Member) -> str:
    return member_name(role_of(member), member.index)


def _leads(world: World, member: Member) -> bool:
    return isinstance(member, Trainer) and member.index == world.job.status.leader
