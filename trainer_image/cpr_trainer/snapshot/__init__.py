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
from cpr_trainer.snapshot.loading import EXACT, Home, RestoredShard, load_shard
from cpr_trainer.snapshot.pruning import Pruner, delete_saves, everything, on_line
from cpr_trainer.snapshot.rebase import Link, basis
from cpr_trainer.snapshot.shards import candidates, read_shard_manifest, write_origin
from cpr_trainer.snapshot.writing import Insist, SavedShard, Source, Writer

__all__ = [
    "EXACT",
    "NETWORK",
    "Candidate",
    "DamagedError",
    "DenseMeta",
    "Home",
    "Insist",
    "LayoutError",
    "Link",
    "Pruner",
    "RestoredDense",
    "RestoredShard",
    "SavedDense",
    "SavedShard",
    "SnapshotError",
    "Source",
    "Writer",
    "basis",
    "candidates",
    "commit_anchor",
    "delete_saves",
    "everything",
    "find_anchor",
    "load_dense",
    "load_shard",
    "newest_dense",
    "on_line",
    "read_anchor",
    "read_shard_manifest",
    "read_tensors",
    "resolve_anchor",
    "save_dense",
    "write_origin",
]
