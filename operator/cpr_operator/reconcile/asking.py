"""Whom to ask for a report. Few are asked while all is well; everybody who may know while something is lost."""

from __future__ import annotations

from collections.abc import Sequence

from cpr_contract.reports import TrainerReport
from cpr_operator.api.status import TERMINAL_PHASES, Member, Shard, Status, Trainer
from cpr_operator.cluster.views import PodView
from cpr_operator.reconcile.observe import is_settled
from cpr_operator.reconcile.reports import takes_part
from cpr_operator.reconcile.world import World

_QUIET = TERMINAL_PHASES | {"Pending", "Suspending", "Suspended"}
#: A shard whose last save is so many times as old as planned is asked: it alone knows why.
LATE = 3


def first_round(world: World) -> tuple[PodView, ...]:
    """The leader, everybody who is not known to work, and shards whose saves do not come.

    All, where the leader did not answer the last time: nobody is to wait for it first.
    """
    status = world.job.status
    if status.phase in _QUIET:
        return ()
    members = world.job.status.members
    wanted = [m for m in members if not is_settled(m) or _leads(world, m) or _saves_late(status, m)]
    return _pods(world, members if world.unheard else wanted)


def second_round(world: World) -> tuple[PodView, ...]:
    """After the first: all others, if the leader cannot tell how far training is, or misses somebody who works."""
    status = world.job.status
    if status.phase in _QUIET:
        return ()
    leader = next((m for m in status.trainers if _leads(world, m)), None)
    report = world.reports.get(leader.uid) if leader else None
    settled = [m for m in world.job.status.members if is_settled(m)]
    missed = {m.name for m in settled} & set(report.silent if report else ())
    if isinstance(report, TrainerReport) and takes_part(report) and not missed:
        return ()
    asked = {pod.uid for pod in first_round(world)}
    return tuple(pod for pod in _pods(world, settled) if pod.uid not in asked)


def called_silent(world: World) -> frozenset[str]:
    """The uids of members that work, as far as known, and whose heartbeat somebody misses by the reports so far.

    A member that starts or restores is not among them: it may well answer, and only it knows how far it is.
    """
    missed = {name for report in world.reports.values() for name in report.silent}
    return frozenset(m.uid for m in world.job.status.members if is_settled(m) and m.name in missed)


def _pods(world: World, members: Sequence[Shard | Trainer]) -> tuple[PodView, ...]:
    """Those whose process runs and has an address; a member that was just created is known by its name."""
    names = {m.pod for m in members}
    return tuple(pod for pod in world.pods if pod.name in names and pod.host and pod.phase == "Running")


def _saves_late(status: Status, member: Member) -> bool:
    """Whether much more was trained since a shard's last save than the plan expects between two of them."""
    plan, speed = status.plan, status.policy.samples_per_second
    if not isinstance(member, Shard) or plan is None or speed is None:
        return False
    usual_s = plan.interval_seconds + plan.inputs.get("commitSeconds", 0.0)
    return status.progress.samples - member.saved_samples > LATE * usual_s * speed


def _leads(world: World, member: Member) -> bool:
    return isinstance(member, Trainer) and member.index == world.job.status.leader
