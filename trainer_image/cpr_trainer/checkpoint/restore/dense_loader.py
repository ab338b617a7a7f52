"""Reads the dense state: the saves of a generation, newest first, and the tensors of one."""

from __future__ import annotations

from dataclasses import dataclass

import safetensors
import safetensors.torch
import torch

from cpr_contract.manifests import DenseManifest, ManifestRef, Ranges, dense_prefix
from cpr_contract.roster import AnchorRef
from cpr_contract.spec import JobSpec
from cpr_trainer.checkpoint.format.documents import DamagedError, read_manifest, read_part
from cpr_trainer.checkpoint.format.keys import committed_in
from cpr_trainer.checkpoint.restore.lineage import Candidate, dense_lineage, dense_start
from cpr_trainer.embedding.placement import layout_hash
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


def newest_dense(store: Store, job: JobSpec, generation: int, anchor: AnchorRef | None) -> tuple[Candidate, ...]:
    """Dense saves of this generation (anchors included), newest group and step first; never empty.

    Ends with the generation's anchor; without one with the job's `restore_from`; without that with `Seed`. Raises as
    `dense_start`.
    """
    saves = committed_in(entry.key for entry in store.list(dense_prefix(job.job_uid, generation) + "/"))
    return (*dense_lineage(saves, layout_hash(job.model)), dense_start(store, job, anchor))


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
        data = bytearray(part.size_bytes)
        read_part(store, part, [memoryview(data)])
        try:
            tensors |= safetensors.torch.load(bytes(data))
        except safetensors.SafetensorError as error:
            raise DamagedError(part.key, f"holds no tensors: {error}") from error
    return tensors
