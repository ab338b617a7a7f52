"""A small network over the features of `feature_data`: pooled ones, and a history that its weights sum up."""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from cpr_contract.model import ModelSpec
from cpr_trainer.features import Features, Jagged


class Network(nn.Module):
    """Attention to `history` by `page`, and all pooled features."""

    def __init__(self, spec: ModelSpec, _seed: int) -> None:
        super().__init__()
        dims = dict(zip((table.name for table in spec.tables), spec.table_dims, strict=True))
        width = spec.dense_width + spec.embedding_dim
        width += sum(dims[feature.table] for feature in spec.features if feature.pooling != "None")
        layers = [nn.Sequential(nn.Linear(*pair), nn.ReLU()) for pair in pairwise((width, 16))]
        self.layers = nn.Sequential(*layers, nn.Linear(16, 1))

    def forward(self, dense: Tensor, features: Features) -> Tensor:
        """Return logits, [n]. dense: float32 [n, 1]. features: see `cpr_trainer.features.Features`."""
        history = features["history"]
        assert isinstance(history, Jagged)
        vectors, there = history.padded()
        page = cast(Tensor, features["page"])
        scores = torch.bmm(vectors, page.unsqueeze(2)).squeeze(2) + history.padded_weights().to(page.dtype)
        interest = (torch.sigmoid(scores) * there).unsqueeze(2) * vectors
        pooled = [each for each in features.values() if isinstance(each, Tensor)]
        return cast(Tensor, self.layers(torch.cat((dense, interest.sum(dim=1), *pooled), dim=1)).squeeze(1))
