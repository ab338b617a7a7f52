"""Saves: what is written at a cut, a flush and between; which of them a restore may take; how they are verified."""

from cpr_trainer.snapshot.anchors import find_anchor, is_even, read_anchor, resolve_anchor
from cpr_trainer.snapshot.errors import DamagedError, LayoutError, SnapshotError
from cpr_trainer.snapshot.lineage import Candidate
from cpr_trainer.snapshot.loading import EXACT, Home, RestoredShard, load_shard
from cpr_trainer.snapshot.pruning import Pruner, delete_saves, everything, on_line
from cpr_trainer.snapshot.rebase import Link, basis
from cpr_trainer.snapshot.shards import candidates, claim, read_shard_manifest, write_origin
from cpr_trainer.snapshot.writing import Insist, SavedShard, Source, Writer

__all__ = [
    "EXACT",
    "Candidate",
    "DamagedError",
    "Home",
    "Insist",
    "LayoutError",
    "Link",
    "Pruner",
    "RestoredShard",
    "SavedShard",
    "SnapshotError",
    "Source",
    "Writer",
    "basis",
    "candidates",
    "claim",
    "delete_saves",
    "everything",
    "find_anchor",
    "is_even",
    "load_shard",
    "on_line",
    "read_anchor",
    "read_shard_manifest",
    "resolve_anchor",
    "write_origin",
]
