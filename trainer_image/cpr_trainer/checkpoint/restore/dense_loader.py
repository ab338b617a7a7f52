"""Reads the dense state: the saves of a generation, newest first, and the tensors of one."""

from __future__ import annotations

from dataclasses import dataclass

import safetensors
import safetensors.torch
import torch

from cpr_contract.manifests import DenseManifest, ManifestRef, Ranges, TableIds, dense_prefix
from cpr_contract.roster import AnchorRef
from cpr_trainer.checkpoint.format.documents import DamagedError, read_manifest, read_part
from cpr_trainer.checkpoint.format.names import committed_in
from cpr_trainer.checkpoint.restore.by_name import ByName
from cpr_trainer.checkpoint.restore.lineage import Candidate, dense_lineage, dense_start
from cpr_trainer.store import Store


@dataclass(frozen=True, slots=True)
class RestoredDense:
    """The dense state after a restore.

    `tensors` is empty for `Seed`: the caller makes first values. Training continues from `step`, `samples` and `lost`:
    0 and empty after `RestoreFrom` and `Seed`; `lost` is empty after `Anchor` too, because it counts from there.
    """

    step: int
    samples: int
    lost: Ranges
    tensors: dict[str, torch.Tensor]
    manifest: DenseManifest | None
    ref: ManifestRef | None


def newest_dense(  # noqa: PLR0913 -- the identity of one lineage
    store: Store,
    job_uid: str,
    generation: int,
    anchor: AnchorRef | None,
    layout: str,
    *,
    restore_from: str | None = None,
    ids: TableIds = (),
    by_name: ByName | None = None,
) -> tuple[Candidate, ...]:
    """Dense saves of this generation (anchors included), newest group and step first; never empty.

    Ends with the generation's anchor; without one with `restore_from` (another job's anchor, by key); without that with
    `Seed`. Raises StoreError; LayoutError or DamagedError for a `restore_from` that does not fit or is missing.
    """
    saves = committed_in(entry.key for entry in store.list(dense_prefix(job_uid, generation) + "/"))
    return (*dense_lineage(saves, layout), dense_start(store, anchor, restore_from, layout, ids=ids, by_name=by_name))


def load_dense(store: Store, candidate: Candidate) -> RestoredDense:
    """Verify and read a candidate of `newest_dense`. Raises DamagedError, StoreError."""
    if candidate.kind == "Seed":
        return RestoredDense(0, 0, (), {}, None, None)
    manifest, ref = read_manifest(store, DenseManifest, candidate.saves[0], candidate.layout)
    tensors = read_tensors(store, manifest)
    if candidate.kind == "RestoreFrom":
        return RestoredDense(0, 0, (), tensors, manifest, ref)
    lost = manifest.dense_lost if candidate.kind == "Save" else ()
    return RestoredDense(manifest.step, manifest.samples, lost, tensors, manifest, ref)


def read_tensors(store: Store, manifest: DenseManifest) -> dict[str, torch.Tensor]:
    """Return the tensors of a dense save by name. Raises DamagedError, StoreError."""
    tensors: dict[str, torch.Tensor] = {}
    for part in manifest.parts:
        try:
            tensors |= safetensors.torch.load(read_part(store, part))
        except safetensors.SafetensorError as error:
            raise DamagedError(part.key, f"holds no tensors: {error}") from error
    return tensors
