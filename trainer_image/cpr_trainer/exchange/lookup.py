"""The state of a connection to a shard, and the lookups that its answers fill."""

from __future__ import annotations

import enum
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from cpr_trainer.arrays import Values
from cpr_trainer.embedding.unique_rows import UniqueRows


class LinkState(enum.Enum):
    """The state of a connection."""

    DOWN = enum.auto()
    CONNECTING = enum.auto()
    GREETING = enum.auto()
    PROVED = enum.auto()  # the shard's proof holds, ours is in flight
    JOINED = enum.auto()  # both sides proved the key; the shard does not serve this generation (yet)
    REPLAYING = enum.auto()  # the shard serves it, and gets the pushes that it lacks before anything else
    READY = enum.auto()


#: Both sides proved the key.
CONNECTED = frozenset({LinkState.JOINED, LinkState.REPLAYING, LinkState.READY})


@dataclass(frozen=True, slots=True)
class SaveState:
    """A shard's newest committed save, -1 while unknown, and the step of the cut that it gave up last, 0 for none.

    `step` is the last one of this trainer's rank in the save. `incarnation` is that of the reporting shard.
    `store_full`: the store has no space for the save in progress.
    """

    step: int = -1
    samples: int = -1
    given_up_step: int = 0
    incarnation: int = -1
    store_full: bool = False


class ShardsUnavailableError(Exception):
    """Shards are unreachable or not ready: wait (`Exchange.wait_ready`) and try again. The job has no error."""

    def __init__(self, shards: Collection[int]) -> None:
        super().__init__(f"shards unavailable: {sorted(shards)}")
        self.shards = tuple(sorted(shards))


class PendingLookup:
    """A lookup of rows. Their vectors are received into `vectors`, [u, D], in the order of the rows.

    If bands have different dims, `vectors` is flat, [v]. `changed` is the exchange's condition. Only the exchange calls
    the last methods.
    """

    def __init__(self, rows: UniqueRows, vectors: Values, dims: Sequence[int], changed: threading.Condition) -> None:
        self.rows = rows
        self._vectors = vectors
        self._changed = changed
        ends = rows.extents(dims)[:: rows.bands]
        self._parts = tuple(vectors.reshape(-1)[start:end] for start, end in pairwise(ends))
        self._missing = {shard for shard, part in enumerate(self._parts) if len(part)}
        self._unavailable: set[int] = set()

    def result(self, timeout_s: float) -> Values:
        """Return the vectors once all are there, in the order of the rows.

        Raises ShardsUnavailableError if one of the shards cannot answer: start another lookup. Raises TimeoutError if
        the lookup is still pending; then call this again.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._unavailable or not self._missing, timeout_s):
                raise TimeoutError(f"no vectors from shards {sorted(self._missing)} yet")
            if self._unavailable:
                raise ShardsUnavailableError(self._unavailable)
            return self._vectors

    @property
    def shards(self) -> tuple[int, ...]:
        """The shards that have not answered yet."""
        return tuple(sorted(self._missing))

    def buffer(self, shard: int) -> memoryview:
        """Return the buffer for a shard's vectors, as bytes."""
        return self._parts[shard].data.cast("B")

    def fill(self, shard: int) -> None:
        """Note that all of a shard's vectors were received."""
        self._missing.discard(shard)

    def put(self, shard: int, values: Values) -> None:
        """Use these values for a shard's vectors, [v], of the type of the others."""
        self._parts[shard][:] = values
        self.fill(shard)

    def fail(self, shard: int) -> None:
        """Note that a shard will not answer."""
        self._unavailable.add(shard)
