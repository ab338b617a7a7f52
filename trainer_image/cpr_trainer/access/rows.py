"""Vectors, and their gradients: of unique rows as shards serve them, and of samples as networks take them."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from cpr_trainer.features import Features

#: Vectors of unique rows, or their gradients: [u, D]. Where tables have several dims, of each band [u_b, D_b].
Rows = Tensor | tuple[Tensor, ...]


#: A vector for each bag, as a network takes them: [n, T, D]. Where tables have several dims, of each table [n, D_t].
#: Of a model that states features, these.
Embeddings = Tensor | tuple[Tensor, ...] | Features


def of_bands(matrices: tuple[Tensor, ...]) -> Rows:
    """Return the rows of each band as `Rows`: a lone one as it is."""
    return matrices[0] if len(matrices) == 1 else matrices


def the_only(values: Embeddings) -> Tensor:
    """Return what has to be one tensor. Raises TypeError if there is one for each band, table or feature."""
    if not isinstance(values, Tensor):
        raise TypeError(f"{len(values)} tensors in the place of one")
    return values


def each(change: Callable[[Tensor], Tensor], values: Rows) -> Rows:
    """Return a tensor, or each of some, changed."""
    return tuple(map(change, values)) if isinstance(values, tuple) else change(values)
