"""What is under way with a shard: how far the connection is, and lookups that its answers fill."""

from __future__ import annotations

import enum
import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import numpy as np

from cpr_trainer.embedding.placement import UniqueRows
from cpr_trainer.exchange.encoding import Values

# How far the connection to a shard is, and what the shard has said of its saves.


class LinkState(enum.Enum):
    """How far a connection is."""

    DOWN = enum.auto()
    CONNECTING = enum.auto()
    GREETING = enum.auto()
    PROVED = enum.auto()  # the shard's proof holds, ours is on its way
    JOINED = enum.auto()  # both sides proved the key; the shard does not serve this generation (yet)
    REPLAYING = enum.auto()  # the shard serves it, and is sent what it does not have before anything else
    READY = enum.auto()


#: Both sides proved the key.
CONNECTED = frozenset({LinkState.JOINED, LinkState.REPLAYING, LinkState.READY})


@dataclass(frozen=True, slots=True)
class SaveState:
    """A shard's newest committed save, -1 while unknown, and the step of the cut that it gave up last, 0 for none.

    `step` is the last one of this trainer's rank that the save holds. `incarnation` of the shard said so. `store_full`:
    the store has no room for the save that the shard writes.
    """

    step: int = -1
    samples: int = -1
    given_up_step: int = 0
    incarnation: int = -1
    store_full: bool = False


class ShardsAwayError(Exception):
    """Shards cannot be reached or are not ready: wait (`Exchange.wait_ready`) and ask again. No error of the job."""

    def __init__(self, shards: Collection[int]) -> None:
        super().__init__(f"shards away: {sorted(shards)}")
        self.shards = tuple(sorted(shards))


class PendingLookup:
    """The vectors of some rows, on their way into `vectors`, [u, D], in the order of the rows.

    Where rows of band b have dims[b] values and not all the same, `vectors` is flat, [v]. `changed` is the exchange's
    condition; only the exchange calls the last methods.
    """

    def __init__(self, rows: UniqueRows, vectors: Values, dims: Sequence[int], changed: threading.Condition) -> None:
        self.rows = rows
        self._vectors = vectors
        self._changed = changed
        ends = rows.extents(dims)[:: rows.bands]
        self._parts = tuple(vectors.reshape(-1)[start:end] for start, end in pairwise(ends))
        self._missing = {shard for shard, part in enumerate(self._parts) if len(part)}
        self._away: set[int] = set()

    def result(self, timeout_s: float) -> Values:
        """Return the vectors once all are there, in the order of the rows.

        Raises ShardsAwayError once a shard that was asked cannot answer: ask anew. Raises TimeoutError if nothing is
        decided in time; the lookup goes on, and may be waited for again.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._away or not self._missing, timeout_s):
                raise TimeoutError(f"no vectors from shards {sorted(self._missing)} yet")
            if self._away:
                raise ShardsAwayError(self._away)
            return self._vectors

    @property
    def shards(self) -> tuple[int, ...]:
        """Shards that still owe an answer."""
        return tuple(sorted(self._missing))

    def room(self, shard: int) -> memoryview:
        """Return where a shard's vectors belong, as bytes."""
        return self._parts[shard].data.cast("B")

    def fill(self, shard: int) -> None:
        """Note that a shard's vectors are all there."""
        self._missing.discard(shard)

    def put(self, shard: int, values: Values) -> None:
        """Take these for a shard's vectors, [v], of the type of the others."""
        self._parts[shard][:] = values
        self.fill(shard)

    def fail(self, shard: int) -> None:
        """Note that a shard will not answer."""
        self._away.add(shard)


def by_band(rows: UniqueRows, vectors: Values, dims: Sequence[int]) -> tuple[Values, ...]:
    """Return what a lookup of these rows filled, of each band [u_b, D_b], in the order of its rows.

    What came from one shard alone is not copied.
    """
    if len(dims) == 1:
        return (vectors,)
    ends = rows.extents(dims)
    cells = [vectors[start:end] for start, end in pairwise(ends)]
    bands: Iterator[list[Values]] = (cells[band :: rows.bands] for band in range(rows.bands))
    return tuple(_joined(band).reshape(-1, dim) for band, dim in zip(bands, dims, strict=True))


def _joined(values: list[Values]) -> Values:
    return values[0] if len(values) == 1 else cast(Values, np.concatenate(values))
