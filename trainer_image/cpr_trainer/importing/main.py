"""`python -m cpr_trainer import`: writes a model that was trained elsewhere as an anchor, which any job may start from.

It fills and writes one shard of the anchor at a time, so memory for one of them is enough; it reads the source once for
each. The anchor is committed last. Concurrent imports of one name write under different numbers: the first to commit is
the import of that name.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TextIO

import torch

from cpr_contract import CONTRACT_VERSION, env
from cpr_contract.codec import to_json
from cpr_contract.manifests import (
    MANIFEST,
    DenseManifest,
    ManifestRef,
    ShardManifest,
    dense_prefix,
    probe_prefix,
    step_folder,
)
from cpr_contract.model import PAGE_SLOTS, TableSpec
from cpr_contract.requests import Imported, ImportedTable, ImportRequest
from cpr_contract.spec import JobSpec
from cpr_trainer.checkpoint.anchor.committer import commit_anchor
from cpr_trainer.checkpoint.anchor.pruning import delete_saves, everything
from cpr_trainer.checkpoint.format.documents import exists
from cpr_trainer.checkpoint.format.keys import part_name
from cpr_trainer.checkpoint.write.writer import Writer
from cpr_trainer.embedding.arena import LocalRows
from cpr_trainer.embedding.dynamic.pages import capacity_of
from cpr_trainer.embedding.placement import Placement, layout_hash
from cpr_trainer.importing.filling import DIVERGED, Filled, fill
from cpr_trainer.importing.matching import Found, Matches, TableSource, match
from cpr_trainer.importing.sources import opened
from cpr_trainer.importing.tensors import SourceError, StoredTensor
from cpr_trainer.model.dense_optimizer import memory_width
from cpr_trainer.model.replica import NETWORK, DenseReplica, saved_model
from cpr_trainer.runtime import optional_path, read_job, read_request, store_access
from cpr_trainer.store import ExistsError, Store, StoreError, Uris, open_store


def run(environ: Mapping[str, str], source: TextIO, sink: TextIO) -> None:
    """Read an `ImportRequest` from `source` and write the `Imported` model to `sink`. Raises TrainerError."""
    request = read_request(ImportRequest, source, "import")
    job = read_job(environ)
    access = store_access(environ)
    store = open_store(job.snapshots.store, *access)
    uris = Uris(job.snapshots.store, *access)
    with opened(request.sources, uris, optional_path(environ, env.SCRATCH_DIR)) as found:
        imported = import_model(store, job, request, found)
    print(to_json(imported), file=sink, flush=True)


def import_model(store: Store, job: JobSpec, request: ImportRequest, found: Found) -> Imported:
    """Write an anchor of the tensors in `found` that a job uses, and return a description of it.

    Its owner is the imported model `request.name`, not a job. Raises SourceError if the tensors do not fit, ModelError
    if the job's network cannot be built, StoreError. After an error its objects are deleted from the store.

    After the commit, objects of other imports of that name are deleted: they were killed, or can no longer commit.
    """
    replica = DenseReplica(job.model, job.data.seed) if request.dense == "ByName" else None
    layers = () if replica is None else (*replica.parameter_shapes(), *replica.buffer_shapes())
    matches = match(found, job.model, layers, request.map, request.missing)
    for each in matches.tables:  # Find damage before anything is written.
        for tensor in each.tensors:
            tensor.read(0, 1)
    if replica is not None:
        _copy_layers(replica, matches.dense)
    owner = _owner(job, matches, request.name)
    store.probe(probe_prefix(owner.job_uid))
    attempt = 2 + secrets.randbelow(10**9)  # from 2 on it is in the names of parts
    with _whole_or_nothing(store, owner, request.name, attempt):
        key, filled = _write(store, owner, matches, replica, attempt)
    with suppress(StoreError):  # It only takes space, until the import is deleted.
        delete_saves(store, [each.key for each in everything(store, owner.job_uid, (key,))[0]])
    tables = tuple(map(partial(_imported, job), matches.tables, owner.model.tables, owner.model.table_dims, filled))
    layers_taken = None if replica is None else len(matches.dense)
    return Imported(key, tables, layers_taken, matches.missing_tables, matches.missing_layers, matches.unused)


def _imported(job: JobSpec, source: TableSource, table: TableSpec, dim: int, filled: Filled) -> ImportedTable:
    ids, keys = (None, None) if source.keys is None else source.keys.names
    return ImportedTable(
        table.name,
        source.weight.name,
        filled.rows,
        job.model.tables[source.place].rows,
        dim,
        table.id_scheme,
        sums=source.sums is not None,
        row_ids=ids,
        row_keys=keys,
        dropped=filled.dropped,
    )


def _owner(job: JobSpec, matches: Matches, name: str) -> JobSpec:
    """Return the spec of a job that would have saved the anchor: with the tables of the source, and their rows.

    A dynamic table has its capacity. Each shard has rows: those of a band, or whole pages of a dynamic table.
    """
    tables, units = list[TableSpec](), Counter[int]()
    for each in matches.tables:
        table = job.model.tables[each.place]
        tables.append(table if each.keys is not None else replace(table, rows=each.weight.shape[0]))
    model = replace(job.model, tables=tuple(tables))
    for table, band in zip(model.tables, model.bands, strict=True):
        units[band] += table.rows if table.dynamic is None else capacity_of(table.rows) // PAGE_SLOTS
    return replace(job, job_uid=f"import-{name}", model=model, shards=min(job.shards, max(units.values())))


@torch.no_grad()
def _copy_layers(replica: DenseReplica, layers: Mapping[str, StoredTensor]) -> None:
    """Copy parameters and buffers to the network; the others keep their first values. Raises SourceError."""
    network = {**dict(replica.model.named_parameters()), **replica.buffers()}
    for name, layer in layers.items():
        network[name].copy_(layer.whole())
        if not torch.isfinite(network[name]).all():
            raise SourceError(f"{layer.description} has values that are infinite or no numbers.", DIVERGED)


@contextmanager
def _whole_or_nothing(store: Store, owner: JobSpec, name: str, attempt: int) -> Iterator[None]:
    """Delete the objects of an attempt if it fails.

    Raises SourceError if there is an import of that name already, or another one commits first.
    """
    # The key follows from the name of the import alone.
    key = f"{dense_prefix(owner.job_uid, 1)}/group-0001/{step_folder(0)}/{MANIFEST}"
    taken = SourceError(
        f"There is an import of the name {name}: {key}.",
        f"Start from that one, give this one another --name, or delete all saves of the job {owner.job_uid} by "
        "`cprjob snapshots prune URI --job UID --all --delete`.",
    )
    if exists(store, key):
        raise taken
    try:
        yield
    except BaseException as error:
        with suppress(StoreError):  # An answer may have been lost, so a committed anchor stays.
            others = [each.key for each in everything(store, owner.job_uid, (key,))[0]]
            incarnation, part = f"/inc-{attempt:04d}/", f"/{part_name(0, attempt)}"
            delete_saves(store, [other for other in others if incarnation in other or other.endswith(part)])
        if isinstance(error, ExistsError):
            raise taken from error
        raise


def _write(
    store: Store, owner: JobSpec, matches: Matches, replica: DenseReplica | None, attempt: int
) -> tuple[str, tuple[Filled, ...]]:
    """Write all shards, then commit the anchor; return its key, and the rows taken of each table.

    Raises SourceError, StoreError.
    """
    written = [_write_shard(store, owner, matches, attempt, index) for index in range(owner.shards)]
    shards = tuple(ref for ref, _ in written)
    by_table = zip(*(filled for _, filled in written), strict=True)
    totals = tuple(Filled(sum(each.rows for each in some), sum(each.dropped for each in some)) for some in by_table)
    model = owner.model
    saved = saved_model(model, owner.data.seed, () if replica is None else replica.parameter_shapes())
    layout, ids = layout_hash(model), model.table_ids
    meta = DenseManifest(CONTRACT_VERSION, owner.job_uid, 1, 1, 0, 0, 0, layout, (), ids=ids, model=saved)
    no_network = {NETWORK: torch.zeros(1 + memory_width(model.dense_optimizer), 0)}
    tensors = no_network if replica is None else replica.tensors()
    anchor = commit_anchor(store, meta, tensors, shards, ((),) * owner.shards, process_number=attempt)
    return anchor.key, totals


def _write_shard(
    store: Store, owner: JobSpec, matches: Matches, attempt: int, index: int
) -> tuple[ManifestRef, list[Filled]]:
    local = LocalRows.of(owner, Placement.of(owner.model, owner.shards), index)
    filled = [
        fill(local, place, source)
        for place, (source, table) in enumerate(zip(matches.tables, owner.model.tables, strict=True))
    ]
    (first_place, end), *further = local.spans
    draft = ShardManifest(
        contract=CONTRACT_VERSION,
        job_uid=owner.job_uid,
        generation=1,
        index=index,
        incarnation=attempt,
        kind="Anchor",
        step=0,
        samples=0,
        layout=layout_hash(owner.model),
        first_place=first_place,
        places=end - first_place,
        applied=(0,) * owner.trainers,
        lost=(),
        further=tuple(further),
    )
    writer = Writer(store, local.arena)
    return writer.commit(writer.write(draft, local.arena.capture_changes(0))).ref, filled
