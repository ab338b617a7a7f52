"""Whether parity gives back a lost shard (docs/redundancy.md): the ring of the shards' own arithmetic."""

from __future__ import annotations

from collections.abc import Collection


def recoverable(shard: int, lost: Collection[int], shards: int, data_shards: int) -> bool:
    """Whether all that have to do with the parity of a shard live, while these are lost, itself among them or not.

    Those are its holders, the `data_shards` after it, and the members of their stripes: one less before it.
    """
    needed = {(shard + step) % shards for step in range(1 - data_shards, data_shards + 1)} - {shard}
    return needed.isdisjoint(lost)
