"""Writes a model as files that any tool reads: its transform, the rows of its tables, and its network.

docs/serving.md lists the files. `model.json` is written last: without it an export is incomplete.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from urllib.parse import quote

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch
from torch import nn

from cpr_contract.codec import to_dict
from cpr_contract.manifests import DenseManifest
from cpr_contract.model import DynamicSpec
from cpr_contract.requests import PROGRAMS, ExportRequest
from cpr_contract.spec import OPEN_TOTAL, JobSpec
from cpr_trainer.arrays import Floats, Ints
from cpr_trainer.checkpoint.format.records import read_fitting_anchor, vocabularies_of
from cpr_trainer.checkpoint.restore.dense_loader import read_tensors
from cpr_trainer.checkpoint.restore.loading import load_anchor
from cpr_trainer.data.schema import columns_of
from cpr_trainer.embedding.arena import LocalRows
from cpr_trainer.embedding.placement import Placement, layout_hash
from cpr_trainer.export.live_rows import KeyedDifference, KeyedFile, LiveTable
from cpr_trainer.model.replica import DenseReplica
from cpr_trainer.store import Store
from cprjob_serving.exported import ABOUT, DELTA, TRANSFORM
from cprjob_serving.keyed_rows import Default
from cprjob_serving.transform import Feature, Numeric, Table, Transform

#: Writes the tables of a delta into a folder, and returns the numbers of rows and of removed keys by table.
WriteTables = Callable[[Path, Transform], dict[str, dict[str, int]]]


def export_model(
    store: Store, job: JobSpec, request: ExportRequest, folder: Path, changed: WriteTables | None = None
) -> None:
    """Write the model of an anchor into `folder`, model.json last; files of the same names are replaced.

    changed: writes the rows that differ from those of the anchor `request.since`, which is not read then.

    Takes the memory of one shard, and the disk of the tables twice; with `since` the memory of two shards and of the
    rows that changed. Raises LayoutError if an anchor has other tables or ids than `job`, ModelError if it has another
    network, or one that has no such program; DataError, DamagedError, StoreError; OSError if the folder cannot be
    written.
    """
    read = partial(read_fitting_anchor, store, layout=layout_hash(job.model), ids=job.model.table_ids)
    manifest = read(request.anchor)
    if request.since is not None and changed is None:
        changed = partial(write_changed_rows, store, job, (read(request.since), manifest))
    network = _network(store, job, manifest)
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    for stale in (ABOUT, TRANSFORM, DELTA, *PROGRAMS.values()):
        (folder / stale).unlink(missing_ok=True)
    parameters = {name: value.clone() for name, value in network.state_dict().items()}
    safetensors.torch.save_file(parameters, folder / "dense.safetensors")
    transform, vocabularies = transform_of(job), vocabularies_of(store, request.anchor, job.model)
    for table in transform.tables:
        if table.vocabulary is not None:
            (folder / table.vocabulary).parent.mkdir(exist_ok=True)
            (folder / table.vocabulary).write_bytes(vocabularies[table.name].text)
    if request.format in PROGRAMS:
        # The exporters of torch take seconds to load.
        import_module("cpr_trainer.export.program").write_network(network, job.model, transform, request.format, folder)
    if changed is None:
        write_tables(store, job, manifest, folder, transform)
    else:
        counts = changed(folder, transform)
        _write(folder / DELTA, {"since": request.since, "anchor": request.anchor, **counts})
    (folder / TRANSFORM).write_text(transform.to_json(), encoding="utf-8")
    about = {
        "job": job.job_name,
        "anchor": request.anchor,
        "step": manifest.step,
        "samples": manifest.samples,
        "totalSamples": None if manifest.total_samples == OPEN_TOTAL else manifest.total_samples,
        "model": to_dict(job.model),
    }
    _write(folder / ABOUT, about)


def transform_of(job: JobSpec) -> Transform:
    """Return the transform from the columns of the job's data to the inputs of its network. Raises DataError.

    Synthetic data has the columns of the Criteo layout.
    """
    model, data = job.model, job.data
    columns = columns_of(replace(data, format="Criteo") if data.format == "Synthetic" else data, model)
    names = [each.name for each in model.features or model.tables]
    return Transform(
        columns.width,
        (*(Numeric(name, "Count") for name in columns.counts), *(Numeric(name, "Number") for name in columns.numbers)),
        tuple(
            Table(
                table.name,
                f"tables/{quote(table.name, safe='')}.safetensors",
                table.rows,
                dim,
                table.ids,
                table.hash_seed,
                table.out_of_range,
                f"vocabularies/{quote(table.name, safe='')}.txt" if table.ids == "Vocabulary" else None,
                _default(job, place),
            )
            for place, (table, dim) in enumerate(zip(model.tables, model.table_dims, strict=True))
        ),
        tuple(
            Feature(name, each.column, each.table.name, each.pooling, each.max_length, each.weights, each.integers)
            for name, each in zip(names, columns.inputs, strict=True)
        ),
        (*model.labels, *model.targets),
        columns.separator,
    )


def _default(job: JobSpec, place: int) -> Default | None:
    """Return the vector of a key without a row, in the table at a place of a job's model; None for a static table."""
    table = job.model.tables[place]
    if table.dynamic is None:
        return None
    return Default(table.dynamic.default, job.data.seed % 2**64, place, table.precision)


def write_tables(store: Store, job: JobSpec, manifest: DenseManifest, folder: Path, transform: Transform) -> None:
    """Write all shards into tables that are mapped files: the tables need not fit into memory.

    A file has `weight`, float32 [rows, dim]. The file of a dynamic table has the n keys that are live at the anchor:
    `keys`, uint64 [n] ascending, and `weight`, float32 [n, dim].
    """
    static, dynamic = _kinds(job)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".scratch-") as scratch:
        weights, keyed = dict[int, torch.Tensor](), dict[int, KeyedFile]()
        for place, table in enumerate(transform.tables):
            if place in static:
                size = table.rows * table.dim
                flat = torch.from_file(f"{scratch}/{place}", shared=True, size=size)
                weights[place] = flat.view(table.rows, table.dim)
            else:
                live = LiveTable.of(place, dynamic[place], manifest.step)
                keyed[place] = KeyedFile(live, table.dim, Path(scratch, str(place)))
        placement = Placement.of(job.model, len(manifest.shards))
        for index in range(placement.shards):
            local = load_anchor(store, job, manifest, placement, index)
            for place, rows, slots in _slots(local, static):
                weights[place][torch.from_numpy(rows)] = torch.from_numpy(_values(local, slots))
            for file in keyed.values():
                file.add(local)
        for place, weight in weights.items():
            safetensors.torch.save_file({"weight": weight}, folder / transform.tables[place].file)
        for place, file in keyed.items():
            file.write(folder / transform.tables[place].file)


def write_changed_rows(
    store: Store, job: JobSpec, anchors: tuple[DenseManifest, DenseManifest], folder: Path, transform: Transform
) -> dict[str, dict[str, int]]:
    """Write the rows of the second anchor that differ from those of the first one; return their numbers, by table.

    A file has `rows`, int64 [k] ascending, and `weight`, float32 [k, dim], of a table. Anchors of earlier versions do
    not state the first values of rows that no save has. Such rows of another job count as changed.

    The file of a dynamic table has `keys`, uint64 [k] ascending, instead of `rows`, and `removed`, uint64 [r]: keys
    that the second anchor lacks. No save states the rules of another job, so all of its rows count as changed.
    """
    since, until = anchors
    same_job = since.job_uid == job.job_uid
    static, dynamic = _kinds(job)
    found: dict[int, list[tuple[Ints, Floats]]] = {place: [] for place in static}
    keyed = {
        place: KeyedDifference(
            LiveTable.of(place, rules, since.step) if same_job else None,
            LiveTable.of(place, rules, until.step),
            transform.tables[place].dim,
        )
        for place, rules in dynamic.items()
    }
    placement = Placement.of(job.model, len(until.shards))
    for index in range(placement.shards):
        old, new = (load_anchor(store, job, each, placement, index) for each in (since, until))
        for place, rows, slots in _slots(new, static):
            before, after = _values(old, slots), _values(new, slots)
            changed = (before.view(np.int32) != after.view(np.int32)).any(axis=1)
            if not same_job and since.model is None:
                changed |= old.arena.epochs.of[slots] == 0
            if changed.any():
                found[place].append((rows[changed], after[changed]))
        for differences in keyed.values():
            differences.add(old, new)
    counts: dict[str, dict[str, int]] = {name: {} for name in (("rows", "removed") if keyed else ("rows",))}
    for place, table in enumerate(transform.tables):
        if place in static:
            counts["rows"][table.name] = write_rows(found[place], table.dim, folder / table.file)
        else:
            counts["rows"][table.name], counts["removed"][table.name] = keyed[place].write(folder / table.file)
    return counts


def _kinds(job: JobSpec) -> tuple[set[int], dict[int, DynamicSpec]]:
    """Return the places of the static tables in a job's model, and the rules of the others by their places."""
    dynamic = {place: table.dynamic for place, table in enumerate(job.model.tables) if table.dynamic is not None}
    return set(range(len(job.model.tables))) - dynamic.keys(), dynamic


def write_rows(parts: Sequence[tuple[Ints, Floats]], dim: int, to: Path) -> int:
    """Write rows, int64 [k], with their vectors, float32 [k, dim], into a delta's file; return their number."""
    rows = np.concatenate([np.empty(0, np.int64), *(rows for rows, _ in parts)])
    weight = np.concatenate([np.empty((0, dim), np.float32), *(values for _, values in parts)])
    order = np.argsort(rows)
    safetensors.numpy.save_file({"rows": rows[order], "weight": weight[order]}, to)
    return len(rows)


def _slots(local: LocalRows, tables: Collection[int]) -> Iterator[tuple[int, Ints, Ints]]:
    """Yield rows of some tables on a shard, int64 [k], and their slots, table by table and chunk by chunk."""
    for chunk in local.placement.rows_of(local.index):
        slots = np.arange(chunk.first_slot, chunk.first_slot + len(chunk.rows))
        for table in np.intersect1d(chunk.tables, [*tables]).tolist():
            here = chunk.tables == table
            yield table, chunk.rows[here], slots[here]


def _values(local: LocalRows, slots: Ints) -> Floats:
    """Return the vectors of slots of one table, float32 [k, dim]."""
    ((segment, inside),) = local.arena.parted(slots)
    return segment.read(inside)


def _network(store: Store, job: JobSpec, manifest: DenseManifest) -> nn.Module:
    """Return the dense network of an anchor, in evaluation mode."""
    replica = DenseReplica(job.model, job.data.seed)
    replica.load(read_tensors(store, manifest))
    # The parameters are views of one tensor, and safetensors refuses shared memory.
    for parameter in replica.model.parameters():
        parameter.data = parameter.data.clone()
    return replica.model.eval().requires_grad_(requires_grad=False)


def _write(path: Path, document: object) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
