"""A dense network over tables of several dims: it takes a vector [n, D_t] of each table."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cpr_contract.model import ModelSpec


class Network(nn.Module):
    """A layer over the numbers and all concatenated vectors."""

    def __init__(self, spec: ModelSpec, seed: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(13 + sum(spec.table_dims), 16)
        self.logit = nn.Linear(16, 1)

    def forward(self, dense: Tensor, embeddings: tuple[Tensor, ...]) -> Tensor:
        hidden = torch.relu(self.hidden(torch.cat((dense, *embeddings), dim=1)))
        logits: Tensor = self.logit(hidden)
        return logits.squeeze(1)
