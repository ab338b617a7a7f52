"""The memory and the traffic that a spec implies, and which shards take part in each other's parity."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from cpr_contract.choices import Precision, ReplayPolicy, SparseUpdates
from cpr_contract.model import DENSE_FEATURES, PAGE_SLOTS, state_width
from cpr_operator.api.cprjob_spec import CPRJobSpec
from cpr_operator.api.model_spec import ModelSpec

_VALUE_BYTES = 4
#: The bytes of a value by its precision.
_BYTES: dict[Precision, int] = {"fp32": 4, "bf16": 2}
#: A slot of a dynamic table has an entry, and a cell if ids are admitted later than in their first step. Saves carry
#: both. A process derives the rest from them.
_ENTRY_BYTES, _CELL_BYTES, _DERIVED_BYTES = 16, 8, 3.4
#: A publisher's digest of a row. For a slot of a dynamic table a publisher has two keys, two digests and a step, and a
#: third key and digest and a second step while it compares an anchor.
_DIGEST_BYTES, _PUBLISHED_SLOT_BYTES = 8, 56
#: The leader saves early once this portion of the memory for pushes is used.
_FULL = 0.75
#: The code and buffers of a shard.
_PROCESS_BYTES = 300 << 20
#: The two logs of changes of a shard, and what it sends of them: a flush begins at 8 MiB, and arrays grow by doubling.
_LOG_BYTES = 48 << 20
#: The last flush of each member to the parity that a shard keeps, and arriving flushes, as received and as arrays.
_FLUSHES_BYTES = 24 << 20
#: A row number in a push has 4 bytes, or 8 in tables with more rows than this. A key of a dynamic table has 8.
_NARROW_ROWS, _WIDE_BYTES = 2**31, 8
#: A key in the exported file of a dynamic table; and how often a base is on a publisher's disk while it is written.
_KEY_BYTES, _BASE_COPIES = 8, 2
#: During a replay a trainer has at least 2 and at most 8 pushes to a shard in flight. Those after the first 2 are sent
#: if all of them together have at most 4 MiB.
_LEAST_FLIGHT, _FLIGHT, _FLIGHT_BYTES = 2, 8, 4 << 20


@dataclass(frozen=True, slots=True)
class StepTraffic:
    """The traffic of a trainer in a step if ids are drawn evenly. Skewed ids repeat, and cause less.

    rows: distinct rows. pushed_bytes: their gradients and row numbers, in the format of replay. vectors_bytes: their
    vectors. bags: columns of lists without a bound in the spec, for which one id is counted.
    """

    rows: int
    pushed_bytes: int
    vectors_bytes: int
    bags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DenseSize:
    """The parameters of the built-in network, and their bytes on a trainer: with gradients and optimizer state."""

    parameters: int
    trainer_bytes: int


@dataclass(frozen=True, slots=True)
class ShardMemory:
    """The memory of a shard: its rows, redundancy, the pushes that it holds, and all that it needs with saves."""

    rows_bytes: int
    redundancy_bytes: int
    held_bytes: int
    needed_bytes: int


@dataclass(frozen=True, slots=True)
class PublisherSize:
    """The size of a publisher: its digests of rows, a whole model's tables, and the disk for them.

    digests_bytes is memory beyond that of a shard, which a publisher may have to load.
    """

    digests_bytes: int
    model_bytes: int
    disk_bytes: int


def shard_memory(spec: CPRJobSpec, replay: ReplayPolicy, updates: SparseUpdates) -> ShardMemory:
    """Return the memory of the largest shard."""
    more, held = redundancy_bytes(spec, replay), held_bytes(spec, replay, updates)
    return ShardMemory(rows_bytes(spec), more, held, shard_bytes(spec) + more + held)


def dense_size(model: ModelSpec) -> DenseSize | None:
    """Return the size of the dense network; None for a network of the user, whose size the spec does not state."""
    if model.entrypoint is not None or not model.bottom_mlp or not model.top_mlp:
        return None
    tables = {table.name: table.dim or model.embedding_dim for table in model.tables}
    dims = [tables[each.table] for each in model.features] if model.features else [*tables.values()]
    vectors, dim = 1 + len(dims), model.embedding_dim
    inputs = dim + vectors * (vectors - 1) // 2
    numeric = DENSE_FEATURES if model.numeric is None else model.numeric
    parameters = sum(other * dim for other in dims if other != dim) + _layers(numeric, *model.bottom_mlp)
    if model.interaction.layers is not None and model.interaction.rank is not None:
        inputs = vectors * dim
        parameters += model.interaction.layers * (2 * inputs * model.interaction.rank + inputs)
    parameters += _layers(inputs, *model.top_mlp)
    optimizer = model.dense_optimizer
    state = {"SGD": int(bool(optimizer.momentum)), "Adagrad": 1}.get(optimizer.kind, 2)
    return DenseSize(parameters, (2 + state) * _VALUE_BYTES * parameters)


def _layers(*widths: int) -> int:
    """Return the parameters of linear layers between these widths."""
    return sum(before * after + after for before, after in pairwise(widths))


def step_traffic(spec: CPRJobSpec) -> StepTraffic:
    """Return the traffic of the largest step of a trainer, by tables, dims, batch and lengths of bags."""
    model = spec.model
    features = model.features or ()
    bags = [table.name for table in model.tables if table.pooling is not None and not features]
    bags += [each.name for each in features if each.pooling is not None and each.max_length is None]
    rows = pushed = vectors = 0
    for distinct, number_bytes, dim in _distinct_rows(spec):
        value_bytes = _BYTES[spec.trainers.precision]
        rows += distinct
        pushed += distinct * (number_bytes + dim * value_bytes)
        vectors += distinct * dim * _VALUE_BYTES
    return StepTraffic(rows, pushed, vectors, tuple(bags))


def held_bytes(spec: CPRJobSpec, replay: ReplayPolicy, updates: SparseUpdates) -> int:
    """Return the most memory of a shard for pushes of steps that it cannot apply yet; 0 unless it merges pushes.

    A shard holds the pushes of all W trainers to a step until all of them have committed it. Those of a single trainer
    are held for dynamic tables alone. With S shards and a slice with d_t distinct rows of table t (at most B / W times
    the ids of a sample), of dim D_t and with row numbers of b_t bytes, a trainer's push to a shard takes

        p = sum over t of d_t (b_t + 4 D_t) / S.

    One step takes W p. In a replay each trainer has several steps in flight: W min(8 p, max(2 p, 4 MiB)).
    """
    trainers = spec.trainers.replicas
    if updates == "PerPush" or (trainers == 1 and not _dynamic_slots(spec)):
        return 0
    values = (distinct * (number_bytes + dim * _VALUE_BYTES) for distinct, number_bytes, dim in _distinct_rows(spec))
    push = _ceil(sum(values), spec.shards.replicas)
    in_flight = min(_FLIGHT * push, max(_LEAST_FLIGHT * push, _FLIGHT_BYTES)) if replay.enabled else push
    return trainers * in_flight


def steps_until_full(spec: CPRJobSpec, replay: ReplayPolicy) -> int:
    """Return after how many steps at most a trainer's buffers for replay make the leader save (docs/replay.md)."""
    return int(_FULL * (replay.memory_bytes + replay.spill_bytes) / max(step_traffic(spec).pushed_bytes, 1))


def rows_bytes(spec: CPRJobSpec) -> int:
    """Return the bytes of a shard's rows, with the state of their optimizers and the entries of dynamic tables.

    Saves carry all of them.
    """
    return sum(band.rows_on_shard(spec) * band.row_bytes for band in _bands(spec.model))


def shard_bytes(spec: CPRJobSpec) -> int:
    """Return the memory of a shard without redundancy: rows, a quarter more for saves under way, and the process."""
    derived = math.ceil(_DERIVED_BYTES * _dynamic_slots(spec))
    return _ceil(5 * rows_bytes(spec), 4) + derived + _PROCESS_BYTES


def publisher_size(model: ModelSpec) -> PublisherSize:
    """Return the size of a publisher (ADR 48). A base is written twice into its scratch volume."""
    digests = exported = 0
    for table in model.tables:
        vector_bytes = _VALUE_BYTES * (table.dim or model.embedding_dim)
        if table.ids == "Dynamic":
            slots = _ceil(table.rows, PAGE_SLOTS) * PAGE_SLOTS
            digests += _PUBLISHED_SLOT_BYTES * slots
            exported += (_KEY_BYTES + vector_bytes) * slots
        else:
            digests += _DIGEST_BYTES * table.rows
            exported += vector_bytes * table.rows
    return PublisherSize(digests, exported, _BASE_COPIES * exported)


def redundancy_bytes(spec: CPRJobSpec, replay: ReplayPolicy) -> int:
    """Return the memory that redundancy takes on a shard: parity of others, a byte per row, logs and flushes."""
    k = data_shards_of(spec, replay)
    if not k:
        return 0
    own = [(band.rows_on_shard(spec), band.row_bytes) for band in _bands(spec.model)]
    parity = sum(_ceil(rows, k) * (row_bytes + 1) for rows, row_bytes in own)
    return parity + sum(rows for rows, _ in own) + _LOG_BYTES + _FLUSHES_BYTES


def data_shards_of(spec: CPRJobSpec, replay: ReplayPolicy) -> int:
    """Return how many shards have a common parity, or 0 without redundancy.

    Redundancy needs replay, because updates since the last flush are in no parity.
    """
    redundancy = spec.recovery.redundancy
    return redundancy.data_shards if redundancy is not None and replay.enabled else 0


def neighbours(shard: int, shards: int, data_shards: int) -> frozenset[int]:
    """Return the shards that a shard connects to (docs/redundancy.md).

    They are the holders of its parity, namely the `data_shards` after it in the ring of shards, and the other members
    of their stripes, which begin `data_shards` - 1 before it.
    """
    return frozenset((shard + step) % shards for step in range(1 - data_shards, data_shards + 1)) - {shard}


def recoverable(shard: int, lost: Collection[int], shards: int, data_shards: int) -> bool:
    """Return whether parity can rebuild a shard while the shards `lost` are away: no neighbour is among them."""
    return neighbours(shard, shards, data_shards).isdisjoint(lost)


def _distinct_rows(spec: CPRJobSpec) -> Iterator[tuple[int, int, int]]:
    """Yield for each table the distinct rows in a trainer's largest slice, the bytes of a row number, and the dim."""
    model = spec.model
    batch = _ceil(spec.data.batch_size, spec.trainers.replicas)
    ids = dict.fromkeys((table.name for table in model.tables), 0 if model.features else batch)
    for feature in model.features or ():
        ids[feature.table] += batch * (feature.max_length or 1)
    for table in model.tables:
        drawn, dim = ids[table.name], table.dim or model.embedding_dim
        if table.ids == "Dynamic":  # There may be more ids than rows.
            yield drawn, _WIDE_BYTES, dim
            continue
        distinct = math.ceil(-table.rows * math.expm1(-drawn / table.rows))
        yield distinct, _WIDE_BYTES if table.rows > _NARROW_ROWS else 4, dim


@dataclass(frozen=True, slots=True)
class _Band:
    """Rows that are stored together. Shards divide them by pages of `page` rows."""

    rows: int
    row_bytes: int
    page: int = 1

    def rows_on_shard(self, spec: CPRJobSpec) -> int:
        """Return the rows of the largest shard."""
        return _ceil(self.rows // self.page, spec.shards.replicas) * self.page


def _bands(model: ModelSpec) -> list[_Band]:
    """Return the bands of a model. A row has space for the state of any optimizer of its band.

    Tables of one dim and precision are a band; dynamic ones, if they also have one kind of optimizer and one set of
    rules. Their cells are another.
    """
    found, cells = dict[tuple[Hashable, ...], _Band](), dict[tuple[Hashable, ...], _Band]()
    for table in model.tables:
        dim, optimizer = table.dim or model.embedding_dim, (table.optimizer or model.sparse_optimizer).kind
        row_bytes = _BYTES[table.precision] * dim + _VALUE_BYTES * state_width(optimizer, dim)
        kind: tuple[Hashable, ...] = (dim, table.precision)
        rows, page = table.rows, 1
        if (rules := table.dynamic_rules) is not None:
            kind = (*kind, optimizer, rules)
            rows, page = _ceil(rows, PAGE_SLOTS) * PAGE_SLOTS, PAGE_SLOTS
            row_bytes += _ENTRY_BYTES
            if rules.min_steps > 1:
                cells[kind] = _Band(cells.get(kind, _Band(0, 0)).rows + rows, _CELL_BYTES, page)
        band = found.get(kind, _Band(0, 0))
        found[kind] = _Band(band.rows + rows, max(band.row_bytes, row_bytes), page)
    return [*found.values(), *cells.values()]


def _dynamic_slots(spec: CPRJobSpec) -> int:
    """Return the slots of dynamic tables on the largest shard; 0 if there is none."""
    pages = sum(_ceil(table.rows, PAGE_SLOTS) for table in spec.model.tables if table.ids == "Dynamic")
    return _ceil(pages, spec.shards.replicas) * PAGE_SLOTS


def _ceil(value: int, by: int) -> int:
    return -(-value // by)
