"""Whether a job replays, and has parity: what the spec asks for, where it works."""

from __future__ import annotations

from dataclasses import dataclass

from cpr_operator.api.spec import CPRJobSpec

_UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


@dataclass(frozen=True, slots=True)
class ReplayChoice:
    """Each trainer keeps pushes in so much memory; 0: none, and `reason` says why."""

    memory_bytes: int
    reason: str


def replay_of(spec: CPRJobSpec) -> ReplayChoice:
    """Whether trainers push again what a lost shard had learnt since its last save."""
    replay = spec.recovery.replay
    if replay.mode == "Off":
        return ReplayChoice(0, "spec.recovery.replay.mode is Off")
    if spec.recovery.on_shard_loss == "Degrade":
        return ReplayChoice(0, "with onShardLoss Degrade training goes on without a shard, which gets no pushes then")
    if spec.trainers.dense_sync != "AllReduce":
        return ReplayChoice(0, "in a shadow mode trainers do not wait for what others push again")
    if spec.snapshots.strategy != "Full":
        return ReplayChoice(0, f"rows that {spec.snapshots.strategy} saves between cuts would get pushes twice")
    size = int(replay.memory[:-2]) * _UNITS[replay.memory[-2:]]
    return ReplayChoice(size, f"trainers keep up to {replay.memory} of pushes for shards that are replaced")


def data_shards_of(spec: CPRJobSpec) -> int:
    """How many shards have a common parity; 0: there is none. Without replay nobody has what no flush holds."""
    redundancy = spec.recovery.redundancy
    return redundancy.data_shards if redundancy is not None and replay_of(spec).memory_bytes else 0
