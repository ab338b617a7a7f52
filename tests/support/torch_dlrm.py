"""Plain torch networks with the layers and the names of DLRMs of other systems."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn


def _mlp(*widths: int) -> nn.Module:
    """A stack of layers with ReLU after each, by the names of torchrec.modules.mlp.MLP."""
    stack = nn.Module()
    stack._mlp = nn.ModuleList()
    for pair in pairwise(widths):
        layer = nn.Module()
        layer._linear = nn.Linear(*pair)
        stack._mlp.append(layer)
    return stack


def _through(stack: nn.Module, values: Tensor) -> Tensor:
    layers: nn.ModuleList = stack.get_submodule("_mlp")  # type: ignore[assignment]
    for layer in layers:
        values = torch.relu(layer.get_submodule("_linear")(values))
    return values


class TorchRecDlrm(nn.Module):
    """The dense network of TorchRec's DLRM, or with `layers` of its DLRM_DCN, over F vectors of D values."""

    def __init__(  # noqa: PLR0913, PLR0917 -- its sizes
        self, numeric: int, vectors: int, bottom: tuple[int, ...], top: tuple[int, ...], layers: int = 0, rank: int = 0
    ) -> None:
        super().__init__()
        dim, self.layers = bottom[-1], layers
        self.dense_arch, self.over_arch, self.inter_arch = nn.Module(), nn.Module(), nn.Module()
        self.dense_arch.model = _mlp(numeric, *bottom)
        width = (1 + vectors) * dim if layers else dim + vectors * (vectors + 1) // 2
        self.over_arch.model = nn.Sequential(_mlp(width, *top[:-1]), nn.Linear(top[-2], top[-1]))
        self.above = torch.triu_indices(1 + vectors, 1 + vectors, offset=1)
        if layers:
            cross = self.inter_arch.crossnet = nn.Module()
            shapes = {"V_kernels": (rank, width), "W_kernels": (width, rank), "bias": (width, 1)}
            for name, shape in shapes.items():
                setattr(cross, name, nn.ParameterList(torch.randn(shape) / 4 for _ in range(layers)))

    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        """Return logits, [n]. dense: float32 [n, N]. embeddings: float32 [n, F, D]."""
        summary = _through(self.dense_arch.get_submodule("model"), dense)
        combined = torch.cat((summary.unsqueeze(1), embeddings), dim=1)
        if self.layers:
            crossed = first = combined.flatten(1).unsqueeze(2)
            cross = dict(self.inter_arch.named_parameters())
            for layer in range(self.layers):
                v, w, bias = (cross[f"crossnet.{name}.{layer}"] for name in ("V_kernels", "W_kernels", "bias"))
                crossed = first * (w @ (v @ crossed) + bias) + crossed
            values = crossed.squeeze(2)
        else:
            products = combined @ combined.transpose(1, 2)
            values = torch.cat((summary, products[:, self.above[0], self.above[1]]), dim=1)
        hidden, last = self.over_arch.get_submodule("model").children()
        logits: Tensor = last(_through(hidden, values))
        return logits.squeeze(1)
