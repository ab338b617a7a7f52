"""A dense network with random numbers and buffers: dropout and BatchNorm, before and after the embeddings."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cpr_contract.model import ModelSpec

_WIDTH = 16


class Network(nn.Module):
    """A layer over the numbers, and one over its outputs and all vectors."""

    def __init__(self, spec: ModelSpec, _seed: int) -> None:
        super().__init__()
        vectors = len(spec.tables) * spec.embedding_dim
        self.bottom = nn.Sequential(nn.Linear(13, _WIDTH), nn.BatchNorm1d(_WIDTH), nn.ReLU(), nn.Dropout(0.2))
        self.top = nn.Sequential(
            nn.Linear(_WIDTH + vectors, _WIDTH),
            nn.Dropout(0.2),
            nn.BatchNorm1d(_WIDTH),
            nn.ReLU(),
            nn.Linear(_WIDTH, 1),
        )

    def before_embeddings(self, dense: Tensor) -> Tensor:
        """Return the outputs of the bottom layer, [n, 16]."""
        outputs: Tensor = self.bottom(dense)
        return outputs

    def with_embeddings(self, outputs: Tensor, embeddings: Tensor) -> Tensor:
        """Return logits, [n]."""
        logits: Tensor = self.top(torch.cat((outputs, embeddings.flatten(1)), dim=1))
        return logits.squeeze(1)
