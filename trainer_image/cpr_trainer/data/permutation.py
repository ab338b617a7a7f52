"""A permutation of any number of rows that needs no memory: each position is computed on its own.

A shuffled index array would need 8 bytes a row on each trainer and ties the order to one library's generator. A
Feistel network on a rectangle (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002, section 5) is one
to one by construction and the same on every machine.
"""

from __future__ import annotations

from math import isqrt

import numpy as np
from numpy.typing import NDArray

from cpr_trainer.hashing import key64, scale_to
from cprjob_serving.hashes import GOLDEN, U64, mix64

#: One for each round. With six, the orders of five rows are not yet equally likely; from a dozen rows on four do.
_ROUND_KEYS = np.arange(8, dtype=np.uint64) * GOLDEN


def permute(positions: NDArray[np.int64], epochs: NDArray[np.int64], rows: int, seed: int) -> NDArray[np.int64]:
    """Return the row at each position of its epoch's permutation, int64 [n].

    positions: int64 [n], in [0, rows). epochs: int64 [n], or [1] for all. rows: in [1, 2**62].
    For one epoch and seed, distinct positions give distinct rows.
    """
    keys = mix64(key64(seed) ^ (epochs.astype(np.uint64) + np.uint64(1)) * GOLDEN)
    result = _shuffle(positions.astype(np.uint64), keys, rows)
    # The rectangle may be a little larger than `rows` (by less than its side): who leaves the rows walks on along
    # his cycle until he is back, which keeps the map one to one.
    while (outside := np.flatnonzero(result >= np.uint64(rows))).size:
        result[outside] = _shuffle(result[outside], keys if keys.size == 1 else keys[outside], rows)
    return result.astype(np.int64)


def _shuffle(values: U64, keys: U64, rows: int) -> U64:
    """One to one on [0, height * width), the smallest near-square rectangle that holds `rows`."""
    height = isqrt(rows - 1) + 1
    width = -(-rows // height)
    left, right = np.divmod(values, np.uint64(width))
    for number, round_key in enumerate(_ROUND_KEYS):
        key = mix64(keys + round_key)
        if number % 2 == 0:
            left = _add_modulo(left, scale_to(mix64(right ^ key), height), height)
        else:
            right = _add_modulo(right, scale_to(mix64(left ^ key), width), width)
    return left * np.uint64(width) + right


def _add_modulo(values: U64, offsets: U64, bound: int) -> U64:
    total = values + offsets
    return np.where(total >= np.uint64(bound), total - np.uint64(bound), total)
