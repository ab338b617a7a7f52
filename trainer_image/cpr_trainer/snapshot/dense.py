"""Saves of the dense state, and anchors: a dense save that names every shard's save of the same step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

import safetensors
import safetensors.torch
import torch

from cpr_contract import CONTRACT_VERSION
from cpr_contract.manifests import DenseManifest, ManifestRef, Part, dense_prefix
from cpr_contract.roster import AnchorRef
from cpr_trainer.snapshot.anchors import TableIds, dense_start
from cpr_trainer.snapshot.commit import is_there, read_manifest, read_part, write_once
from cpr_trainer.snapshot.errors import DamagedError
from cpr_trainer.snapshot.lineage import Candidate, dense_lineage
from cpr_trainer.snapshot.names import committed_in, dense_save, part_name
from cpr_trainer.store import Store, checksum

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class DenseMeta:
    """What the leader says of a dense save, but for its parts: the fields of `DenseManifest`."""

    job_uid: str
    generation: int
    group: int
    step: int
    samples: int
    total_samples: int
    layout: str
    dense_lost: Ranges
    ids: TableIds = ()


@dataclass(frozen=True, slots=True)
class SavedDense:
    """A committed dense save."""

    manifest: DenseManifest
    ref: ManifestRef


@dataclass(frozen=True, slots=True)
class RestoredDense:
    """Where the dense state stands after a restore.

    `tensors` is empty for `Seed`: the caller makes first values. `step`, `samples` and `lost` are those to go on with:
    0 and empty after `RestoreFrom` and `Seed`; `lost` is empty after `Anchor` too, since it counts from there.
    """

    step: int
    samples: int
    lost: Ranges
    tensors: dict[str, torch.Tensor]
    manifest: DenseManifest | None
    ref: ManifestRef | None


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

    Raises StoreError; ExistsError if this group committed another anchor at this step.
    """
    if not shards:
        raise ValueError("an anchor names the saves of all shards")
    ref = _save(store, meta, tensors, shards, lost).ref
    return AnchorRef(ref.key, ref.digest, meta.generation, meta.step, meta.samples)


def newest_dense(  # noqa: PLR0913 -- the identity of one lineage
    store: Store,
    job_uid: str,
    generation: int,
    anchor: AnchorRef | None,
    layout: str,
    *,
    restore_from: str | None = None,
    ids: TableIds = (),
    at_most_step: int | None = None,
) -> tuple[Candidate, ...]:
    """Dense saves of this generation (anchors included), newest group and step first; never empty.

    Ends with the generation's anchor; without one with `restore_from` (another job's anchor, by key); without that with
    `Seed`. Raises StoreError; LayoutError or DamagedError for a `restore_from` that does not fit or is not there.
    """
    saves = committed_in(entry.key for entry in store.list(dense_prefix(job_uid, generation) + "/"))
    return (*dense_lineage(saves, layout, at_most_step), dense_start(store, anchor, restore_from, layout, ids))


def load_dense(store: Store, candidate: Candidate) -> RestoredDense:
    """Verify and read a candidate of `newest_dense`. Raises DamagedError, StoreError."""
    if candidate.kind == "Seed":
        return RestoredDense(0, 0, (), {}, None, None)
    manifest, ref = read_manifest(store, DenseManifest, candidate.saves[0], candidate.layout)
    tensors = read_tensors(store, manifest)
    match candidate.kind:
        case "RestoreFrom":
            return RestoredDense(0, 0, (), tensors, manifest, ref)
        case "Anchor":
            return RestoredDense(manifest.step, manifest.samples, (), tensors, manifest, ref)
        case "Save":
            return RestoredDense(manifest.step, manifest.samples, manifest.dense_lost, tensors, manifest, ref)
        case _:
            assert_never(candidate.kind)


def read_tensors(store: Store, manifest: DenseManifest) -> dict[str, torch.Tensor]:
    """Return the tensors of a dense save by name. Raises DamagedError, StoreError."""
    tensors: dict[str, torch.Tensor] = {}
    for part in manifest.parts:
        try:
            tensors |= safetensors.torch.load(read_part(store, part))
        except safetensors.SafetensorError as error:
            raise DamagedError(part.key, f"holds no tensors: {error}") from error
    return tensors


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
    )
    name = dense_save(manifest)
    data = safetensors.torch.save(dict(tensors))
    part = Part(name.folder + part_name(0), len(data), checksum(data))
    manifest = dataclasses.replace(manifest, parts=(part,))
    if not is_there(store, name.manifest):  # What is committed is never written over.
        store.put(part.key, data)
    return SavedDense(manifest, write_once(store, name.manifest, manifest))
