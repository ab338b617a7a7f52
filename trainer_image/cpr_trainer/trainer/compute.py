"""The arithmetic of one step on one trainer: forward, loss, backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from cpr_trainer.data.dataset import Batch
from cpr_trainer.embedding.access import AnyAccess, Embeddings, Rows, map_rows, single_tensor
from cpr_trainer.embedding.features import Features
from cpr_trainer.errors import DivergedError, ModelError
from cpr_trainer.model.entrypoint import gradients, loss_share, set_training, start
from cpr_trainer.model.replica import DenseReplica
from cpr_trainer.trainer.crew import ComputeWorkers


@dataclass(frozen=True, slots=True, eq=False)
class Computed:
    """One slice, computed. The dense gradient is in the replica.

    row_gradients: of the unique rows, in the replica's dtype. logits, labels: float32 [n] or [n, L]. All on the CPU.
    loss_share: see `cpr_trainer.model.entrypoint.loss_share`.
    """

    row_gradients: Rows
    logits: Tensor
    labels: Tensor
    loss_share: float


def compute(  # noqa: PLR0913, PLR0917 -- with what, on what, and who
    replica: DenseReplica,
    batch: Batch,
    access: AnyAccess,
    fetch: Callable[[], Rows],
    batch_size: int,
    crew: ComputeWorkers,
) -> Computed:
    """Compute a slice of a global batch of `batch_size` samples; its gradients add up over workers and trainers.

    fetch: returns the vectors of the unique rows of `access`, on the CPU; called when nothing is left to compute
    without them. The slice goes to the replica's device, and what comes out of it back.
    Raises DivergedError if the loss is not finite, ModelError if the network's code fails, and what `fetch` raises.
    """
    labels = torch.from_numpy(batch.labels)
    replica.zero_gradients()
    if not len(batch):  # Not every network takes a batch without samples.
        nothing = map_rows(lambda vectors: torch.zeros_like(vectors, dtype=replica.dtype), fetch())
        return Computed(nothing, labels, labels, 0.0)
    set_training(
        replica.model, on=len(batch) > 1
    )  # One sample has no statistics to normalise by, as BatchNorm does in training.
    device = replica.device
    dense, truth, there = torch.from_numpy(batch.dense).to(device), labels.to(device), access.to(device)
    parts = [_Part(replica, truth[samples], samples, batch_size) for samples in crew.parts(len(batch))]
    crew.each(lambda part: part.begin(dense), parts)
    embeddings = there.embeddings(map_rows(lambda values: values.to(device, replica.dtype), fetch()))
    shares = crew.each(lambda part: part.finish(embeddings), parts)
    for part in parts:  # In this order: sums in another one differ in their last bits.
        replica.add_gradients(part.dense_gradients)
    summed = there.sum_gradients(_joined([part.gradients for part in parts]))
    logits = torch.cat([part.logits for part in parts])
    return Computed(map_rows(Tensor.cpu, summed), logits.cpu(), labels, sum(shares))


class _Part:
    """A worker's part of a slice: its own samples and its own pass, on the network of all."""

    gradients: Embeddings
    dense_gradients: Sequence[Tensor | None]
    logits: Tensor

    def __init__(self, replica: DenseReplica, labels: Tensor, samples: slice, batch_size: int) -> None:
        self._replica = replica
        self._labels = labels
        self._samples = samples
        self._batch_size = batch_size

    def begin(self, dense: Tensor) -> None:
        """Compute what needs no embeddings. dense: float32 [n, N], of the whole slice."""
        with self._replica.autocast():
            self._end = start(self._replica.model, dense[self._samples], self._labels.shape[1:])

    def finish(self, embeddings: Embeddings) -> float:
        """Compute the rest from the embeddings of the whole slice, and return the loss share.

        Raises DivergedError, ModelError.
        """
        mine = _part_of(embeddings, self._samples)
        with self._replica.autocast():
            logits = self._end(mine).float()
        loss = loss_share(self._replica.model, logits, self._labels, self._batch_size)
        share = float(loss.detach())
        if not isfinite(share):
            raise DivergedError("The loss is not finite.", "Start again with a lower learning rate.")
        leaves, parameters = _leaves(mine), self._replica.trained
        found = gradients(self._replica.model, loss, (*leaves, *parameters))
        self.gradients, self.dense_gradients = _gradients(mine, found[: len(leaves)]), found[len(leaves) :]
        self.logits = logits.detach()
        return share


def _part_of(embeddings: Embeddings, samples: slice) -> Embeddings:
    """Return the embeddings of some samples, as leaves that gradients are collected in."""
    if isinstance(embeddings, Features):
        return embeddings.part(samples).map(Tensor.requires_grad_)
    return map_rows(lambda values: values[samples].requires_grad_(), embeddings)


def _joined(parts: Sequence[Embeddings]) -> Embeddings:
    """Return what belongs to parts of a slice as what belongs to the slice."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, Features):
        return Features.join([part for part in parts if isinstance(part, Features)])
    if isinstance(first, tuple):
        return tuple(torch.cat(of_table) for of_table in zip(*parts, strict=True))
    return torch.cat([*map(single_tensor, parts)])


def _leaves(embeddings: Embeddings) -> tuple[Tensor, ...]:
    """Return the tensors that embeddings consist of."""
    if isinstance(embeddings, Features):
        return embeddings.tensors
    return embeddings if isinstance(embeddings, tuple) else (embeddings,)


def _gradients(embeddings: Embeddings, found: Sequence[Tensor | None]) -> Embeddings:
    """Return the gradients of embeddings from those of their leaves; of those that the model did not use they are 0.

    Raises ModelError if it used none.
    """
    leaves = _leaves(embeddings)
    if all(gradient is None for gradient in found):
        raise ModelError(
            "The network does not use its embeddings in a batch.",
            "Without them, no table can learn; correct its forward.",
        )
    filled = tuple(
        torch.zeros_like(leaf) if gradient is None else gradient for leaf, gradient in zip(leaves, found, strict=True)
    )
    if isinstance(embeddings, Features):
        return embeddings.with_tensors(filled)
    return filled if isinstance(embeddings, tuple) else filled[0]
