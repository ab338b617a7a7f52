"""The saves of a whole job with two shards, for tests of what lists, verifies, prunes and deletes them."""

from __future__ import annotations

import torch

from cpr_contract import CONTRACT_VERSION
from cpr_contract.manifests import DenseManifest
from cpr_contract.roster import AnchorRef
from cpr_trainer.checkpoint.anchor.committer import commit_anchor, save_dense
from cpr_trainer.checkpoint.format.records import write_restore_record
from cpr_trainer.store import Store
from support.saves import ShardBench, restore_record

SHARDS = 2


class JobBench:
    """Two shards that change rows and save them, and a leader that commits anchors of it."""

    def __init__(self, store: Store, generation: int = 1) -> None:
        self.store = store
        self.generation = generation
        self.shards = tuple(ShardBench(store, shards=SHARDS, index=index) for index in range(SHARDS))
        self.job = self.shards[0].job

    def serve(self, step: int = 0) -> None:
        """Record that the shards begin this generation, at the anchor of that step."""
        for index in range(SHARDS):
            write_restore_record(self.store, restore_record(1, generation=self.generation, index=index, step=step))

    def anchor(self, step: int, *, full: bool = False) -> AnchorRef:
        """Change a row of every shard and commit an anchor, on the last one unless it is to be a full one."""
        for shard in self.shards:
            shard.change(step % 7)
            shard.save(step, () if full else shard.links, generation=self.generation)
        refs = tuple(shard.links[-1].ref for shard in self.shards)
        return commit_anchor(self.store, self.meta(step), {"network": torch.ones(3)}, refs, ((),) * SHARDS)

    def dense(self, step: int) -> str:
        """Save the dense state alone; return its manifest's key."""
        return save_dense(self.store, self.meta(step), {"network": torch.ones(3)}).key

    def meta(self, step: int) -> DenseManifest:
        return DenseManifest(
            CONTRACT_VERSION, "uid", self.generation, 1, step, 64 * step, 6400, self.shards[0].layout, ()
        )
