"""Embeddings as a network gets them: by table, or the features of a model by name, as vectors or sequences of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor

from cpr_trainer.embedding.bags import FeatureLayout


@dataclass(frozen=True, slots=True, eq=False)
class Jagged:
    """The sequences of n samples: values [k, D], sample after sample, and lengths int64 [n], which add up to k.

    weights: float32 [k], of each vector, if the feature has weights.
    """

    values: Tensor
    lengths: Tensor
    weights: Tensor | None = None

    def padded(self) -> tuple[Tensor, Tensor]:
        """Return the sequences side by side, [n, L, D], with zeros behind each, and which are vectors, bool [n, L].

        L is the length of the longest, and 1 at least.
        """
        there = self._mask()
        return self._side_by_side(self.values, there), there

    def padded_weights(self) -> Tensor:
        """Return the weights as `padded` returns vectors, float32 [n, L]: 1 for each if the feature has none."""
        there = self._mask()
        return there.float() if self.weights is None else self._side_by_side(self.weights, there)

    def part(self, samples: slice) -> Jagged:
        """Return some samples that follow each other."""
        first, last, _ = samples.indices(len(self.lengths))
        within = slice(int(self.lengths[:first].sum()), int(self.lengths[:last].sum()))
        return Jagged(
            self.values[within], self.lengths[samples], None if self.weights is None else self.weights[within]
        )

    def _mask(self) -> Tensor:
        if torch.compiler.is_exporting():
            longest = self.lengths.max().item()
            torch._check(longest >= 0)  # type: ignore[no-untyped-call]  # noqa: SLF001 -- torch.export needs it
            width = torch.sym_max(longest, 1)  # type: ignore[no-untyped-call]
        else:
            width = max(int(self.lengths.max()), 1) if len(self.lengths) else 1
        return torch.arange(width, device=self.lengths.device) < self.lengths[:, None]

    def _side_by_side(self, values: Tensor, there: Tensor) -> Tensor:
        """Return values [k, ...] as [n, L, ...], with zeros where nothing is `there`, bool [n, L]."""
        if torch.compiler.is_exporting():
            # In a program the number of set places is not known to be that of the values. It is a sum of values, and
            # not a shape, which is a symbol in tract.
            after = self.lengths.sum()
            places = (self.lengths.cumsum(0) - self.lengths)[:, None] + torch.arange(there.shape[1])
            return torch.cat((values, values.new_zeros(1, *values.shape[1:])))[torch.where(there, places, after)]
        return values.new_zeros(*there.shape, *values.shape[1:]).index_put(there.nonzero(as_tuple=True), values)


class Features(Mapping[str, Tensor | Jagged]):
    """The features of n samples by name, in the order of `model.features`.

    A feature is float32 (bfloat16 in bf16) [n, D], D being the dim of its table. With `pooling: None` it is `Jagged`.

    pooled: of each band (see `Placement`), [n, F_b, D_b], the features that are one vector, in their order.
    sequences: of each band, those that are sequences.
    """

    def __init__(self, layout: FeatureLayout, pooled: Sequence[Tensor], sequences: Sequence[Sequence[Jagged]]) -> None:
        self.layout = layout
        self.pooled = tuple(pooled)
        self.sequences = tuple(map(tuple, sequences))
        self._found: dict[str, Tensor | Jagged] | None = None

    def __getitem__(self, name: str) -> Tensor | Jagged:
        if self._found is None:
            # One `unbind` for all features of a band: its gradient is one tensor, however many there are.
            found: dict[int, Tensor | Jagged] = {}
            for places, block in zip(self.layout.pooled, self.pooled, strict=True):
                found.update(zip(places.tolist(), block.unbind(dim=1), strict=True))
            for mine, of_band in zip(self.layout.sequences, self.sequences, strict=True):
                found.update(zip(mine, of_band, strict=True))
            self._found = {name: found[place] for place, name in enumerate(self.layout.names)}
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.layout.names)

    def __len__(self) -> int:
        return len(self.layout.names)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All vectors: `pooled`, then the values of all sequences."""
        return (*self.pooled, *(each.values for each in chain(*self.sequences)))

    def with_tensors(self, tensors: Sequence[Tensor]) -> Features:
        """Return the same samples with other `tensors`."""
        values = iter(tensors)
        pooled = [next(values) for _ in self.pooled]
        sequences = [[replace(each, values=next(values)) for each in of_band] for of_band in self.sequences]
        return Features(self.layout, pooled, sequences)

    def map(self, change: Callable[[Tensor], Tensor]) -> Features:
        """Return the same samples with each of `tensors` changed."""
        return self.with_tensors([*map(change, self.tensors)])

    def part(self, samples: slice) -> Features:
        """Return some samples that follow each other."""
        sequences = [[each.part(samples) for each in of_band] for of_band in self.sequences]
        return Features(self.layout, [block[samples] for block in self.pooled], sequences)


#: A vector for each bag, as a network takes them: [n, T, D]; of several dims one tensor for each table, [n, D_t]; or
#: the features that a model states.
Embeddings = Tensor | tuple[Tensor, ...] | Features


def tensors_of(embeddings: Embeddings) -> tuple[Tensor, ...]:
    """Return the tensors of embeddings."""
    if isinstance(embeddings, Features):
        return embeddings.tensors
    return embeddings if isinstance(embeddings, tuple) else (embeddings,)


def map_embeddings(change: Callable[[Tensor], Tensor], embeddings: Embeddings) -> Embeddings:
    """Return embeddings with each tensor changed."""
    if isinstance(embeddings, Features):
        return embeddings.map(change)
    return tuple(map(change, embeddings)) if isinstance(embeddings, tuple) else change(embeddings)


def part_of(embeddings: Embeddings, samples: slice) -> Embeddings:
    """Return the embeddings of some samples that follow each other; no copies."""
    if isinstance(embeddings, Features):
        return embeddings.part(samples)
    return map_embeddings(lambda values: values[samples], embeddings)
