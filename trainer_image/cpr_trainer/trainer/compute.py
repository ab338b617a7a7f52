"""The arithmetic of one step on one trainer: forward, loss, backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from cpr_trainer.access import Access, BandedAccess, Embeddings, Rows, each
from cpr_trainer.data.batch import Batch
from cpr_trainer.errors import DivergedError
from cpr_trainer.model.entrypoint import loss_share, start
from cpr_trainer.model.replica import DenseReplica


@dataclass(frozen=True, slots=True, eq=False)
class Computed:
    """One slice, computed. The dense gradient is in the replica.

    row_gradients: of the unique rows, in the replica's dtype. logits, labels: float32 [n] or [n, L].
    loss_share: see `cpr_trainer.model.entrypoint.loss_share`.
    """

    row_gradients: Rows
    logits: Tensor
    labels: Tensor
    loss_share: float


def compute(
    replica: DenseReplica, batch: Batch, access: Access | BandedAccess, fetch: Callable[[], Rows], batch_size: int
) -> Computed:
    """Compute a slice of a global batch of `batch_size` samples; its gradients add up over trainers.

    fetch: returns the vectors of the unique rows of `access`; called when nothing is left to compute without them.
    Raises DivergedError if the loss is not finite, and what `fetch` raises.
    """
    labels = torch.from_numpy(batch.labels)
    replica.zero_gradients()
    if not len(batch):  # Not every network takes a batch without samples.
        nothing = each(lambda vectors: torch.zeros_like(vectors, dtype=replica.dtype), fetch())
        return Computed(nothing, labels, labels, 0.0)
    replica.model.train(len(batch) > 1)  # One sample has no statistics to normalise by, as BatchNorm does in training.
    with replica.autocast():
        finish = start(replica.model, torch.from_numpy(batch.dense))
        vectors = each(lambda values: values.to(replica.dtype), fetch())
        embeddings = each(Tensor.requires_grad_, access.embeddings(vectors))
        logits = finish(embeddings).float()
    loss = loss_share(replica.model, logits, labels, batch_size)
    share = float(loss.detach())
    if not isfinite(share):
        raise DivergedError("The loss is not finite.", "Start again with a lower learning rate.")
    loss.backward()  # type: ignore[no-untyped-call]
    return Computed(access.sum_gradients(_gradients(embeddings)), logits.detach(), labels, share)


def _gradients(embeddings: Embeddings) -> Embeddings:
    """Return the gradients of embeddings; of a table that the model did not use they are 0."""
    leaves = embeddings if isinstance(embeddings, tuple) else (embeddings,)
    if all(leaf.grad is None for leaf in leaves):
        raise ValueError("the model did not use its embeddings")
    return each(lambda leaf: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad, embeddings)
