"""The rows of dynamic tables in an export: those of the keys that are live at a step, in the order of rising keys.

Pages hold ascending ranges of keys, and shards ascending ranges of a table's pages (ADR 46). Some pages at a time, each
in order, are therefore the table in order, and a comparison of two anchors is one of the same pages of both.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from cpr_contract.model import DynamicSpec
from cpr_trainer.arrays import Ints
from cpr_trainer.embedding.arena import LocalRows
from cpr_trainer.embedding.dynamic.entries import Entries, Rules
from cprjob_serving.hashes import U64
from cprjob_serving.keyed_rows import KeyedRows, head_of

_PAGES_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class LiveTable:
    """A dynamic table at a step. place: in the model. oldest: the least step of a last push of a live entry."""

    place: int
    oldest: int

    @classmethod
    def of(cls, place: int, rules: DynamicSpec, step: int) -> Self:
        """Return the table at a step."""
        return cls(place, Rules(ttl_steps=rules.ttl_steps).oldest_live(step))

    @classmethod
    def of_all(cls, place: int) -> Self:
        """Return the table with all entries: none has expired."""
        return cls(place, 1)

    def rows(self, local: LocalRows) -> Iterator[KeyedRows]:
        """Yield the live rows on a shard, some pages at a time."""
        (band,) = (each for each in local.dynamic if self.place in each.tables)
        segment, pages = local.arena.segments[band.band], band.pages.slots_in(band.place_of(self.place))
        for first in range(0, len(pages), _PAGES_AT_ONCE):
            slots = pages[first : first + _PAGES_AT_ONCE].ravel()
            entries = Entries(segment.state[slots])
            live = live_slots(entries.keys, entries.steps, self.oldest)
            yield KeyedRows(entries.keys[live], segment.read(slots[live]))


def live_slots(keys: U64, steps: NDArray[np.uint32], oldest: int) -> Ints:
    """Return the slots of live entries in the order of rising keys, int64 [k]. keys: uint64 [n]. steps: uint32 [n]."""
    slots = np.flatnonzero(steps >= oldest)
    return slots[np.argsort(keys[slots])]


class KeyedFile:
    """Collects the rows of a table on disk: keys and vectors in a file each, with the name `scratch` and a suffix.

    Raises OSError, as do its methods.
    """

    def __init__(self, table: LiveTable, dim: int, scratch: Path) -> None:
        self._table, self._dim, self._count = table, dim, 0
        self._parts = scratch.with_suffix(".keys"), scratch.with_suffix(".weight")
        for part in self._parts:
            part.touch()

    def add(self, local: LocalRows) -> None:
        """Add the rows of the next shard."""
        for rows in self._table.rows(local):
            for part, content in zip(self._parts, (rows.keys.data, rows.weight.data), strict=True):
                with part.open("ab") as file:
                    file.write(content)
            self._count += len(rows)

    def write(self, to: Path) -> None:
        """Write the table's file."""
        with to.open("wb") as file:
            file.write(head_of(self._count, self._dim))
            for part in self._parts:
                with part.open("rb") as collected:
                    shutil.copyfileobj(collected, file)


class KeyedDifference:
    """Collects the differences between a table at two anchors: rows that are new or have other vectors, removed keys.

    With `since` None the first anchor's rules are not known: all rows count as changed, and all other keys as removed.
    """

    def __init__(self, since: LiveTable | None, until: LiveTable, dim: int) -> None:
        self._since, self._until, self._known = since or LiveTable.of_all(until.place), until, since is not None
        self._keys, self._weight = [np.empty(0, np.uint64)], [np.empty((0, dim), np.float32)]
        self._removed = [np.empty(0, np.uint64)]

    def add(self, old: LocalRows, new: LocalRows) -> None:
        """Add the differences on the next shard, which has the same pages at both anchors."""
        for before, after in zip(self._since.rows(old), self._until.rows(new), strict=True):
            changed = changed_rows(before, after) if self._known else after
            self._keys.append(changed.keys)
            self._weight.append(changed.weight)
            self._removed.append(before.keys[~after.find(before.keys)[1]])

    def write(self, to: Path) -> tuple[int, int]:
        """Write a delta's file; return the numbers of its rows and of removed keys. Raises OSError."""
        keys, weight, removed = (np.concatenate(parts) for parts in (self._keys, self._weight, self._removed))
        safetensors.numpy.save_file({"keys": keys, "weight": weight, "removed": removed}, to)
        return len(keys), len(removed)


def changed_rows(old: KeyedRows, new: KeyedRows) -> KeyedRows:
    """Return the new rows that the old ones lack, or have with other bits."""
    places, known = old.find(new.keys)
    changed = ~known
    before, after = old.weight[places[known]], new.weight[known]
    changed[known] = (before.view(np.int32) != after.view(np.int32)).any(axis=1)
    return KeyedRows(new.keys[changed], new.weight[changed])
