"""A Deep Interest Network (Zhou et al., arXiv 1706.06978) as the dense network of a CPRJob: `entrypoint: din:Din`."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Din(nn.Module):
    """Looks through a history for what resembles an item; `topMlp` has the widths of the layers after that.

    The job's features are `item` and `history`, which share a table of `embeddingDim`, and any other features that are
    one vector. `spec` is the job's `cpr_contract.model.ModelSpec`.
    """

    def __init__(self, spec, seed):
        super().__init__()
        dims = dict(zip((table.name for table in spec.tables), spec.table_dims, strict=True))
        self.pooled = [feature for feature in spec.features if feature.pooling != "None"]
        width = spec.dense_width + sum(dims[feature.table] for feature in self.pooled) + spec.embedding_dim
        self.attention = nn.Sequential(nn.Linear(3 * spec.embedding_dim, 16), nn.PReLU(), nn.Linear(16, 1))
        layers = []
        for outputs in spec.top_mlp[:-1]:
            layers += [nn.Linear(width, outputs), nn.PReLU()]
            width = outputs
        self.top = nn.Sequential(*layers, nn.Linear(width, spec.top_mlp[-1]))

    def forward(self, dense: Tensor, features) -> Tensor:
        """Return logits, [n].

        dense: float32 [n, N], the numeric features. features: by name `item` and others [n, D], each with the D of its
        table, and `history`, a `cpr_trainer.features.Jagged` of n sequences of [D].
        """
        vectors, there = features["history"].padded()  # [n, L, D], bool [n, L]
        item = features["item"].unsqueeze(1).expand_as(vectors)
        scores = self.attention(torch.cat((vectors, item, vectors * item), dim=2)).squeeze(2)  # [n, L]
        interest = (torch.where(there, scores, 0).unsqueeze(2) * vectors).sum(dim=1)  # [n, D]
        pooled = torch.cat([features[feature.name] for feature in self.pooled], dim=1)
        return self.top(torch.cat((dense, pooled, interest), dim=1)).squeeze(1)
