"""Rosters: a job's status in the words that each of its pods reads."""

from __future__ import annotations

from cpr_contract.roster import Allowance, AnchorRef, Peer, ShardRoster, TrainerRoster
from cpr_operator.api.status import Member, Shard, Status, Trainer
from cpr_operator.desired.versions import version_of


def shard_roster(status: Status, shard: Shard, incarnation: int) -> ShardRoster:
    """What the pod of `incarnation` needs to know; of an older one, that it is replaced.

    To suspend, trainers stop first: while shards can still acknowledge what they send.
    """
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
        stop=status.phase == "Suspending" and not any(trainer.uid for trainer in status.trainers),
        priority_interval_s=status.plan.priority_interval_seconds if status.plan else 0.0,
        stored_bits=status.plan.stored_bits if status.plan else 32,
    )


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
    """The anchor that this generation started from; None: step 0."""
    anchor = status.forks[-1].anchor if status.forks else None
    return anchor.to_contract() if anchor else None


def _peer(member: Member) -> Peer:
    return Peer(index=member.index, incarnation=member.incarnation, host=member.host, port_base=member.port_base)
