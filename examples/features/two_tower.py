"""A two-tower model with in-batch softmax (Yi et al., RecSys 2019): `entrypoint: two_tower:TwoTower`.

Retrieval looks for the items with vectors in the direction of a user's. Users and items meet in one dot product only,
and an item's vector can be computed without a user.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class TwoTower(nn.Module):
    """One tower over `user` and `history`, and one over `item`; `topMlp` has the widths of both.

    Negatives are the other items of the slice that is computed, so there are fewer with more trainers or workers. The
    paper's correction for items that are in more batches than others is left out: here all are equally frequent.
    """

    def __init__(self, spec, seed, temperature=0.2):
        super().__init__()
        self.user = self._tower(2 * spec.embedding_dim, spec.top_mlp)
        self.item = self._tower(spec.embedding_dim, spec.top_mlp)
        self.temperature = temperature

    @staticmethod
    def _tower(width, outputs):
        layers = []
        for each in outputs:
            layers += [nn.Linear(width, each), nn.ReLU()]
            width = each
        return nn.Sequential(*layers[:-1])

    def forward(self, dense: Tensor, features) -> Tensor:
        """Return logits, [n]: in training the log of each item's share among those of the slice, else its score.

        features: by name `user`, `item` and `history`, which is pooled, each [n, embeddingDim].
        """
        users = functional.normalize(self.user(torch.cat((features["user"], features["history"]), dim=1)), dim=1)
        items = functional.normalize(self.item(features["item"]), dim=1)
        if not torch.is_grad_enabled():
            return (users * items).sum(dim=1) / self.temperature
        return functional.log_softmax(users @ items.T / self.temperature, dim=1).diagonal()

    def sample_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each sample, [n]: an item without a click is only a negative of others."""
        return -logits * labels
