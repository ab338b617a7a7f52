"""The rows of an anchor as files of tables: all of them, or those that changed after another anchor."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch

from cpr_contract.manifests import DenseManifest
from cpr_contract.spec import JobSpec
from cpr_trainer.arrays import Floats, Ints
from cpr_trainer.checkpoint.format.records import seed_of
from cpr_trainer.checkpoint.restore.lineage import Candidate
from cpr_trainer.checkpoint.restore.loading import load_shard
from cpr_trainer.placement import Placement
from cpr_trainer.store import Store
from cpr_trainer.tables.arena import Home
from cprjob_serving.transform import Transform


def write_tables(store: Store, job: JobSpec, manifest: DenseManifest, folder: Path, transform: Transform) -> None:
    """Scatter all shards into tables that are mapped files, so that the tables need not fit into memory."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".scratch-") as scratch:
        tables = [
            torch.from_file(f"{scratch}/{number}", shared=True, size=table.rows * table.dim).view(table.rows, table.dim)
            for number, table in enumerate(transform.tables)
        ]
        placement = Placement.of(job.model, len(manifest.shards))
        for index in range(placement.shards):
            home = _loaded(store, job, manifest, placement, index)
            for place, rows, slots in _slots(home):
                tables[place][torch.from_numpy(rows)] = torch.from_numpy(_values(home, slots))
        for table, weight in zip(transform.tables, tables, strict=True):
            safetensors.torch.save_file({"weight": weight}, folder / table.file)


def write_changed_rows(
    store: Store, job: JobSpec, anchors: tuple[DenseManifest, DenseManifest], folder: Path, transform: Transform
) -> dict[str, int]:
    """Write the rows of the second anchor that differ from those of the first one; return how many, by table.

    Of each table `rows`, int64 [k] ascending, and `weight`, float32 [k, dim]. Anchors of earlier versions do not say
    which first values rows have that no save holds. Such rows of another job count as changed.
    """
    since, until = anchors
    found: list[list[tuple[Ints, Floats]]] = [[] for _ in transform.tables]
    placement = Placement.of(job.model, len(until.shards))
    for index in range(placement.shards):
        old, new = (_loaded(store, job, each, placement, index) for each in (since, until))
        for place, rows, slots in _slots(new):
            before, after = _values(old, slots), _values(new, slots)
            changed = (before.view(np.int32) != after.view(np.int32)).any(axis=1)
            if since.job_uid != job.job_uid and since.model is None:
                changed |= old.arena.epochs.of[slots] == 0
            if changed.any():
                found[place].append((rows[changed], after[changed]))
    counts = {}
    for table, parts in zip(transform.tables, found, strict=True):
        rows = np.concatenate([np.empty(0, np.int64), *(rows for rows, _ in parts)])
        weight = np.concatenate([np.empty((0, table.dim), np.float32), *(values for _, values in parts)])
        order = np.argsort(rows)
        safetensors.numpy.save_file({"rows": rows[order], "weight": weight[order]}, folder / table.file)
        counts[table.name] = len(rows)
    return counts


def _loaded(store: Store, job: JobSpec, manifest: DenseManifest, placement: Placement, index: int) -> Home:
    """Return shard `index` of a placement with the rows of an anchor, which any number of shards may have written."""
    home = Home.of(job, placement, index)
    saves = tuple(manifest.shards[holder] for holder in placement.holders(index, len(manifest.shards)))
    load_shard(store, Candidate("Anchor", manifest.layout, manifest.step, saves, seed=seed_of(manifest)), home)
    return home


def _slots(home: Home) -> Iterator[tuple[int, Ints, Ints]]:
    """Yield, table by table and chunk by chunk, rows of a shard, int64 [k], and their slots."""
    for chunk in home.placement.rows_of(home.index):
        slots = np.arange(chunk.first_slot, chunk.first_slot + len(chunk.rows))
        for table in np.unique(chunk.tables).tolist():
            here = chunk.tables == table
            yield table, chunk.rows[here], slots[here]


def _values(home: Home, slots: Ints) -> Floats:
    """Return the vectors of slots of one table, float32 [k, dim]."""
    ((segment, inside),) = home.arena.parted(slots)
    values: Floats = segment.rows[inside]
    return values
