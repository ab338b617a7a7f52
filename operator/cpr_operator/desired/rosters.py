"""Rosters: what each pod has to know of the job's status."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from cpr_contract import env
from cpr_contract.codec import join_fields, to_dict, to_json, to_json_fields, unpack
from cpr_contract.reports import RosterNote
from cpr_contract.roster import Allowance, AnchorRef, Peer, ShardRoster, TrainerRoster
from cpr_operator.api.sizes import neighbours
from cpr_operator.api.status import Member, Shard, Status, Trainer
from cpr_operator.desired.description import version_of
from cpr_operator.desired.names import Role


@dataclass(frozen=True, slots=True)
class Document:
    """The roster of one pod as it is written: `number` is its counter, `text` the JSON that the pod reads."""

    role: Role
    index: int
    incarnation: int
    number: int
    text: str

    @classmethod
    def of(cls, roster: ShardRoster | TrainerRoster) -> Document:
        """One roster by itself."""
        role: Role = "shard" if isinstance(roster, ShardRoster) else "trainer"
        return cls(role, roster.index, roster.incarnation, roster.counters.roster, to_json(roster))

    def with_note(self, note: RosterNote) -> Document:
        """The same roster with fields beside its own."""
        fields = json.loads(self.text) | to_dict(note)
        return replace(self, text=json.dumps(fields, sort_keys=True, separators=(",", ":")))

    @property
    def annotations(self) -> dict[str, str]:
        """The annotations by which a pod learns its roster, and the operator which one it was given."""
        return {env.ANNOTATION_ROSTER: self.text, env.ANNOTATION_ROSTER_VERSION: str(self.number)}


class Rosters:
    """The documents of all members of one status.

    A trainer's roster lists every member. All trainers share that list, so it is built and encoded once: the work
    grows with the number of members, not with its square.
    """

    def __init__(self, status: Status) -> None:
        self._status = status
        self._shards_stop = shards_stop(status)

    def shard(self, shard: Shard, incarnation: int) -> ShardRoster:
        """What the pod of `incarnation` of this shard needs to know."""
        return shard_roster(self._status, shard, incarnation, stop=self._shards_stop)

    @cached_property
    def for_trainers(self) -> TrainerRoster:
        """The part that all trainers' rosters share."""
        return trainer_roster(self._status, Trainer(index=0), 0)

    def document(self, member: Member, incarnation: int) -> Document:
        """What the pod of `incarnation` of this member needs to know."""
        match member:
            case Shard():
                return Document.of(self.shard(member, incarnation))
            case Trainer():
                own = {
                    "index": str(member.index),
                    "incarnation": str(incarnation),
                    "newest_incarnation": str(member.incarnation),
                }
                text = join_fields({**self._shared, **own})
                return Document("trainer", member.index, incarnation, self._status.counters.roster, text)
            case _:
                raise TypeError(f"not a member: {member!r}")

    @cached_property
    def _shared(self) -> Mapping[str, str]:
        return to_json_fields(self.for_trainers)


def shards_stop(status: Status) -> bool:
    """Whether shards are told to stop. Trainers stop first, so that shards can acknowledge their pushes."""
    return status.phase == "Suspending" and not any(trainer.uid for trainer in status.trainers)


def shard_roster(status: Status, shard: Shard, incarnation: int, *, stop: bool) -> ShardRoster:
    """What the pod of `incarnation` needs to know; of an older one, that it is replaced."""
    return ShardRoster(
        contract=version_of(status),
        counters=status.counters.to_contract(),
        index=shard.index,
        incarnation=incarnation,
        newest_incarnation=shard.incarnation,
        may_restore=shard.may_restore and incarnation == shard.incarnation,
        floor_samples=shard.floor_samples,
        anchor=origin(status),
        trainers=len(status.trainers),
        stop=stop,
        priority_interval_s=status.plan.priority_interval_seconds if status.plan else 0.0,
        stored_bits=status.plan.stored_bits if status.plan else 32,
        shards=_neighbours(status, shard.index),
    )


def _neighbours(status: Status, index: int) -> tuple[Peer, ...]:
    """The shards that a shard has parity in common with; at the start once all have an address, not one by one."""
    data_shards = 0 if status.runtime is None else parity_shards(status.runtime.job_spec)
    if not data_shards:
        return ()
    near = sorted(neighbours(index, len(status.shards), data_shards))
    found = tuple(_peer(status.shards[other]) for other in near)
    return () if status.phase == "Starting" and not all(peer.host for peer in found) else found


@lru_cache(maxsize=128)
def parity_shards(job_spec: str) -> int:
    """How many shards have a common parity, by the JobSpec that pods read; 0: there is none."""
    return int(json.loads(unpack(job_spec)).get("parity_shards", 0))


def trainer_roster(status: Status, trainer: Trainer, incarnation: int) -> TrainerRoster:
    """What the pod of `incarnation` needs to know; of an older one, that it is replaced."""
    return TrainerRoster(
        contract=version_of(status),
        counters=status.counters.to_contract(),
        index=trainer.index,
        incarnation=incarnation,
        newest_incarnation=trainer.incarnation,
        leader=status.leader or 0,
        trainers=tuple(_peer(member) for member in status.trainers),
        shards=tuple(_peer(member) for member in status.shards),
        anchor=origin(status),
        dense_floor_samples=status.dense.floor_samples,
        interval_s=status.plan.interval_seconds if status.plan else 0.0,
        stop=status.phase == "Suspending",
        meet=status.meeting,
        allowances=tuple(Allowance(shard.index, shard.allowance) for shard in status.shards if shard.allowance),
    )


def origin(status: Status) -> AnchorRef | None:
    """The anchor that this generation started from; None for step 0."""
    anchor = status.forks[-1].anchor if status.forks else None
    return anchor.to_contract() if anchor else None


def _peer(member: Member) -> Peer:
    return Peer(index=member.index, incarnation=member.incarnation, host=member.host, port_base=member.port_base)
