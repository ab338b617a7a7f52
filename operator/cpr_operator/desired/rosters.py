"""Rosters: the part of the job's status that each pod needs, in the contract version of the job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from cpr_contract import CONTRACT_VERSION, env
from cpr_contract.codec import join_fields, to_dict, to_json, to_json_fields, unpack
from cpr_contract.reports import RosterNote
from cpr_contract.roster import Allowance, Peer, ShardRoster, TrainerRoster
from cpr_operator.api.sizes import neighbours
from cpr_operator.api.status import Anchor, Member, Shard, Status, Trainer
from cpr_operator.desired.names import Role


def version_of(status: Status) -> int:
    """The contract version of the job's rosters and pods; the operator's own before the job starts.

    A job's image is frozen at its start, and an image reads its own version and the one before. After an upgrade, the
    operator therefore uses the version that a running job started with.
    """
    return status.runtime.contract_version if status.runtime else CONTRACT_VERSION


def is_supported(version: int) -> bool:
    """Return True if the operator writes and reads this version: its own, and the one before."""
    return version in {CONTRACT_VERSION, CONTRACT_VERSION - 1}


def next_version(status: Status, image: str) -> int:
    """The version that a job starts or resumes with. It changes only with the image."""
    before = status.runtime
    if before is not None and before.image == image and is_supported(before.contract_version):
        return before.contract_version
    return CONTRACT_VERSION


def unsupported_version(version: int) -> str:
    """The reason why a job of this version is left alone, with the remedy."""
    return (
        f"the job's pods use contract version {version}, this operator {CONTRACT_VERSION - 1} and "
        f"{CONTRACT_VERSION}; the pods are left alone, and nothing is replaced; "
        "install the release that started the job, or suspend the job there and resume it here with a newer image"
    )


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
        """The document of one roster."""
        role: Role = "shard" if isinstance(roster, ShardRoster) else "trainer"
        return cls(role, roster.index, roster.incarnation, roster.counters.roster, to_json(roster))

    def with_note(self, note: RosterNote) -> Document:
        """The same roster with the fields of a note added."""
        fields = json.loads(self.text) | to_dict(note)
        return replace(self, text=json.dumps(fields, sort_keys=True, separators=(",", ":")))

    @property
    def annotations(self) -> dict[str, str]:
        """The annotations with the roster for the pod, and its number for the operator."""
        return {env.ANNOTATION_ROSTER: self.text, env.ANNOTATION_ROSTER_VERSION: str(self.number)}


class Rosters:
    """The documents of all members of one status.

    A trainer's roster lists every member. All trainers share that list, so it is built and encoded once: the work
    grows with the number of members, not with its square.
    """

    def __init__(self, status: Status) -> None:
        self._status = status
        # Trainers stop first, so that shards can acknowledge their pushes.
        self._shards_stop = status.phase == "Suspending" and not any(trainer.uid for trainer in status.trainers)

    def shard(self, shard: Shard, incarnation: int) -> ShardRoster:
        """The roster for the pod of `incarnation` of this shard."""
        return shard_roster(self._status, shard, incarnation, stop=self._shards_stop)

    @cached_property
    def for_trainers(self) -> TrainerRoster:
        """The part that all trainers' rosters share."""
        return trainer_roster(self._status, Trainer(index=0), 0)

    def document(self, member: Shard | Trainer, incarnation: int) -> Document:
        """The document for the pod of `incarnation` of this member."""
        if isinstance(member, Shard):
            return Document.of(self.shard(member, incarnation))
        own = {"index": member.index, "incarnation": incarnation, "newest_incarnation": member.incarnation}
        text = join_fields({**self._shared, **{name: str(number) for name, number in own.items()}})
        return Document(member.role, member.index, incarnation, self._status.counters.roster, text)

    @cached_property
    def _shared(self) -> Mapping[str, str]:
        return to_json_fields(self.for_trainers)


def shard_roster(status: Status, shard: Shard, incarnation: int, *, stop: bool) -> ShardRoster:
    """The roster for the pod of `incarnation`; for an older one it names the replacement."""
    start = start_anchor(status)
    return ShardRoster(
        contract=version_of(status),
        counters=status.counters.to_contract(),
        index=shard.index,
        incarnation=incarnation,
        newest_incarnation=shard.incarnation,
        may_restore=shard.may_restore and incarnation == shard.incarnation,
        floor_samples=shard.floor_samples,
        anchor=start.to_contract() if start else None,
        trainers=len(status.trainers),
        stop=stop,
        priority_interval_s=status.plan.priority_interval_seconds if status.plan else 0.0,
        stored_bits=status.plan.stored_bits if status.plan else 32,
        shards=_neighbours(status, shard.index),
    )


def _neighbours(status: Status, index: int) -> tuple[Peer, ...]:
    """The shards that share parity with a shard; at the start only once all have an address."""
    data_shards = 0 if status.runtime is None else parity_shards(status.runtime.job_spec)
    if not data_shards:
        return ()
    near = sorted(neighbours(index, len(status.shards), data_shards))
    found = tuple(_peer(status.shards[other]) for other in near)
    return () if status.phase == "Starting" and not all(peer.host for peer in found) else found


@lru_cache(maxsize=128)
def parity_shards(job_spec: str) -> int:
    """The number of shards with a common parity, by the JobSpec that pods read; 0: there is none."""
    return int(json.loads(unpack(job_spec)).get("parity_shards", 0))


def trainer_roster(status: Status, trainer: Trainer, incarnation: int) -> TrainerRoster:
    """The roster for the pod of `incarnation`; for an older one it names the replacement."""
    start = start_anchor(status)
    return TrainerRoster(
        contract=version_of(status),
        counters=status.counters.to_contract(),
        index=trainer.index,
        incarnation=incarnation,
        newest_incarnation=trainer.incarnation,
        leader=status.leader or 0,
        trainers=tuple(_peer(member) for member in status.trainers),
        shards=tuple(_peer(member) for member in status.shards),
        anchor=start.to_contract() if start else None,
        dense_floor_samples=status.dense.floor_samples,
        interval_s=status.plan.interval_seconds if status.plan else 0.0,
        stop=status.phase == "Suspending",
        meet=status.aligning,
        allowances=tuple(Allowance(shard.index, shard.allowance) for shard in status.shards if shard.allowance),
    )


def start_anchor(status: Status) -> Anchor | None:
    """The anchor that this generation started from; None for step 0."""
    return status.forks[-1].anchor if status.forks else None


def _peer(member: Member) -> Peer:
    return Peer(index=member.index, incarnation=member.incarnation, host=member.host, port_base=member.port_base)
