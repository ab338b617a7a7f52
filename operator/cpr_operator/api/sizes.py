"""What follows from a spec: whether a job replays and has parity, whose parity, and how much memory rows take."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from cpr_contract.choices import ReplayPolicy
from cpr_contract.model import state_width
from cpr_operator.api.model_spec import ModelSpec
from cpr_operator.api.quantities import limit_of, main_container, read_bytes, write_bytes
from cpr_operator.api.spec import CPRJobSpec
from cpr_operator.api.status import Status
from cpr_operator.api.templates import DEFAULT_MIB

# Whether a job replays, and has parity: what the spec asks for, where it works.


_MIB = 2**20
#: The part of its container's memory that a trainer keeps pushes in where the spec does not say how much, and bounds.
_SHARE, _LEAST, _MOST = 8, 16 * _MIB, 1024 * _MIB


def replay_policy(spec: CPRJobSpec, before: ReplayPolicy | None = None) -> ReplayPolicy:
    """Return the replay policy of a job that starts or resumes.

    A job that resumes has replay only if it had replay `before`; the size of its buffers may change.
    """
    if before is not None and not before.enabled:
        return ReplayPolicy(reason=before.reason)
    replay = spec.recovery.replay
    if replay.mode == "Off":
        return ReplayPolicy(reason="spec.recovery.replay.mode is Off")
    if spec.recovery.on_shard_loss == "Degrade":
        return ReplayPolicy(
            reason="with onShardLoss Degrade training goes on without a shard, which gets no pushes then"
        )
    if spec.trainers.dense_sync != "AllReduce":
        return ReplayPolicy(reason="in a shadow mode trainers do not wait for what others push again")
    if spec.snapshots.strategy != "Full":
        return ReplayPolicy(reason=f"rows that {spec.snapshots.strategy} saves between cuts would get pushes twice")
    memory, spill = _memory_bytes(spec), read_bytes(replay.spill) or 0
    kept = f"{write_bytes(memory)} of pushes" + (f", and {write_bytes(spill)} more on disk," if spill else "")
    return ReplayPolicy(memory, spill, f"trainers keep up to {kept} for shards that are replaced")


def replay_in_force(spec: CPRJobSpec, status: Status) -> ReplayPolicy:
    """Return the replay policy that was chosen at the start of a job, or before the start the one of its spec.

    A new release with other defaults leaves a running job as it is.
    """
    return replay_policy(spec) if status.runtime is None else status.runtime.replay


def data_shards_of(spec: CPRJobSpec, replay: ReplayPolicy) -> int:
    """How many shards have a common parity; 0: there is none. Without replay nobody has what no flush holds."""
    redundancy = spec.recovery.redundancy
    return redundancy.data_shards if redundancy is not None and replay.enabled else 0


def _memory_bytes(spec: CPRJobSpec) -> int:
    stated = spec.recovery.replay.memory
    if stated is not None:
        return read_bytes(stated) or 0
    limit = limit_of(main_container(spec.trainers.template).get("resources"), "memory")
    share = (DEFAULT_MIB * _MIB if limit is None else limit) // _SHARE // _MIB * _MIB
    return min(max(share, _LEAST), _MOST)


# Which shards have to do with each other's parity (docs/redundancy.md): the ring of the shards' own arithmetic.


def neighbours(shard: int, shards: int, data_shards: int) -> frozenset[int]:
    """All whom a shard asks for something: its holders, the `data_shards` after it, and the members of their stripes.

    Those begin one less before it. Nobody else is ever talked to.
    """
    return frozenset((shard + step) % shards for step in range(1 - data_shards, data_shards + 1)) - {shard}


def recoverable(shard: int, lost: Collection[int], shards: int, data_shards: int) -> bool:
    """Whether all that have to do with the parity of a shard live, while these are lost, itself among them or not."""
    return neighbours(shard, shards, data_shards).isdisjoint(lost)


_VALUE_BYTES = 4
#: The part of the memory for pushes from which the leader saves early.
_FULL = 0.75
#: A shard's code and buffers.
_PROCESS_BYTES = 300 << 20
#: What a shard logs of changes, twice, and sends of them: 8 MiB begin a flush, and arrays grow by doubling.
_LOG_BYTES = 48 << 20
#: The last flush to the parity that it keeps of all members together, and what arrives, as it came and as arrays.
_FLUSHES_BYTES = 24 << 20


def rows_bytes(spec: CPRJobSpec) -> int:
    """The rows of a shard, with the state of their optimizers."""
    shards = spec.shards.replicas
    return sum(_ceil(rows, shards) * row_bytes for rows, row_bytes in _bands(spec.model))


def shard_bytes(spec: CPRJobSpec) -> int:
    """The memory of a shard without redundancy: its rows, a quarter of them for saves under way, and its process."""
    return _ceil(5 * rows_bytes(spec), 4) + _PROCESS_BYTES


#: The number of a row in a push: 4 bytes, or 8 of tables with more rows than this.
_NARROW_ROWS = 2**31


@dataclass(frozen=True, slots=True)
class StepOfTrainer:
    """The traffic of a trainer in a step if ids are drawn evenly. Skewed ids repeat, and cause less.

    rows: distinct rows. pushed_bytes: their gradients with their numbers, as replay keeps them. vectors_bytes: their
    vectors. bags: columns of lists whose length the spec does not bound; one id of each is counted.
    """

    rows: int
    pushed_bytes: int
    vectors_bytes: int
    bags: tuple[str, ...]


def step_of(spec: CPRJobSpec) -> StepOfTrainer:
    """The largest step of a trainer, by tables, dims, batch and lengths of bags."""
    model = spec.model
    batch = _ceil(spec.data.batch_size, spec.trainers.replicas)
    ids = dict.fromkeys((table.name for table in model.tables), 0 if model.features else batch)
    bags = [table.name for table in model.tables if table.pooling is not None and not model.features]
    for feature in model.features or ():
        ids[feature.table] += batch * (feature.max_length or 1)
        if feature.pooling is not None and feature.max_length is None:
            bags.append(feature.name)
    rows = pushed = vectors = 0
    for table in model.tables:
        distinct = math.ceil(-table.rows * math.expm1(-ids[table.name] / table.rows))
        dim = table.dim or model.embedding_dim
        value_bytes = 2 if spec.trainers.precision == "bf16" else _VALUE_BYTES
        rows += distinct
        pushed += distinct * ((8 if table.rows > _NARROW_ROWS else 4) + dim * value_bytes)
        vectors += distinct * dim * _VALUE_BYTES
    return StepOfTrainer(rows, pushed, vectors, tuple(bags))


def steps_kept(spec: CPRJobSpec, replay: ReplayPolicy) -> int:
    """After how many steps a trainer's memory for replay makes the leader save, at the latest (docs/replay.md)."""
    return int(_FULL * (replay.memory_bytes + replay.spill_bytes) / max(step_of(spec).pushed_bytes, 1))


def redundancy_bytes(spec: CPRJobSpec, replay: ReplayPolicy) -> int:
    """What redundancy takes on a shard: the parity that it keeps, a byte a row, logs and flushes. 0 without."""
    k = data_shards_of(spec, replay)
    if not k:
        return 0
    own = [(_ceil(rows, spec.shards.replicas), row_bytes) for rows, row_bytes in _bands(spec.model)]
    parity = sum(_ceil(rows, k) * (row_bytes + 1) for rows, row_bytes in own)
    return parity + sum(rows for rows, _ in own) + _LOG_BYTES + _FLUSHES_BYTES


def _bands(model: ModelSpec) -> list[tuple[int, int]]:
    """How many rows the tables of each dim have, and the bytes of one, with room for any of their optimizers."""
    rows, widths = dict[int, int](), dict[int, int]()
    for table in model.tables:
        dim = table.dim or model.embedding_dim
        rows[dim] = rows.get(dim, 0) + table.rows
        widths[dim] = max(widths.get(dim, 0), state_width((table.optimizer or model.sparse_optimizer).kind, dim))
    return [(rows[dim], _VALUE_BYTES * (dim + widths[dim])) for dim in rows]


def _ceil(value: int, by: int) -> int:
    return -(-value // by)
