"""Which shards have to do with each other's parity (docs/redundancy.md): the ring of the shards' own arithmetic."""

from __future__ import annotations

from collections.abc import Collection


def neighbours(shard: int, shards: int, data_shards: int) -> frozenset[int]:
    """All whom a shard asks for something: its holders, the `data_shards` after it, and the members of their stripes.

    Those begin one less before it. Nobody else is ever talked to.
    """
    return frozenset((shard + step) % shards for step in range(1 - data_shards, data_shards + 1)) - {shard}


def recoverable(shard: int, lost: Collection[int], shards: int, data_shards: int) -> bool:
    """Whether all that have to do with the parity of a shard live, while these are lost, itself among them or not."""
    return neighbours(shard, shards, data_shards).isdisjoint(lost)
