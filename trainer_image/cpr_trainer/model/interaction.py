"""The dot products of all pairs of vectors of a sample: DLRM's interaction of features."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor


def pair_numbers(vectors: int) -> Tensor:
    """Return the number of each pair, int64 [vectors, vectors], symmetric; the diagonal has one past the last.

    Pairs are counted along the rows of the lower triangle: (1,0), (2,0), (2,1), (3,0), ...
    """
    below, above = torch.tril_indices(vectors, vectors, offset=-1)
    numbers = torch.full((vectors, vectors), len(below))
    numbers[below, above] = numbers[above, below] = torch.arange(len(below))
    return numbers


def pairwise_dots(vectors: Tensor, below: Tensor, numbers: Tensor) -> Tensor:
    """Return the dot products of all pairs of m vectors of each sample, [n, m (m - 1) / 2].

    vectors: [n, m, D]. below: int64 [pairs], places of the lower triangle in a flattened [m, m] matrix.
    numbers: int64 [m * m], `pair_numbers(m)` flattened.
    """
    return cast(Tensor, _PairwiseDots.apply(vectors, below, numbers))  # type: ignore[no-untyped-call]


class _PairwiseDots(torch.autograd.Function):
    """Autograd would scatter into the triangle and multiply twice; a gather and one product take a third of that."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, below: Tensor, numbers: Tensor) -> Tensor:
        ctx.save_for_backward(vectors, numbers)
        return torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, below)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        vectors, numbers = ctx.saved_tensors
        samples, count, _ = vectors.shape
        # d(sum_pairs g_ij v_i.v_j) / dv_i = sum_j g_ij v_j with g symmetric and zero on its diagonal: the extra column.
        padded = torch.nn.functional.pad(gradients[0], (0, 1))
        symmetric = padded.index_select(1, numbers).view(samples, count, count)
        return torch.bmm(symmetric, vectors), None, None
