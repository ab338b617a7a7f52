"""What the cluster lacks of what the status wants. Level-triggered: a lost effect is found again by the next pass.

Only creates follow from a change of the status: a create whose answer was lost is never sent twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from cpr_operator.api.spec import CPRJobSpec
from cpr_operator.api.status import Shard, Status, Trainer
from cpr_operator.cluster.protocol import Manifest
from cpr_operator.cluster.views import PodView
from cpr_operator.desired.names import JobId
from cpr_operator.desired.pod import PodPlan, grace_s, pod_manifest
from cpr_operator.desired.rosters import Rosters
from cpr_operator.reconcile.pass_ import PassInput, PodDelete, RosterPatch

M = TypeVar("M", Shard, Trainer)

#: Phases of a pod whose process may run.
LIVE_PHASES = frozenset({"Pending", "Running", "Unknown"})


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


def creates(world: PassInput, after: Status) -> Iterator[Manifest]:
    """Pods of incarnations that this pass decided, and of those whose create was refused: shards, then trainers."""
    if after.runtime is None:
        return
    before = {(m.role, m.index): m.incarnation for m in world.job.status.members}
    plan, told = pod_plan(world.job.id, world.job.spec, after), Rosters(after)
    for member in after.members:
        decided = before.get((member.role, member.index)) != member.incarnation
        if decided or (not member.uid and member.pod in world.refusals):
            yield pod_manifest(plan, told.document(member, member.incarnation), member.avoid)


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
    )


def deletes(world: PassInput, after: Status) -> Iterator[PodDelete]:
    """Pods of earlier incarnations: those that run, and ended ones but the last, whose log may be wanted."""
    newest: Mapping[tuple[str, int], int] = {(m.role, m.index): m.incarnation for m in after.members}
    for pod in world.pods:
        incarnation = newest.get((pod.role, pod.index))
        if pod.deleting_until is not None or incarnation is None or pod.incarnation >= incarnation:
            continue
        if pod.phase in LIVE_PHASES:
            yield PodDelete(pod.name, pod.uid, f"replaced by incarnation {incarnation}")
        elif pod.incarnation < incarnation - 1:
            yield PodDelete(pod.name, pod.uid, "the log of a later incarnation is kept")


def rosters(world: PassInput, after: Status) -> Iterator[RosterPatch]:
    """Pods that were told less than the status says: trainers first, then shards, then fenced-off ones.

    At the start trainers are told once, when all addresses are known. A shard that may still flush is left alone.
    """
    members: Mapping[tuple[str, int], Shard | Trainer] = {(m.role, m.index): m for m in after.members}
    flushing = {shard.predecessor.uid for shard in after.shards if shard.predecessor}
    told = Rosters(after)
    early = after.phase == "Starting" and not all(m.host for m in after.members)
    for pod in sorted(world.pods, key=lambda pod: (pod.role != "trainer", pod.index, -pod.incarnation)):
        member = members.get((pod.role, pod.index))
        if member is None or pod.phase not in LIVE_PHASES or pod.uid in flushing:
            continue
        if pod.roster_version >= member.roster or pod.incarnation > member.incarnation:
            continue
        if not (early and pod.role == "trainer"):
            yield RosterPatch(pod.name, pod.uid, told.document(member, pod.incarnation).annotations)


def live_pods(pods: tuple[PodView, ...]) -> tuple[PodView, ...]:
    """Those whose process may run."""
    return tuple(pod for pod in pods if pod.phase in LIVE_PHASES)
