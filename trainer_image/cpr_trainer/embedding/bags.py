"""Bags: samples with any number of ids for a table, including none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from cpr_contract.model import ModelSpec
from cpr_trainer.arrays import Ints

Int32s = NDArray[np.int32]
Float32s = NDArray[np.float32]

_INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, eq=False)
class FeatureLayout:
    """The F features that a model states, in their order.

    names: [F]. tables: int64 [F], the table of each, as a place in the model's tables. pooled: of each band, see
    `Placement`, int64, which of the features over its tables are one vector a sample. sequences: of each band, which
    are sequences.
    """

    names: tuple[str, ...]
    tables: Ints
    pooled: tuple[Ints, ...]
    sequences: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, model: ModelSpec) -> Self:
        """Return the features of a model that states some."""
        tables = np.array(model.feature_tables, np.int64)
        bands = np.array(model.bands, np.int64)[tables]
        is_sequence = np.array([feature.pooling == "None" for feature in model.features], np.bool_)
        every = range(len(model.band_dims))
        return cls(
            tuple(feature.name for feature in model.features),
            tables,
            tuple(np.flatnonzero((bands == band) & ~is_sequence) for band in every),
            tuple(tuple(np.flatnonzero((bands == band) & is_sequence).tolist()) for band in every),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """The ids of one feature: int32 [k], int64 if they are keys, bag after bag.

    lengths: int64 [n]. weights: float32 [k]; None: all 1.
    """

    ids: Int32s | Ints
    lengths: Ints
    weights: Float32s | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Bags:
    """The ids of n samples for F features (or T tables, of a model that states no features).

    They stand bag after bag, sample by sample, and in a sample feature by feature. ids: int32 [k], each in [0, rows of
    its table), int64 [k] if some are keys of dynamic tables. offsets: int32 [n F + 1]; bag b has the ids from
    offsets[b] to offsets[b + 1]. means: bool [F], which features are the mean of a bag's vectors; others are the sum.
    features: if the model states them, what they are. weights: float32 [k], of each id; None: all 1. Raises ValueError
    if there are more than 2**31 - 1 ids.
    """

    ids: Int32s | Ints
    offsets: Int32s
    means: NDArray[np.bool_]
    features: FeatureLayout | None = None
    weights: Float32s | None = None

    @classmethod
    def of_columns(
        cls, columns: Sequence[Column], means: NDArray[np.bool_], features: FeatureLayout | None = None
    ) -> Self:
        """Return bags from F columns, each of n samples."""
        lengths = np.stack([each.lengths for each in columns], axis=1)
        offsets = _offsets(lengths.ravel())
        ids = np.empty(offsets[-1], np.result_type(*(each.ids for each in columns)))
        weighted = any(each.weights is not None for each in columns)
        weights = np.ones(len(ids), np.float32) if weighted else None
        for place, column in enumerate(columns):
            runs = _runs(offsets[place : -1 : len(columns)], column.lengths)
            ids[runs] = column.ids
            if weights is not None and column.weights is not None:
                weights[runs] = column.weights
        return cls(ids, offsets, means, features, weights)

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Return the samples of several bags, one at least, one after the other."""
        ids = np.concatenate([part.ids for part in parts])
        offsets = _offsets(np.concatenate([np.diff(part.offsets) for part in parts]))
        given = [part.weights for part in parts if part.weights is not None]
        return cls(ids, offsets, parts[0].means, parts[0].features, np.concatenate(given) if given else None)

    def __len__(self) -> int:
        return (len(self.offsets) - 1) // len(self.means)

    @property
    def lengths(self) -> Ints:
        """The number of ids each bag has, int64 [n, T]."""
        return np.diff(self.offsets).astype(np.int64).reshape(len(self), len(self.means))

    def take(self, samples: Ints) -> Self:
        """Return the samples at these places, int64 [m], in that order; repeats are allowed."""
        features = len(self.means)
        first, stop = self.offsets[samples * features], self.offsets[(samples + 1) * features]
        bags = (samples[:, np.newaxis] * features + np.arange(features)).ravel()
        offsets = _offsets(self.offsets[bags + 1] - self.offsets[bags])
        runs = _runs(first, (stop - first).astype(np.int64))
        return type(self)(self.ids[runs], offsets, self.means, self.features, self._weights_of(runs))

    def of(self, features: Ints) -> Self:
        """Return the bags of these features, int64 [f], in that order."""
        bags = (np.arange(len(self))[:, np.newaxis] * len(self.means) + features).ravel()
        lengths = (self.offsets[bags + 1] - self.offsets[bags]).astype(np.int64)
        runs = _runs(self.offsets[bags], lengths)
        return type(self)(self.ids[runs], _offsets(lengths), self.means[features], None, self._weights_of(runs))

    def spread(self, count: int, places: Ints) -> Self:
        """Return `count` samples: these at `places`, int64 [n] ascending, and empty ones elsewhere."""
        lengths = np.zeros((count, len(self.means)), np.int64)
        lengths[places] = self.lengths
        return replace(self, offsets=_offsets(lengths.ravel()))

    def _weights_of(self, runs: Ints) -> Float32s | None:
        return None if self.weights is None else self.weights[runs]


def _offsets(lengths: NDArray[np.integer]) -> Int32s:
    ends = np.cumsum(lengths, dtype=np.int64)
    if len(ends) and ends[-1] > _INT32_MAX:
        raise ValueError(f"{ends[-1]} ids are too many at once")
    return np.concatenate((np.zeros(1, np.int32), ends.astype(np.int32)))


def _runs(starts: Int32s, lengths: Ints) -> Ints:
    """Return the places of runs, one after the other: starts[0], starts[0] + 1, ..., starts[1], ...; int64."""
    ends = np.cumsum(lengths)
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(ends[-1] if len(ends) else 0)
