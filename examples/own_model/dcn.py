"""A Deep & Cross Network V2 (Wang et al., arXiv 2008.13535) as the dense network of a CPRJob: `entrypoint: dcn:Dcn`."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

FEATURES = 13  # numeric features of a sample; those that the data does not have are 0


class Dcn(nn.Module):
    """Crosses of features and embeddings, and a deep network over them; `topMlp` has the deep network's widths.

    `spec` is the job's `cpr_contract.model.ModelSpec`. First values follow from torch's random numbers, which CPRJob
    has seeded: all trainers start with the same values.
    """

    def __init__(self, spec, seed, crosses=2):
        super().__init__()
        width = FEATURES + len(spec.tables) * spec.embedding_dim
        self.norm = nn.BatchNorm1d(FEATURES)  # Its running statistics are saved and exported too.
        self.crosses = nn.ModuleList(nn.Linear(width, width) for _ in range(crosses))
        widths = (width, *spec.top_mlp)
        layers = [nn.Sequential(nn.Linear(*pair), nn.ReLU()) for pair in pairwise(widths)]
        self.deep = nn.Sequential(*layers)
        self.logit = nn.Linear(width + widths[-1], 1)

    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        """Return logits, [n]. dense: float32 [n, 13]. embeddings: [n, tables, dim]; a bag's vectors are pooled."""
        first = torch.cat((self.norm(dense), embeddings.flatten(1)), dim=1)
        crossed = first
        for cross in self.crosses:
            crossed = first * cross(crossed) + crossed
        return self.logit(torch.cat((crossed, self.deep(first)), dim=1)).squeeze(1)
