"""The dense network of a DLRM (Naumov et al., arXiv 1906.00091): bottom MLP, interaction, top MLP.

The interaction is the dot products of all pairs of vectors, or the cross network of DCN V2 (Wang et al., arXiv
2008.13535) over all of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from typing import Any, cast

import torch
from torch import Tensor, nn

from cpr_contract.model import CrossSpec, ModelSpec
from cpr_trainer.embedding.feature_vectors import Embeddings, Features


def pair_numbers(vectors: int) -> Tensor:
    """Return the number of each pair, int64 [vectors, vectors], symmetric; the diagonal has one past the last.

    Pairs are counted along the rows of the lower triangle: (1,0), (2,0), (2,1), (3,0), ...
    """
    below, above = torch.tril_indices(vectors, vectors, offset=-1)
    numbers = torch.full((vectors, vectors), len(below))
    numbers[below, above] = numbers[above, below] = torch.arange(len(below))
    return numbers


def pairwise_dots(vectors: Tensor, below: Tensor, numbers: Tensor) -> Tensor:
    """Return the dot products of all pairs of m vectors of each sample, [n, m (m - 1) / 2]: DLRM's interaction.

    vectors: [n, m, D]. below: int64 [pairs], places of the lower triangle in a flattened [m, m] matrix.
    numbers: int64 [m * m], `pair_numbers(m)` flattened.
    """
    return cast(Tensor, _PairwiseDots.apply(vectors, below, numbers))  # type: ignore[no-untyped-call]


class _PairwiseDots(torch.autograd.Function):
    """A gather and one product; autograd would scatter into the triangle and multiply twice, in three times as long."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, below: Tensor, numbers: Tensor) -> Tensor:
        ctx.save_for_backward(vectors, numbers)
        return _columns(torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1), below)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        vectors, numbers = ctx.saved_tensors
        samples, count, _ = vectors.shape
        # d(sum_pairs g_ij v_i.v_j) / dv_i = sum_j g_ij v_j with g symmetric and zero on its diagonal: the extra column.
        padded = torch.nn.functional.pad(gradients[0], (0, 1))
        symmetric = _columns(padded, numbers).view(samples, count, count)
        return torch.bmm(symmetric, vectors), None, None


def _columns(values: Tensor, places: Tensor) -> Tensor:
    """Return the columns of `values` [n, k] at `places` [c], [n, c], by the operator that is fastest for its dtype."""
    # On a CPU, index_select takes half the time of gather in fp32, and 2.7 times as long in bf16.
    if values.dtype is torch.float32:
        return values.index_select(1, places)
    return values.gather(1, places.expand(len(values), -1))


class LowRankCross(nn.Module):
    """The cross network of DCN V2: x_{l+1} = x_0 * (W_l (V_l x_l) + b_l) + x_l, layer after layer, for x_0 [n, k].

    V_l is [rank, k], W_l is [k, rank], and b_l, [k], begins at zero. They are `down.weight`, `up.weight` and `up.bias`
    of layer l.
    """

    def __init__(self, width: int, spec: CrossSpec, generator: torch.Generator) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        for _ in range(spec.layers):
            down = _linear(width, spec.rank, generator, bias=False)
            up = _linear(spec.rank, width, generator)
            nn.init.zeros_(up.bias)
            self.layers.append(nn.ModuleDict({"down": down, "up": up}))

    def forward(self, first: Tensor) -> Tensor:
        """Return x_L, [n, k], from x_0."""
        crossed = first
        for layer in self.layers:
            parts = cast(nn.ModuleDict, layer)
            crossed = first * parts["up"](parts["down"](crossed)) + crossed
        return crossed


class Dlrm(nn.Module):
    """Maps N numbers and F embedding vectors of each sample, one for each feature or table, to the logit of a click.

    With `spec.cross` the top network takes the crossed vectors, [n, (1 + F) D], without it the output of the bottom
    network and the dot products. A learned matrix for each table projects vectors of another dim to the model's
    embedding_dim: mixed dimension embeddings (Ginart et al., arXiv 1909.11810). Parameters follow from `seed` alone and
    are the same on every machine. Raises ValueError if the bottom network does not end in the embedding dimension or
    the top network not in 1.
    """

    def __init__(self, spec: ModelSpec, seed: int) -> None:
        super().__init__()
        if spec.bottom_mlp[-1] != spec.embedding_dim or spec.top_mlp[-1] != 1:
            raise ValueError(f"bottom_mlp must end in {spec.embedding_dim} and top_mlp in 1")
        vectors = self.vectors = 1 + len(spec.feature_tables)
        width = vectors * spec.embedding_dim
        numbers = pair_numbers(vectors)
        below = torch.tril_indices(vectors, vectors, offset=-1)
        self.register_buffer("_below", below[0] * vectors + below[1], persistent=False)
        self.register_buffer("_numbers", numbers.flatten(), persistent=False)
        generator = torch.Generator().manual_seed(seed)
        self.bottom = _mlp((spec.dense_width, *spec.bottom_mlp), generator)
        self.bottom.append(nn.ReLU())
        self.cross = None if spec.cross is None else LowRankCross(width, spec.cross, generator)
        inputs = spec.embedding_dim + len(self._below) if spec.cross is None else width
        self.top = _mlp((inputs, *spec.top_mlp), generator)
        self.projections = nn.ModuleList()
        if spec.dims != (spec.embedding_dim,):
            to = spec.embedding_dim
            for dim in (spec.table_dims[table] for table in spec.feature_tables):
                self.projections.append(nn.Identity() if dim == to else _linear(dim, to, generator, bias=False))

    _below: Tensor
    _numbers: Tensor

    def forward(self, dense: Tensor, embeddings: Embeddings) -> Tensor:
        """Return logits, float32 [n].

        dense: float32 [n, N]. embeddings: float32 [n, T, D], one vector for each table; of several dims [n, D_t] for
        each. If the model states features, these: one vector for each. n may be 0.
        """
        return self.with_embeddings(self.before_embeddings(dense), embeddings)

    def before_embeddings(self, dense: Tensor) -> Tensor:
        """Return the output of the bottom network for the numbers, [n, D]."""
        return cast(Tensor, self.bottom(dense))

    def with_embeddings(self, summary: Tensor, embeddings: Embeddings) -> Tensor:
        """Return logits, float32 [n], from the result of `before_embeddings`, [n, D], and embeddings."""
        if isinstance(embeddings, Features):
            one_block = len(embeddings.pooled) == 1 and not self.projections
            of_features = () if one_block else tuple(cast(Tensor, each) for each in embeddings.values())
            embeddings = of_features or embeddings.pooled[0]
        if self.projections:
            of_table = embeddings if isinstance(embeddings, tuple) else embeddings.unbind(dim=1)
            embeddings = tuple(project(each) for project, each in zip(self.projections, of_table, strict=True))
        if isinstance(embeddings, tuple):
            embeddings = torch.stack(embeddings, dim=1)
        vectors = torch.cat((summary.unsqueeze(1), embeddings), dim=1)
        if self.cross is not None:
            return cast(Tensor, self.top(self.cross(vectors.flatten(1))).squeeze(1))
        dots = pairwise_dots(vectors, self._below, self._numbers)
        logits = self.top(torch.cat((summary, dots), dim=1))
        return cast(Tensor, logits.squeeze(1))


def _mlp(widths: Sequence[int], generator: torch.Generator) -> nn.Sequential:
    """Return linear layers of these widths with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [_linear(inputs, outputs, generator), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _linear(inputs: int, outputs: int, generator: torch.Generator, *, bias: bool = True) -> nn.Linear:
    """Return a layer with DLRM's variances: 2 / (inputs + outputs) of a weight, 1 / outputs of a bias.

    Values are uniform, not normal as in DLRM: a uniform number is a random integer times a power of two, exact on every
    processor.
    """
    # The meta device leaves torch's global random state unchanged. `to_empty` would load sympy: seconds of each start.
    with warnings.catch_warnings():
        # A model without numeric features has a layer without inputs.
        warnings.filterwarnings("ignore", "Initializing zero-element tensors", UserWarning)
        layer = nn.Linear(inputs, outputs, bias=bias, device="meta")
    variances = {"weight": 2 / (inputs + outputs), "bias": 1 / outputs}
    for name, parameter in tuple(layer.named_parameters()):
        uniform = torch.rand(parameter.shape, generator=generator)
        setattr(layer, name, nn.Parameter((2 * uniform - 1) * sqrt(3 * variances[name])))
    return layer
