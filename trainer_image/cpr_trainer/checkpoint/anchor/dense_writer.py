"""Writes the dense state, and commits anchors, which also name every shard's save of the same step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import safetensors.torch
import torch

from cpr_contract import CONTRACT_VERSION
from cpr_contract.manifests import DenseManifest, ManifestRef, Part, Ranges, SavedModel, TableIds
from cpr_contract.roster import AnchorRef
from cpr_trainer.checkpoint.format.documents import exists, write_once
from cpr_trainer.checkpoint.format.names import dense_save, part_name
from cpr_trainer.store import Store, checksum


@dataclass(frozen=True, slots=True)
class DenseMeta:
    """The fields of a `DenseManifest` without its parts.

    `process_number` distinguishes the parts of several writers. Only one of them can commit the save.
    """

    job_uid: str
    generation: int
    group: int
    step: int
    samples: int
    total_samples: int
    layout: str
    dense_lost: Ranges
    ids: TableIds = ()
    model: SavedModel | None = None
    best_step: int = 0
    process_number: int = 1


@dataclass(frozen=True, slots=True)
class SavedDense:
    """A committed dense save."""

    manifest: DenseManifest
    ref: ManifestRef


def save_dense(store: Store, meta: DenseMeta, tensors: Mapping[str, torch.Tensor]) -> SavedDense:
    """Write the dense state alone: CPU tensors of any dtype and shape, none sharing memory with another.

    Raises StoreError; ExistsError if this group committed another state at this step.
    """
    return _save(store, meta, tensors, (), ())


def commit_anchor(
    store: Store,
    meta: DenseMeta,
    tensors: Mapping[str, torch.Tensor],
    shards: tuple[ManifestRef, ...],
    lost: tuple[Ranges, ...],
) -> AnchorRef:
    """Write the dense state of a cut and commit its anchor: `shards[i]` is shard i's save, `lost[i]` its lost ranges.

    Raises StoreError; ExistsError if another anchor of this group and step is committed.
    """
    if not shards:
        raise ValueError("an anchor names the saves of all shards")
    ref = _save(store, meta, tensors, shards, lost).ref
    return AnchorRef(ref.key, ref.digest, meta.generation, meta.step, meta.samples)


def _save(
    store: Store,
    meta: DenseMeta,
    tensors: Mapping[str, torch.Tensor],
    shards: tuple[ManifestRef, ...],
    lost: tuple[Ranges, ...],
) -> SavedDense:
    manifest = DenseManifest(
        contract=CONTRACT_VERSION,
        job_uid=meta.job_uid,
        generation=meta.generation,
        group=meta.group,
        step=meta.step,
        samples=meta.samples,
        total_samples=meta.total_samples,
        layout=meta.layout,
        parts=(),
        shards=shards,
        lost=lost,
        dense_lost=meta.dense_lost,
        ids=meta.ids,
        model=meta.model,
        best_step=meta.best_step,
    )
    name = dense_save(manifest)
    data = safetensors.torch.save(dict(tensors))
    part = Part(name.folder + part_name(0, meta.process_number), len(data), checksum(data))
    manifest = dataclasses.replace(manifest, parts=(part,))
    if not exists(store, name.manifest):  # committed parts are never overwritten
        store.put(part.key, data)
    return SavedDense(manifest, write_once(store, name.manifest, manifest))
