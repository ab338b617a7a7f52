"""The rows of a published model, as a digest of 64 bits for each, by which changed rows are found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np

from cpr_trainer.arrays import Floats, Ints
from cpr_trainer.embedding.dynamic.pages import U32
from cprjob_serving.hashes import GOLDEN, U64, mix64
from cprjob_serving.keyed_rows import KeyedRows
from cprjob_serving.tensor_files import tensors

_ROWS_AT_ONCE = 1 << 15


def digests_of(rows: Floats) -> U64:
    """Return the digest of each row, uint64 [k], never 0. rows: float32 [k, D]; their bits count."""
    found = np.empty(len(rows), np.uint64)
    for first in range(0, len(rows), _ROWS_AT_ONCE):
        part = np.ascontiguousarray(rows[first : first + _ROWS_AT_ONCE])
        if part.shape[1] % 2:
            part = np.pad(part, ((0, 0), (0, 1)))
        words = part.view(np.uint64)
        places = np.arange(1, words.shape[1] + 1, dtype=np.uint64) * GOLDEN
        found[first : first + len(part)] = mix64(mix64(words ^ places).sum(axis=1, dtype=np.uint64))
    return np.maximum(found, np.uint64(1))


@dataclass(frozen=True, slots=True, eq=False)
class SlotKeys:
    """The entries of a dynamic table by slot: keys, digests uint64 [n], steps uint32 [n], of the last push; 0: none."""

    keys: U64
    steps: U32
    digests: U64

    @classmethod
    def empty(cls, slots: int) -> Self:
        """Return a table without entries."""
        return cls(np.zeros(slots, np.uint64), np.zeros(slots, np.uint32), np.zeros(slots, np.uint64))

    def copy(self) -> Self:
        """Return a copy to change."""
        return replace(self, keys=self.keys.copy(), steps=self.steps.copy(), digests=self.digests.copy())

    def put(self, slots: Ints, keys: U64, steps: U32, digests: U64) -> None:
        """Replace entries."""
        self.keys[slots], self.steps[slots], self.digests[slots] = keys, steps, digests

    def live(self, oldest: int) -> PublishedKeys:
        """Return the keys with a last push in step `oldest` or later, with their digests."""
        slots = np.flatnonzero(self.steps >= oldest)
        slots = slots[np.argsort(self.keys[slots])]
        return PublishedKeys(self.keys[slots], self.digests[slots])


@dataclass(frozen=True, slots=True, eq=False)
class PublishedKeys:
    """The rows of a dynamic table in a model. keys: uint64 [n], ascending. digests: uint64 [n], of their vectors."""

    keys: U64
    digests: U64

    def find(self, keys: U64) -> U64:
        """Return the digest of each key, uint64 [k]; 0 for a key that is not there."""
        found = np.zeros(len(keys), np.uint64)
        if len(self.keys):
            places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
            known = self.keys[places] == keys
            found[known] = self.digests[places[known]]
        return found

    def changed(self, removed: U64, keys: U64, digests: U64) -> PublishedKeys:
        """Return the rows after a delta."""
        stays = ~np.isin(self.keys, np.concatenate((removed, keys)))
        keys, digests = np.concatenate((self.keys[stays], keys)), np.concatenate((self.digests[stays], digests))
        order = np.argsort(keys)
        return PublishedKeys(keys[order], digests[order])


@dataclass(frozen=True, slots=True, eq=False)
class PublishedRows:
    """The digests of a published model, by the place of a table in the model.

    static: uint64 [rows] each. keyed: of dynamic tables. slots: the same by slot, where the shards of the anchor are
    known; empty in a process that begins, which has read the chain alone.
    """

    static: Mapping[int, U64]
    keyed: Mapping[int, PublishedKeys]
    slots: Mapping[int, SlotKeys]

    @classmethod
    def of_files(cls, files: Mapping[int, Path], dynamic: frozenset[int]) -> Self:
        """Return the digests of a whole model. files: of the tables, by their place. Raises OSError."""
        static, keyed = dict[int, U64](), dict[int, PublishedKeys]()
        for place, path in files.items():
            if place in dynamic:
                rows = KeyedRows.open(path)
                keyed[place] = PublishedKeys(np.array(rows.keys), digests_of(rows.weight))
            else:
                static[place] = digests_of(tensors(path)["weight"])
        return cls(static, keyed, {})

    def after_delta(self, files: Mapping[int, Path]) -> Self:
        """Return the digests after a delta. files: of its tables, by their place. Raises OSError."""
        static, keyed = dict(self.static), dict(self.keyed)
        for place, path in files.items():
            changed = tensors(path)
            if place in keyed:
                digests = digests_of(changed["weight"])
                keyed[place] = keyed[place].changed(changed["removed"], changed["keys"], digests)
            elif len(changed["rows"]):
                static[place] = static[place].copy()
                static[place][changed["rows"]] = digests_of(changed["weight"])
        return replace(self, static=static, keyed=keyed, slots={})
