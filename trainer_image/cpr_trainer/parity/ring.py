"""Which shard holds the parity of which rows: pure arithmetic, no map.

The shards stand in a ring. Each divides the rows of each of its segments into k equal *parts*, by slot. Shard h keeps
the XOR of k parts: part 0 of the shard k before it, part 1 of the next, up to part k - 1 of the one right before it.
These k parts and their parity are a *stripe*: they lie on k + 1 different shards, for any number of shards above k.
Each shard is a member of k stripes and the holder of one. Hot rows are spread evenly over slots, so all parts are
equally busy.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

from cpr_trainer.placement import Placement


@dataclass(frozen=True, slots=True)
class Ring:
    """`shards` shards, of which each `data_shards` have a common parity. Raises ValueError if there are too few."""

    shards: int
    data_shards: int

    def __post_init__(self) -> None:
        if not 1 <= self.data_shards < self.shards:
            raise ValueError(f"parity of {self.data_shards} shards needs more of them than that, not {self.shards}")

    def holder(self, shard: int, part: int) -> int:
        """Return which shard keeps the parity of a part."""
        return (shard + self.data_shards - part) % self.shards

    def holders(self, shard: int) -> tuple[int, ...]:
        """Return who keeps the parity of a shard's parts, part after part."""
        return tuple(self.holder(shard, part) for part in range(self.data_shards))

    def members(self, holder: int) -> tuple[int, ...]:
        """Return whose parts are in the parity of `holder`: the i-th one's part i."""
        return tuple((holder - self.data_shards + part) % self.shards for part in range(self.data_shards))

    def needed(self, shard: int) -> frozenset[int]:
        """Return who is asked for something when this shard is lost: its holders, and the members of their stripes."""
        holders = self.holders(shard)
        return frozenset(holders).union(*map(self.members, holders)) - {shard}

    def recoverable(self, shard: int, lost: Collection[int]) -> bool:
        """Return whether parity gives back a lost shard while these are lost.

        Two shards that are more than `data_shards` apart on the ring are given back both.
        """
        return self.needed(shard).isdisjoint(lost)


@dataclass(frozen=True, slots=True)
class Parts:
    """How large the parts are: sizes[b] rows in segment b, the same on all shards.

    The last part of a shard is smaller, or empty, where its rows do not fill it. What is missing counts as zeros.
    """

    data_shards: int
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, placement: Placement, data_shards: int) -> Self:
        """Return the parts of a placement's shards."""
        largest = map(max, zip(*(placement.sizes(shard) for shard in range(placement.shards)), strict=True))
        return cls(data_shards, tuple(-(-rows // data_shards) for rows in largest))

    def span(self, part: int, segment: int, rows: int) -> tuple[int, int]:
        """Return the first row of a part, and that after the last, in a segment of so many rows."""
        size = self.sizes[segment]
        return min(part * size, rows), min((part + 1) * size, rows)
