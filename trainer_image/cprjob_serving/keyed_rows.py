"""Rows of a table that gives them to ids as they come: found by key, merged with those of a delta, and first values.

A key is the XXH64 of an id. docs/hashing.md has the arithmetic of first values, with test vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from cprjob_serving.hashes import GOLDEN, U64, Floats, Ints, mix64
from cprjob_serving.tensor_files import head, tensors

#: Rows of any type, [n] or [n, D].
Rows = NDArray[Any]
#: A float32 holds whole numbers with this number of bits exactly.
_BITS = 24
_BYTES_AT_ONCE = 1 << 20


def table_hashes(seed: int, tables: Ints) -> U64:
    """Return the part of first values that depends on a table, by its place in the model, uint64 of the same shape."""
    return mix64(mix64(np.uint64(seed % 2**64) + (tables + 1).astype(np.uint64) * GOLDEN))


def scale_of(rows: int) -> np.float32:
    """Return the factor from whole numbers to the first values of a table with this many rows."""
    return np.float32(sqrt(1 / rows) * 0.5 ** (_BITS - 1))


def random_vectors(of_tables: U64, rows: U64, scales: Floats | np.float32, dim: int) -> Floats:
    """Return first values, uniform in [-s, s) with s = sqrt(1 / rows of the table), float32 [k, dim].

    They are an integer hash, scaled, and so equal on every processor. A change of a constant here changes the meaning
    of every job. of_tables: uint64 [k] or [1], see `table_hashes`. rows: uint64 [k], numbers or keys. scales: float32
    [k] or one, see `scale_of`.
    """
    of_rows = mix64(of_tables + rows * GOLDEN)
    # Two columns come from one hashed word.
    words = mix64(of_rows[:, np.newaxis] + np.arange(1, (dim + 1) // 2 + 1, dtype=np.uint64) * GOLDEN)
    whole = words.astype("<u8", copy=False).view("<i4")[:, :dim] >> (32 - _BITS)
    found: Floats = whole.astype(np.float32) * np.reshape(scales, (-1, 1))
    return found


@dataclass(frozen=True, slots=True)
class Default:
    """The vector of a key that is not in its table.

    `Zero` is zeros. `Random` is a function of the key, of `seed`, in [0, 2**64), and of the table's place in the model,
    counted from 0. `precision` is that of the table in training: values of `bf16` are rounded to nearest.
    """

    kind: Literal["Random", "Zero"]
    seed: int
    table: int
    precision: Literal["fp32", "bf16"] = "fp32"

    def vectors(self, keys: U64, rows: int, dim: int) -> Floats:
        """Return the vectors of keys, float32 [k, dim]. keys: uint64 [k]. rows: the capacity of their table."""
        if self.kind == "Zero":
            return np.zeros((len(keys), dim), np.float32)
        of_table = table_hashes(self.seed, np.array([self.table]))
        found = random_vectors(of_table, keys, scale_of(rows), dim)
        return _rounded(found) if self.precision == "bf16" else found


@dataclass(frozen=True, slots=True, eq=False)
class KeyedRows:
    """Vectors by key. keys: uint64 [n], ascending, all different. weight: float32 [n, D]."""

    keys: U64
    weight: Floats

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Return the rows of a table's file, mapped into memory."""
        found = tensors(path)
        return cls(found["keys"], found["weight"])

    def find(self, keys: U64) -> tuple[Ints, NDArray[np.bool_]]:
        """Return the place of each key, int64 [k], and whether it is there, bool [k]: only then the place is valid."""
        places = np.searchsorted(self.keys, keys).astype(np.int64)
        found = places < len(self)
        found[found] = self.keys[places[found]] == keys[found]
        return places, found

    def vectors(self, keys: U64, default: Default, rows: int) -> Floats:
        """Return the vector of each key, float32 [k, D], a copy. rows: the capacity of the table."""
        places, found = self.find(keys)
        vectors = np.empty((len(keys), self.weight.shape[1]), np.float32)
        vectors[found] = self.weight[places[found]]
        vectors[~found] = default.vectors(keys[~found], rows, vectors.shape[1])
        return vectors


def head_of(count: int, dim: int) -> bytes:
    """Return the start of a file of `count` rows, which their keys and then their vectors follow."""
    return head((("keys", "U64", (count,)), ("weight", "F32", (count, dim))))


def write_changed(base: KeyedRows, changed: KeyedRows, removed: U64, to: Path) -> None:
    """Write the rows of a base with those of a delta into a file. removed: uint64 [r], keys that are no longer there.

    Takes the memory of the delta, and of some rows. Raises OSError.
    """
    places, known = base.find(changed.keys)
    removed_places, are_there = base.find(removed)
    leaves = np.union1d(places[known], removed_places[are_there])
    with to.open("wb") as file:
        file.write(head_of(len(base) - len(leaves) + len(changed), changed.weight.shape[1]))
        for rows in _merged(base.keys, changed.keys, leaves, places):
            file.write(rows.data)
        for rows in _merged(base.weight, changed.weight, leaves, places):
            file.write(rows.data)


def _merged(base: Rows, changed: Rows, leaves: Ints, places: Ints) -> Iterator[Rows]:
    """Yield the rows of `base` without those at the places `leaves`, with row i of `changed` before that at places[i].

    Both lists of places ascend. A part of the rows is small, because memory is released with the lock of the
    interpreter, for which the readers of a follower would wait.
    """
    step = max(_BYTES_AT_ONCE // (base.itemsize * int(np.prod(base.shape[1:]))), 1)
    for first in range(0, len(base) + 1, step):
        of_leaves, of_changed = (slice(*np.searchsorted(each, (first, first + step))) for each in (leaves, places))
        part, left, new = base[first : first + step], leaves[of_leaves] - first, places[of_changed] - first
        if len(left):
            part = np.delete(part, left, axis=0)
        if len(new):
            part = np.insert(part, new - np.searchsorted(left, new), changed[of_changed], axis=0)
        yield part


def _rounded(values: Floats) -> Floats:
    """Return the nearest bfloat16 of finite values, ties to even, as float32 of the same shape."""
    bits = values.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) & np.uint32(0xFFFF0000)).view(
        np.float32
    )
