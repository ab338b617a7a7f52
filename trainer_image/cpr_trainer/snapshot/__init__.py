"""Saves: what is written at a cut, a flush and between; which of them a restore may take; how they are verified."""

from cpr_trainer.snapshot.anchors import find_anchor, read_anchor, resolve_anchor
from cpr_trainer.snapshot.dense import (
    NETWORK,
    DenseMeta,
    RestoredDense,
    SavedDense,
    commit_anchor,
    load_dense,
    newest_dense,
    read_tensors,
    save_dense,
)
from cpr_trainer.snapshot.errors import DamagedError, LayoutError, SnapshotError
from cpr_trainer.snapshot.lineage import Candidate
from cpr_trainer.snapshot.pruning import prune
from cpr_trainer.snapshot.shards import (
    RestoredShard,
    SavedShard,
    ShardMeta,
    candidates,
    load_shard,
    read_shard_manifest,
    save_shard,
    write_origin,
)

__all__ = [
    "NETWORK",
    "Candidate",
    "DamagedError",
    "DenseMeta",
    "LayoutError",
    "RestoredDense",
    "RestoredShard",
    "SavedDense",
    "SavedShard",
    "ShardMeta",
    "SnapshotError",
    "candidates",
    "commit_anchor",
    "find_anchor",
    "load_dense",
    "load_shard",
    "newest_dense",
    "prune",
    "read_anchor",
    "read_shard_manifest",
    "read_tensors",
    "resolve_anchor",
    "save_dense",
    "save_shard",
    "write_origin",
]
