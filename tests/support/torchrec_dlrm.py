"""A dense network of TorchRec's own modules, as an entrypoint; needs the baselines' environment."""

from __future__ import annotations

from torch import Tensor, nn
from torchrec.models.dlrm import DenseArch, InteractionArch, OverArch

from cpr_contract.model import DENSE_FEATURES, ModelSpec


class Network(nn.Module):
    """TorchRec's DLRM over embeddings that CPRJob has pooled; the last layer of its over arch has a logit a label."""

    def __init__(self, spec: ModelSpec, seed: int) -> None:
        super().__init__()
        self.dense_arch = DenseArch(DENSE_FEATURES, list(spec.bottom_mlp))
        self.inter_arch = InteractionArch(len(spec.tables))
        vectors = 1 + len(spec.tables)
        width = spec.embedding_dim + vectors * (vectors - 1) // 2
        self.over_arch = OverArch(width, [*spec.top_mlp, len(spec.labels)])

    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        logits: Tensor = self.over_arch(self.inter_arch(self.dense_arch(dense), embeddings))
        return logits
