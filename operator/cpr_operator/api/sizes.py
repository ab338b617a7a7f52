"""How much memory the rows of a shard take, and what redundancy adds to that. Bytes, of the largest shard."""

from __future__ import annotations

from typing import assert_never

from cpr_operator.api.model_spec import ModelSpec
from cpr_operator.api.optimizers import SparseKind
from cpr_operator.api.replay import data_shards_of
from cpr_operator.api.spec import CPRJobSpec

_VALUE_BYTES = 4
#: What a shard logs of changes, twice, and sends of them: 8 MiB begin a flush, and arrays grow by doubling.
_LOG_BYTES = 48 << 20
#: The last flush to the parity that it keeps of all members together, and what arrives, as it came and as arrays.
_FLUSHES_BYTES = 24 << 20


def rows_bytes(spec: CPRJobSpec) -> int:
    """The rows of a shard, with the state of their optimizers."""
    shards = spec.shards.replicas
    return sum(_ceil(rows, shards) * row_bytes for rows, row_bytes in _bands(spec.model))


def redundancy_bytes(spec: CPRJobSpec) -> int:
    """What redundancy takes on a shard: the parity that it keeps, a byte a row, logs and flushes. 0 without."""
    k = data_shards_of(spec)
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
        widths[dim] = max(widths.get(dim, 0), _state_width((table.optimizer or model.sparse_optimizer).kind, dim))
    return [(rows[dim], _VALUE_BYTES * (dim + widths[dim])) for dim in rows]


def _state_width(kind: SparseKind, dim: int) -> int:
    match kind:
        case "SGD":
            return 0
        case "RowWiseAdagrad":
            return 1
        case "Adagrad":
            return dim
        case "Adam":
            return 2 * dim
        case _:
            assert_never(kind)


def _ceil(value: int, by: int) -> int:
    return -(-value // by)
