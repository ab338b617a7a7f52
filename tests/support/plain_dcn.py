"""DLRM-DCNv2 in plain torch."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from cpr_contract.model import ModelSpec


class PlainDcn(nn.Module):
    """DLRM-DCNv2 as TorchRec has it: `LowRankCrossNet` between two networks of linear layers."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        assert spec.cross is not None, "the model has dot products"
        width, rank = (1 + len(spec.feature_tables)) * spec.embedding_dim, spec.cross.rank
        self.layers = spec.cross.layers
        self.bottom = nn.ModuleList(nn.Linear(*pair) for pair in pairwise((spec.dense_width, *spec.bottom_mlp)))
        self.kernels = nn.ParameterList()
        for _ in range(self.layers):
            self.kernels += [torch.empty(rank, width), torch.empty(width, rank), torch.empty(width)]
        self.top = nn.ModuleList(nn.Linear(*pair) for pair in pairwise((width, *spec.top_mlp)))

    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        """Return logits, [n]. dense: [n, N]. embeddings: [n, F, D]."""
        summary = dense
        for layer in self.bottom:
            summary = functional.relu(layer(summary))
        first = crossed = torch.cat((summary, embeddings.flatten(1)), dim=1)
        for number in range(self.layers):
            v, w, bias = self.kernels[3 * number : 3 * number + 3]
            crossed = first * ((crossed @ v.T) @ w.T + bias) + crossed
        for layer in self.top[:-1]:
            crossed = functional.relu(layer(crossed))
        logits: Tensor = self.top[-1](crossed)
        return logits.squeeze(1)

    def take(self, network: nn.Module) -> PlainDcn:
        """Copy the parameters of the built-in network, which are in the same order: bottom, cross layers, top."""
        with torch.no_grad():
            for mine, its in zip(self.parameters(), network.parameters(), strict=True):
                mine.copy_(its)
        return self
