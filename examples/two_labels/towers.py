"""A DLRM with two towers as the dense network of a CPRJob, for clicks and purchases: `entrypoint: towers:Towers`.

Both labels share the embeddings and the bottom (Caruana, "Multitask Learning", 1997); each has a tower of its own.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

FEATURES = 13  # numeric features of a sample; those that the data does not have are 0


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers of these widths, each with a ReLU behind it."""
    return nn.Sequential(*(nn.Sequential(nn.Linear(*pair), nn.ReLU()) for pair in pairwise(widths)))


class Towers(nn.Module):
    """Features to a vector, dot products of all pairs of vectors, and over both a tower for each of `spec.labels`.

    `spec` is the job's `cpr_contract.model.ModelSpec`: `bottomMlp` has the widths of the bottom, `topMlp` of a tower.
    """

    def __init__(self, spec, seed):
        super().__init__()
        vectors = 1 + len(spec.tables)
        self.bottom = mlp(FEATURES, *spec.bottom_mlp)
        self.register_buffer("pairs", torch.tril_indices(vectors, vectors, offset=-1), persistent=False)
        width = spec.embedding_dim + self.pairs.shape[1]
        widths = (width, *spec.top_mlp)
        self.towers = nn.ModuleList(nn.Sequential(mlp(*widths), nn.Linear(widths[-1], 1)) for _ in spec.labels)

    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        """Return logits, [n, labels]. dense: float32 [n, 13]. embeddings: [n, tables, dim]."""
        summary = self.bottom(dense)
        vectors = torch.cat((summary.unsqueeze(1), embeddings), dim=1)
        dots = (vectors @ vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        shared = torch.cat((summary, dots), dim=1)
        return torch.cat([tower(shared) for tower in self.towers], dim=1)

    def sample_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each sample, [n]: purchases are rare, and weigh twice as much as clicks."""
        losses = nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
        return losses @ losses.new_tensor([1.0, 2.0])

    def metric_sums(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return what is predicted of each label in all, and what happened, [4]."""
        return torch.cat((logits.sigmoid().sum(dim=0), labels.sum(dim=0)))

    def metrics(self, sums: Tensor) -> dict[str, float]:
        """Return how many times as many clicks and purchases are predicted as there are. sums: float64 [4]."""
        clicks, buys = sums[:2] / sums[2:]
        return {"click.calibration": clicks.item(), "buy.calibration": buys.item()}
