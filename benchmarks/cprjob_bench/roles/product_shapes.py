"""The shapes of the matrix products of a built-in network in one step: forward, by inputs, and by weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from cpr_contract.model import ModelSpec


@dataclass(frozen=True, slots=True)
class Layer:
    """A linear layer from [n, inputs] to [n, outputs]. to_inputs: its inputs need a gradient."""

    inputs: int
    outputs: int
    to_inputs: bool = True

    @property
    def flops(self) -> int:
        """Floating-point operations per sample, an addition and a multiplication for each term."""
        return 2 * self.inputs * self.outputs * (3 if self.to_inputs else 2)


@dataclass(frozen=True, slots=True)
class Dots:
    """DLRM's interaction of [n, vectors, dim]: one batched product forward, and one backward."""

    vectors: int
    dim: int

    @property
    def flops(self) -> int:
        """Floating-point operations per sample."""
        return 2 * 2 * self.vectors**2 * self.dim


@dataclass(frozen=True, slots=True)
class NetworkProducts:
    """All products of a network. dots: None for the cross network of DCN V2, which consists of layers."""

    layers: tuple[Layer, ...]
    dots: Dots | None

    def flops(self, samples: int) -> int:
        """Floating-point operations of a batch."""
        return samples * (sum(layer.flops for layer in self.layers) + (0 if self.dots is None else self.dots.flops))


def products_of(model: ModelSpec) -> NetworkProducts:
    """Return the products of a DLRM or DCN V2. Its widths are those of `cpr_trainer.model.dlrm`.

    Raises ValueError for a network with code of its own.
    """
    if model.entrypoint is not None:
        raise ValueError("the products of a network with an entrypoint are not known")
    return NetworkProducts(tuple(_layers(model)), None if model.cross else Dots(_vectors(model), model.embedding_dim))


def _layers(model: ModelSpec) -> Iterator[Layer]:
    vectors, dim = _vectors(model), model.embedding_dim
    for number, (inputs, outputs) in enumerate(pairwise((model.dense_width, *model.bottom_mlp))):
        yield Layer(inputs, outputs, to_inputs=number > 0)  # the numbers of a sample need no gradient
    for table in model.feature_tables:
        if (own := model.table_dims[table]) != dim:
            yield Layer(own, dim)
    width = dim + vectors * (vectors - 1) // 2
    if model.cross is not None:
        width = vectors * dim
        for _ in range(model.cross.layers):
            yield Layer(width, model.cross.rank)
            yield Layer(model.cross.rank, width)
    for inputs, outputs in pairwise((width, *model.top_mlp)):
        yield Layer(inputs, outputs)


def _vectors(model: ModelSpec) -> int:
    return 1 + len(model.feature_tables)
