"""Writes a finished model as files that any tool reads, out of the anchor that `status.result` names.

DIR/model.json                  the network's shape, and where in the data it stands
DIR/dense.safetensors           the dense network's parameters and buffers by name
DIR/tables/NAME.safetensors     `weight` [rows, dim] of one embedding table, rows in the table's own order
"""

from __future__ import annotations

import json
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

import numpy as np
import safetensors.torch
import torch

from cpr_contract import env
from cpr_contract.codec import to_dict
from cpr_contract.manifests import DenseManifest
from cpr_contract.spec import JobSpec
from cpr_trainer.checkpoint.format.anchors import read_anchor, resolve_anchor
from cpr_trainer.checkpoint.restore.dense import read_tensors
from cpr_trainer.checkpoint.restore.lineage import Candidate
from cpr_trainer.checkpoint.restore.loading import load_shard
from cpr_trainer.model.replica import DenseReplica
from cpr_trainer.placement import Placement, layout_hash
from cpr_trainer.runtime import optional_path, read_job
from cpr_trainer.store import Store, open_store
from cpr_trainer.tables.home import Home

#: In the place of a folder: the standard output.
STREAM = Path("-")


def run(environ: Mapping[str, str], anchor_key: str, folder: Path, stream: BinaryIO) -> None:
    """Export by the job and the store that the environment names; to `stream` if the folder is `-`.

    Raises TrainerError.
    """
    job = read_job(environ)
    store = open_store(
        job.snapshots.store, optional_path(environ, env.CREDENTIALS_DIR), optional_path(environ, env.CA_FILE)
    )
    if folder == STREAM:
        stream_model(store, job, anchor_key, stream)
    else:
        export_model(store, job, anchor_key, folder)


def stream_model(store: Store, job: JobSpec, anchor_key: str, stream: BinaryIO) -> None:
    """Write the model of an anchor as a tar archive, model.json last. Raises as `export_model`.

    All files are made first, in the folder for temporary files, because an archive begins each with its size.
    """
    with tempfile.TemporaryDirectory(prefix="model-") as scratch:
        folder = Path(scratch)
        export_model(store, job, anchor_key, folder)
        with tarfile.open(fileobj=stream, mode="w|") as archive:
            for name in ("dense.safetensors", "tables", "model.json"):
                archive.add(folder / name, arcname=name)
        stream.flush()


def export_model(store: Store, job: JobSpec, anchor_key: str, folder: Path) -> None:
    """Write the model of an anchor into `folder`, model.json last; files of the same names are replaced.

    Takes the memory of one shard, and the disk of the tables twice. Raises LayoutError if the anchor has other
    tables or ids than `job`, ModelError if it has another network, DamagedError, StoreError; OSError if the folder
    cannot be written.
    """
    manifest = read_anchor(store, resolve_anchor(store, anchor_key, layout_hash(job.model), job.model.table_ids))
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    (folder / "model.json").unlink(missing_ok=True)
    safetensors.torch.save_file(_dense_parameters(store, job, manifest), folder / "dense.safetensors")
    _write_tables(store, job, manifest, folder / "tables")
    about = {
        "job": job.job_name,
        "anchor": anchor_key,
        "step": manifest.step,
        "samples": manifest.samples,
        "totalSamples": manifest.total_samples,
        "model": to_dict(job.model),
    }
    (folder / "model.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def _dense_parameters(store: Store, job: JobSpec, manifest: DenseManifest) -> dict[str, torch.Tensor]:
    replica = DenseReplica(job.model, job.data.seed)
    replica.load(read_tensors(store, manifest))
    # The parameters are views of one buffer, which safetensors rightly refuses to write as such.
    return {name: value.clone() for name, value in replica.model.state_dict().items()}


def _write_tables(store: Store, job: JobSpec, manifest: DenseManifest, folder: Path) -> None:
    """Scatter all shards into tables that are mapped files, so that the tables need not fit into memory."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".scratch-") as scratch:
        tables = [
            torch.from_file(f"{scratch}/{number}", shared=True, size=table.rows * dim).view(table.rows, dim)
            for number, (table, dim) in enumerate(zip(job.model.tables, job.model.table_dims, strict=True))
        ]
        placement = Placement.of(job.model, len(manifest.shards))
        for index in range(placement.shards):
            _scatter_shard(store, manifest, Home.of(job, placement, index), tables)
        for table, weight in zip(job.model.tables, tables, strict=True):
            safetensors.torch.save_file({"weight": weight}, folder / f"{quote(table.name, safe='')}.safetensors")


def _scatter_shard(store: Store, manifest: DenseManifest, home: Home, tables: list[torch.Tensor]) -> None:
    save = manifest.shards[home.index]
    load_shard(store, Candidate("Anchor", manifest.layout, manifest.step, (save,)), home)
    for chunk in home.placement.rows_of(home.index):
        slots = np.arange(chunk.first_slot, chunk.first_slot + len(chunk.rows))
        ((segment, inside),) = home.arena.parted(slots)
        values = torch.from_numpy(segment.rows)[int(inside[0]) : int(inside[-1]) + 1]
        chunk_tables, chunk_rows = torch.from_numpy(chunk.tables), torch.from_numpy(chunk.rows)
        for table in np.unique(chunk.tables).tolist():
            here = chunk_tables == table
            tables[table][chunk_rows[here]] = values[here]
