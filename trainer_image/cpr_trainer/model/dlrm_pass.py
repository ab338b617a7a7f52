"""The step of the built-in networks without autograd: both interactions, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import cast

import torch
from torch import Tensor, nn

from cpr_trainer.embedding.feature_vectors import Embeddings, Features
from cpr_trainer.model.dlrm import Dlrm, LowRankCross, pair_numbers
from cpr_trainer.model.layer_passes import LinearPass, MlpPass, Workspace


class DotsPass:
    """DLRM's interaction: a sample's first vector, and the dot products of all pairs of its m vectors, [n, m, D]."""

    parameters = 0

    def __init__(self, vectors: int, dim: int, workspace: Workspace, dtype: torch.dtype) -> None:
        self._vectors, self._dim, self._workspace, self._dtype = vectors, dim, workspace, dtype
        below = torch.tril_indices(vectors, vectors, offset=-1)
        self._below = below[0] * vectors + below[1]
        # The place of each pair in the result. The diagonal's are overwritten.
        numbers = pair_numbers(vectors).fill_diagonal_(-dim)
        self._places = (numbers + dim).flatten()

    def begin(self, samples: int) -> None:
        """Begin a step: there are no parameters."""

    def forward(self, vectors: Tensor, out: Tensor) -> None:
        """Write the result [n, D + m (m - 1) / 2]."""
        products = self._take(len(vectors))
        torch.bmm(vectors, vectors.transpose(1, 2), out=products)
        dots = self._workspace.take("dots", (len(vectors), len(self._below)), self._dtype)
        torch.index_select(products.flatten(1), 1, self._below, out=dots)
        out[:, : self._dim] = vectors[:, 0]
        out[:, self._dim :] = dots

    def backward(self, vectors: Tensor, gradient: Tensor, out: Tensor, _of_parameters: Sequence[Tensor]) -> None:
        """Write the gradient of the vectors from that of the result; further columns of it are ignored."""
        symmetric = self._take(len(vectors))
        # d(sum_pairs g_ij v_i.v_j) / dv_i = sum_j g_ij v_j with g symmetric and zero on its diagonal.
        torch.index_select(gradient, 1, self._places, out=symmetric.view(len(vectors), -1))
        symmetric.diagonal(dim1=1, dim2=2).zero_()
        torch.bmm(symmetric, vectors, out=out)
        out[:, 0] += gradient[:, : self._dim]

    def _take(self, samples: int) -> Tensor:
        return self._workspace.take("products", (samples, self._vectors, self._vectors), self._dtype)


class CrossPass:
    """The cross network of DCN V2 over all vectors of a sample, [n, m, D], one after the other."""

    def __init__(self, network: LowRankCross, width: int, workspace: Workspace, dtype: torch.dtype) -> None:
        self._workspace, self._dtype, self._width = workspace, dtype, width
        self._layers = []
        for layer in network.layers:
            parts = cast(nn.ModuleDict, layer)
            down, up = (LinearPass(cast(nn.Linear, parts[name]), dtype) for name in ("down", "up"))
            self._layers.append((down, up))
        self._values: list[tuple[Tensor, Tensor, Tensor]] = []
        self.parameters = 3 * len(self._layers)

    def begin(self, samples: int) -> None:
        """Begin a step of n samples."""
        self._values = []
        for number, (down, up) in enumerate(self._layers):
            down.begin()
            up.begin()
            sizes = (self._width, down.outputs, self._width)  # x_l; V x_l; W V x_l + b
            buffers = (
                self._workspace.take(f"cross {number} {each}", (samples, size), self._dtype)
                for each, size in enumerate(sizes)
            )
            self._values.append(cast(tuple[Tensor, Tensor, Tensor], tuple(buffers)))

    def forward(self, vectors: Tensor, out: Tensor) -> None:
        """Write the result [n, m D]."""
        firsts = self._values[0][0]
        firsts.copy_(vectors.flatten(1))
        for number, (down, up) in enumerate(self._layers):
            values, narrow, factors = self._values[number]
            down.forward(values, narrow)
            up.forward(narrow, factors)
            last = number + 1 == len(self._layers)
            torch.addcmul(values, firsts, factors, out=out if last else self._values[number + 1][0])

    def backward(self, _vectors: Tensor, gradient: Tensor, out: Tensor, of_parameters: Sequence[Tensor]) -> None:
        """Write the gradient of the vectors from that of the result; further columns of it are ignored."""
        gradient, firsts = gradient[:, : self._width], self._values[0][0]
        of_firsts, of_factors, of_values = (
            self._workspace.take(f"of cross {name}", gradient.shape, self._dtype) for name in ("x0", "factors", "x")
        )
        of_firsts.zero_()
        for number, (down, up) in reversed([*enumerate(self._layers)]):
            values, narrow, factors = self._values[number]
            # x_{l+1} = x_0 * u_l + x_l with u_l = W V x_l + b
            torch.mul(gradient, firsts, out=of_factors)
            of_firsts.addcmul_(gradient, factors)
            of_down, of_up, of_bias = of_parameters[3 * number : 3 * number + 3]
            up.to_parameters(narrow, of_factors, of_up, of_bias)
            of_narrow = self._workspace.take("of cross narrow", narrow.shape, self._dtype)
            up.to_inputs(of_factors, of_narrow)
            down.to_parameters(values, of_narrow, of_down)
            down.to_inputs(of_narrow, of_values)
            gradient.add_(of_values)
        out.flatten(1).copy_(of_firsts.add_(gradient))


class DlrmPass:
    """Both passes of a `Dlrm` over n samples, an `ExplicitPass`. Its equations are those of `Dlrm.forward`.

    dtype: of the network, its inputs and its gradients. Embeddings may have a spare place before each sample's vectors,
    [n, 1 + T, D], which the pass fills.
    """

    def __init__(self, network: Dlrm, dtype: torch.dtype) -> None:
        workspace = self._workspace = Workspace()
        self._dtype = dtype
        self._dim = cast(nn.Linear, network.bottom[-2]).out_features
        self._vectors = network.vectors
        self._bottom = MlpPass(network.bottom, workspace, "bottom", dtype)
        self._top = MlpPass(network.top, workspace, "top", dtype)
        self._interaction: DotsPass | CrossPass
        if network.cross is None:
            self._interaction = DotsPass(self._vectors, self._dim, workspace, dtype)
        else:
            self._interaction = CrossPass(network.cross, self._vectors * self._dim, workspace, dtype)
        self._projections = [
            LinearPass(each, dtype) if isinstance(each, nn.Linear) else None for each in network.projections
        ]
        # The parameters of these parts follow each other in the network.
        counts = [self._bottom.parameters, self._interaction.parameters, self._top.parameters]
        self._ends = [*accumulate(counts)]

    @property
    def spare(self) -> int:
        """The places before each sample's vectors that embeddings should have."""
        return 0 if self._projections else 1

    def begin(self, dense: Tensor) -> None:
        """Compute the bottom network for dense, float32 [n, N]."""
        self._bottom.begin(len(dense)).copy_(dense)
        self._summary = self._bottom.forward()

    def logits(self, embeddings: Embeddings) -> Tensor:
        """Return logits, [n], from embeddings, as `Dlrm.forward` takes them, or with a spare place."""
        samples = len(self._summary)
        if self._is_whole(embeddings):
            self._values = cast(Tensor, embeddings)
        else:
            self._values = self._workspace.take("vectors", (samples, self._vectors, self._dim), self._dtype)
            self._leaves = [*_leaves(embeddings)]
            for leaf, places in self._leaves:
                self._fill(leaf, places)
        self._values[:, 0] = self._summary
        inputs = self._top.begin(samples)
        self._interaction.begin(samples)
        self._interaction.forward(self._values, inputs)
        return self._top.forward()[:, 0]

    def gradients(self, of_logits: Tensor, of_embeddings: Sequence[Tensor], of_parameters: Sequence[Tensor]) -> None:
        """Write the gradients of the embeddings' tensors, and those of all parameters, in their order."""
        first, second, third = self._ends
        of_inputs = self._top.backward(of_logits.unsqueeze(1), of_parameters[second:third], to_inputs=True)
        is_whole = self._is_whole(of_embeddings[0])
        found = of_embeddings[0]
        if not is_whole:
            found = self._workspace.take("of vectors", self._values.shape, self._dtype)
        self._interaction.backward(self._values, cast(Tensor, of_inputs), found, of_parameters[first:second])
        of_summary = self._workspace.take("of summary", self._summary.shape, self._dtype)
        self._bottom.backward(of_summary.copy_(found[:, 0]), of_parameters[:first], to_inputs=False)
        if not is_whole:
            of_projections = iter(of_parameters[third:])
            for (leaf, places), out in zip(self._leaves, of_embeddings, strict=True):
                self._empty(leaf, places, found, out.view(leaf.shape), of_projections)

    def _is_whole(self, embeddings: Embeddings) -> bool:
        """Return whether embeddings have a spare place."""
        return (
            isinstance(embeddings, Tensor)
            and not self._projections
            and embeddings.shape[1:] == (self._vectors, self._dim)
        )

    def _fill(self, leaf: Tensor, places: slice | Tensor) -> None:
        """Write the vectors of a leaf, [n, F, D], to their places."""
        if not self._projections:
            self._values[:, places] = leaf
            return
        for values, place in zip(leaf.unbind(dim=1), _numbers(places, self._vectors), strict=True):
            projected = values
            if (layer := self._projections[place - 1]) is not None:
                layer.begin()
                projected = self._workspace.take("projected", self._summary.shape, self._dtype)
                layer.forward(values, projected)
            self._values[:, place] = projected

    def _empty(
        self, leaf: Tensor, places: slice | Tensor, found: Tensor, out: Tensor, of_projections: Iterator[Tensor]
    ) -> None:
        """Write the gradient of a leaf, [n, F, D], from that of all vectors."""
        if not self._projections:
            out.copy_(found[:, places])
            return
        each = zip(leaf.unbind(dim=1), out.unbind(dim=1), _numbers(places, self._vectors), strict=True)
        for values, target, place in each:
            gradient = found[:, place]
            if (layer := self._projections[place - 1]) is not None:
                layer.to_parameters(values, gradient, next(of_projections))
                layer.to_inputs(gradient, target)
            else:
                target.copy_(gradient)


def _leaves(embeddings: Embeddings) -> Iterator[tuple[Tensor, slice | Tensor]]:
    """Yield the tensors of embeddings, [n, F, D], with the places of their vectors; 0 is the bottom network's."""
    if isinstance(embeddings, Features):
        if len(embeddings.pooled) == 1:
            yield embeddings.pooled[0], slice(1, None)
            return
        for block, features in zip(embeddings.pooled, embeddings.layout.pooled, strict=True):
            yield block, torch.from_numpy(features) + 1
    elif isinstance(embeddings, tuple):
        for table, values in enumerate(embeddings):
            yield values.unsqueeze(1), slice(table + 1, table + 2)
    else:
        yield embeddings, slice(1, None)


def _numbers(places: slice | Tensor, count: int) -> Sequence[int]:
    """Return `places` among `count` as numbers."""
    return range(count)[places] if isinstance(places, slice) else cast(list[int], places.tolist())
