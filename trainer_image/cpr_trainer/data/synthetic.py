"""Computes synthetic samples with a signal to be learned: for demonstrations, tests and benchmarks.

Row i is a function of (seed, i) alone, so any rows are made in any order without storage. Values have the shape of
click logs: skewed counts, and categories with a frequency of about 1 / k of the k-th most frequent value. Categories
are strings hashed to ids like those of a file: `cprjob_bench.roles.samples` writes the same rows, and reading them
gives the same batches. The label follows a logistic model of the ids and counts: that model has an AUC of about 0.88,
a small DLRM about 0.8 after tens of thousands of samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpr_contract.model import CATEGORICAL_FEATURES, DENSE_FEATURES, TableSpec
from cpr_trainer.arrays import Ints
from cpr_trainer.data.dataset import Batch, Layout
from cpr_trainer.data.schema import check_tables, count_features, ids_of_hashes
from cpr_trainer.hashing import key64, scale_to
from cprjob_serving.hashes import GOLDEN, U64, WORD_BYTES, Cells, hash_words, mix64, xxh64

_DOMAIN = 0x53594E54  # Separates these random numbers from those of the sample order, which may have the same seed.
_COUNT_VALUES = 2**10
_MISSING_SHARE = 0.1
#: Standard deviations of the logit's two parts, and its mean: about a quarter of the labels are 1.
_ID_SPREAD = 2.0
_DENSE_SPREAD = 1.0
_BIAS = -1.8
#: Each table's part in the logit, as a share of the part of the previous table: the first are learned from few samples.
_TABLE_DECAY = 0.7
#: Mean and standard deviation of a count's feature, to centre it.
_FEATURE_MEAN = 3.3
_FEATURE_SPREAD = 2.3
#: _HEX[k] holds the four hexadecimal digits of k as ASCII, little-endian.
_HEX = np.array([int.from_bytes(f"{value:04x}".encode(), "little") for value in range(2**16)], np.uint64)


@dataclass(frozen=True, slots=True, eq=False)
class RawRows:
    """n rows before any transform.

    labels: uint8 [n]. counts: int64 [n, 13]. missing: bool [n, 13], where the count is absent (and 0 in `counts`).
    categories: uint64 [n, T], each the 8 ASCII characters of a hexadecimal string, little-endian.
    """

    labels: NDArray[np.uint8]
    counts: NDArray[np.int64]
    missing: NDArray[np.bool_]
    categories: U64


class SyntheticDataset:
    """`rows` samples of seed `seed` for `tables`."""

    def __init__(self, rows: int, seed: int, tables: Sequence[TableSpec]) -> None:
        check_tables(tables, CATEGORICAL_FEATURES)
        self._layout = Layout.whole(rows)
        self._tables = tuple(tables)
        self._seed = seed

    @property
    def layout(self) -> Layout:
        """One block: every row costs the same."""
        return self._layout

    def prefetch(self, blocks: Ints) -> None:
        """Do nothing: rows are computed, not read."""

    def take(self, indices: Ints) -> Batch:
        raw = self.raw(indices)
        ids = self._rows(raw.categories)
        for place, table in enumerate(self._tables):
            if table.ids == "Dynamic":
                ids[:, place] = ids_of_hashes(xxh64(_cells(raw.categories[:, place]), table.hash_seed), table)
        return Batch(count_features(raw.counts), ids, raw.labels.astype(np.float32))

    def raw(self, indices: Ints) -> RawRows:
        """Return the rows at `indices`, int64 [n], as a file has them."""
        columns = np.arange(1 + 2 * DENSE_FEATURES + len(self._tables), dtype=np.uint64) * GOLDEN
        row_keys = mix64(key64(_DOMAIN, self._seed) + indices.astype(np.uint64) * GOLDEN)
        random = mix64(row_keys[:, None] ^ mix64(columns)[None, :])
        chance, counted, present, chosen = np.split(random, np.cumsum([1, DENSE_FEATURES, DENSE_FEATURES]), axis=1)
        missing = _uniform(present) < _MISSING_SHARE
        counts = np.where(missing, 0, _skewed(counted, _COUNT_VALUES)).astype(np.int64)
        categories = np.empty_like(chosen)
        for place, table in enumerate(self._tables):  # One of as many values as the table has rows.
            names = mix64(_skewed(chosen[:, place], table.rows) + key64(_DOMAIN, place)) >> np.uint64(32)
            low, high = _HEX[names >> np.uint64(16)], _HEX[names & np.uint64(0xFFFF)]
            categories[:, place] = low | high << np.uint64(32)
        probability = 1 / (1 + np.exp(-self._logits(counts, self._rows(categories))))
        labels = (_uniform(chance[:, 0]) < probability).astype(np.uint8)
        return RawRows(labels, counts, missing, categories)

    def _rows(self, categories: U64) -> NDArray[np.int64]:
        """Return the CPR64 of each category modulo the rows of its table, int64 [n, T]."""
        hashes = hash_words(categories, np.full(1, WORD_BYTES, np.uint64))
        return (hashes % np.array([table.rows for table in self._tables], np.uint64)).astype(np.int64)

    def _logits(self, counts: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the planted model's logits, float64 [n]: rows have effects uniform in +-1, counts a weight of +-1."""
        tables = key64(_DOMAIN, self._seed, 1) + np.arange(len(self._tables), dtype=np.uint64) * GOLDEN
        effects = 2 * _uniform(mix64(mix64(tables)[None, :] ^ ids.astype(np.uint64))) - 1
        centred = (count_features(counts).astype(np.float64) - _FEATURE_MEAN) / _FEATURE_SPREAD
        signs = np.where(np.arange(DENSE_FEATURES) % 2 == 0, 1.0, -1.0)
        parts = _TABLE_DECAY ** np.arange(len(self._tables))
        by_ids = (effects * parts).sum(axis=1) * np.sqrt(3 / np.square(parts).sum())
        by_counts = (centred * signs).sum(axis=1) / np.sqrt(DENSE_FEATURES)
        logits: NDArray[np.float64] = _BIAS + _ID_SPREAD * by_ids + _DENSE_SPREAD * by_counts
        return logits


def _cells(categories: U64) -> Cells:
    """Return the characters of some categories, uint64 [n]."""
    texts = np.concatenate((categories.astype("<u8"), np.zeros(1, np.uint64))).view(np.uint8)
    lengths = np.full(len(categories), WORD_BYTES, np.int64)
    return Cells(texts, np.cumsum(lengths) - lengths, lengths)


def _uniform(random: U64) -> NDArray[np.float64]:
    """Return random bits as numbers in [0, 1): 53 bits fit a double exactly."""
    return (random >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _skewed(random: U64, values: int) -> U64:
    """Draw ranks in [0, values) by a staircase under Zipf's law, in integers.

    Every power of two of ranks is equally likely, and each rank within it: rank r has a share between 1/2 and 1 of
    1 / (r + 1), up to a constant. The upper half of the bits chooses the power, the lower half the rank.
    """
    octaves = scale_to(random, values.bit_length())
    size = np.uint64(1) << octaves
    ranks = size - np.uint64(1) + (mix64(random) & (size - np.uint64(1)))
    return ranks % np.uint64(values)
