"""Writes a model as files that any tool reads.

DIR/model.json                  the network's shape, and where in the data it stands; written last
DIR/transform.json              from columns of raw data to the inputs of the network
DIR/dense.safetensors           the dense network's parameters and buffers by name
DIR/tables/NAME.safetensors     `weight` [rows, dim] of one embedding table, rows in the table's own order
DIR/network.pt2, network.onnx   the dense network as a program, in the formats torch-export and onnx
DIR/delta.json                  only if rows that changed are all there is: since when; tables have `rows` [k] too
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import safetensors.torch
from torch import nn

from cpr_contract.codec import to_dict
from cpr_contract.export import PROGRAMS, ExportRequest
from cpr_contract.manifests import DenseManifest
from cpr_contract.spec import JobSpec
from cpr_trainer.checkpoint.format.records import read_anchor, resolve_anchor
from cpr_trainer.checkpoint.restore.dense import read_tensors
from cpr_trainer.export.rows import write_changed_rows, write_tables
from cpr_trainer.export.transform import transform_of
from cpr_trainer.model.replica import DenseReplica
from cpr_trainer.placement import layout_hash
from cpr_trainer.store import Store
from cprjob_serving.model import ABOUT, DELTA, TRANSFORM


def export_model(store: Store, job: JobSpec, request: ExportRequest, folder: Path) -> None:
    """Write the model of an anchor into `folder`, model.json last; files of the same names are replaced.

    Takes the memory of one shard, and the disk of the tables twice; with `since` the memory of two shards and of the
    rows that changed. Raises LayoutError if an anchor has other tables or ids than `job`, ModelError if it has another
    network, or one that has no such program; DataError, DamagedError, StoreError; OSError if the folder cannot be
    written.
    """
    manifest = _manifest(store, job, request.anchor)
    since = None if request.since is None else _manifest(store, job, request.since)
    network = _network(store, job, manifest)
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    for stale in (ABOUT, TRANSFORM, DELTA, *PROGRAMS.values()):
        (folder / stale).unlink(missing_ok=True)
    parameters = {name: value.clone() for name, value in network.state_dict().items()}
    safetensors.torch.save_file(parameters, folder / "dense.safetensors")
    transform = transform_of(job)
    if request.format in PROGRAMS:
        # What makes programs takes seconds to load.
        import_module("cpr_trainer.export.network").write_network(network, job.model, transform, request.format, folder)
    if since is None:
        write_tables(store, job, manifest, folder, transform)
    else:
        counts = write_changed_rows(store, job, (since, manifest), folder, transform)
        _write(folder / DELTA, {"since": request.since, "anchor": request.anchor, "rows": counts})
    (folder / TRANSFORM).write_text(transform.to_json(), encoding="utf-8")
    about = {
        "job": job.job_name,
        "anchor": request.anchor,
        "step": manifest.step,
        "samples": manifest.samples,
        "totalSamples": manifest.total_samples,
        "model": to_dict(job.model),
    }
    _write(folder / ABOUT, about)


def _manifest(store: Store, job: JobSpec, key: str) -> DenseManifest:
    return read_anchor(store, resolve_anchor(store, key, layout_hash(job.model), job.model.table_ids))


def _network(store: Store, job: JobSpec, manifest: DenseManifest) -> nn.Module:
    """Return the dense network of an anchor, in evaluation mode."""
    replica = DenseReplica(job.model, job.data.seed)
    replica.load(read_tensors(store, manifest))
    # The parameters are views of one buffer, which files rightly do not hold as such.
    for parameter in replica.model.parameters():
        parameter.data = parameter.data.clone()
    return replica.model.eval().requires_grad_(requires_grad=False)


def _write(path: Path, document: object) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
