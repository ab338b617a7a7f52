"""The rows of an anchor that differ from those of the published model, read from the saves of one anchor alone.

A comparison reads the saves of a shard that are in only one of both anchors' chains. Rows in none of them are equal. It
reads a shard whole if that cannot be decided: after a resize, a rollback that undid rows, or without the earlier
anchor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import safetensors.numpy

from cpr_contract.manifests import DenseManifest, ShardManifest
from cpr_contract.model import DynamicSpec
from cpr_contract.spec import JobSpec
from cpr_trainer.arrays import Floats, Ints
from cpr_trainer.checkpoint.format.documents import DamagedError, Found, read_chain, read_manifest
from cpr_trainer.checkpoint.restore.loading import load_anchor, load_saves, slots_of_save
from cpr_trainer.embedding.arena import LocalRows
from cpr_trainer.embedding.dynamic.entries import Entries
from cpr_trainer.embedding.dynamic.pages import capacity_of
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.embedding.segments import Segment
from cpr_trainer.export.live_rows import LiveTable
from cpr_trainer.export.model_folder import write_rows
from cpr_trainer.publish.decisions import saves_apart
from cpr_trainer.publish.row_digests import PublishedRows, SlotKeys, digests_of
from cpr_trainer.store import Store
from cprjob_serving.hashes import U64
from cprjob_serving.transform import Transform

_SLOTS_AT_ONCE = 1 << 16


@dataclass(slots=True, eq=False)
class _ChangedKeys:
    """The changes of a dynamic table: its entries by slot as of the new anchor, and the vectors that changed."""

    slots: SlotKeys
    keys: list[U64] = field(default_factory=lambda: [np.empty(0, np.uint64)])
    weight: list[Floats] = field(default_factory=list)


class Comparison:
    """Compares an anchor, `until`, of a job with the published rows, which are those of the anchor `since`.

    `since` is None if that anchor cannot be read. The published rows do not change; `after` returns those of `until`.
    """

    def __init__(
        self, store: Store, job: JobSpec, since: DenseManifest | None, until: DenseManifest, published: PublishedRows
    ) -> None:
        self._store, self._job, self._until, self._published = store, job, until, published
        self._rules: dict[int, DynamicSpec] = {
            place: table.dynamic for place, table in enumerate(job.model.tables) if table.dynamic is not None
        }
        # Without the entries by slot, and after a step back, entries that no save changed may be live again.
        is_later = since is not None and since.step <= until.step
        known = published.slots.keys() == self._rules.keys() and (not self._rules or is_later)
        self._since = since if known else None
        self._one = Placement.of(job.model, 1)
        self._rows: dict[int, list[tuple[Ints, Floats]]] = {place: [] for place in published.static}
        self._keyed: dict[int, _ChangedKeys] = {}
        for place in self._rules:
            slots = published.slots.get(place) if self._since is not None else None
            empty = SlotKeys.empty(capacity_of(job.model.tables[place].rows))
            self._keyed[place] = _ChangedKeys(empty if slots is None else slots.copy())

    def read(self) -> None:
        """Read the anchor. Takes the memory of the changed rows, or of a shard. Raises DamagedError, StoreError."""
        placement = Placement.of(self._job.model, len(self._until.shards))
        for index in range(placement.shards):
            local = self._changed_saves(placement, index)
            slots = None if local is None else np.flatnonzero(local.arena.epochs.of)
            if local is None or slots is None:
                local = load_anchor(self._store, self._job, self._until, placement, index)
                slots = np.arange(len(local.arena))
            for first in range(0, len(slots), _SLOTS_AT_ONCE):
                self._compare(local, slots[first : first + _SLOTS_AT_ONCE])

    def _changed_saves(self, placement: Placement, index: int) -> LocalRows | None:
        """Return the rows of the saves of a shard that only the new anchor has; None if all rows must be read."""
        since, until = self._since, self._until
        if since is None or len(since.shards) != len(until.shards):
            return None
        if since.shards[index] == until.shards[index]:
            return LocalRows.of(self._job, placement, index)
        new = self._chain(until, index)
        try:
            old = self._chain(since, index)
        except DamagedError:  # it was deleted meanwhile
            return None
        local = LocalRows.of(self._job, placement, index)
        if any(each[0].spans != local.spans for each in (*old, *new)):
            return None
        only_old, only_new = saves_apart([ref for _, ref in old], [ref for _, ref in new])
        load_saves(self._store, [new[place] for place in only_new], local)
        with suppress(DamagedError):
            undone = (slots for place in only_old for slots in slots_of_save(self._store, old[place], local))
            if all(local.arena.epochs.of[slots].all() for slots in undone):
                return local
        return None

    def _chain(self, anchor: DenseManifest, index: int) -> tuple[Found, ...]:
        found = read_manifest(self._store, ShardManifest, anchor.shards[index], anchor.layout)
        return read_chain(self._store, found)

    def _compare(self, local: LocalRows, slots: Ints) -> None:
        """Compare the rows in some slots of a shard, ascending int64 [k]."""
        for band, (segment, at) in enumerate(_by_band(local, slots)):
            if not len(at) or band >= local.placement.table_bands:
                continue  # cells have no vectors
            tables, rows = self._one.rows_at(at + local.spans[band][0])
            for place in np.unique(tables).tolist():
                here = tables == place
                if place in self._rules:
                    self._compare_keys(place, segment, at[here], rows[here])
                else:
                    values = segment.read(at[here])
                    changed = digests_of(values) != self._published.static[place][rows[here]]
                    self._rows[place].append((rows[here][changed], values[changed]))

    def _compare_keys(self, place: int, segment: Segment, at: Ints, slots: Ints) -> None:
        """Compare entries of a dynamic table: at the places `at` of a segment, in the table's slots `slots`."""
        entries, values = Entries(segment.state[at]), segment.read(at)
        keys = entries.keys
        found, digests = self._keyed[place], digests_of(values)
        found.slots.put(slots, keys, entries.steps, digests)
        published = self._published.keyed[place].find(keys)
        changed = (entries.steps >= self._oldest(place)) & (published != digests)
        found.keys.append(keys[changed])
        found.weight.append(values[changed])

    def _oldest(self, place: int) -> int:
        return LiveTable.of(place, self._rules[place], self._until.step).oldest

    def write(self, folder: Path, transform: Transform) -> dict[str, dict[str, int]]:
        """Write the tables of a delta, as an export does; return the numbers of their rows, and of removed keys."""
        counts: dict[str, dict[str, int]] = {name: {} for name in (("rows", "removed") if self._rules else ("rows",))}
        for place, table in enumerate(transform.tables):
            if place in self._rows:
                counts["rows"][table.name] = write_rows(self._rows[place], table.dim, folder / table.file)
                continue
            found = self._keyed[place]
            keys = np.concatenate(found.keys)
            weight = np.concatenate([np.empty((0, table.dim), np.float32), *found.weight])
            order = np.argsort(keys)
            before, now = self._published.keyed[place].keys, found.slots.live(self._oldest(place)).keys
            removed = before[~np.isin(before, now)]
            tensors = {"keys": keys[order], "weight": weight[order], "removed": removed}
            safetensors.numpy.save_file(tensors, folder / table.file)
            counts["rows"][table.name], counts["removed"][table.name] = len(keys), len(removed)
        return counts

    def after(self) -> PublishedRows:
        """Return the digests of the rows of the new anchor."""
        static: dict[int, U64] = {}
        for place, digests in self._published.static.items():
            static[place] = digests.copy() if any(len(rows) for rows, _ in self._rows[place]) else digests
            for rows, values in self._rows[place]:
                static[place][rows] = digests_of(values)
        slots: Mapping[int, SlotKeys] = {place: each.slots for place, each in self._keyed.items()}
        keyed = {place: each.live(self._oldest(place)) for place, each in slots.items()}
        return PublishedRows(static, keyed, slots)


def _by_band(local: LocalRows, slots: Ints) -> Iterator[tuple[Segment, Ints]]:
    """Yield each segment of an arena with the places in it of slots, ascending."""
    bounds = local.arena.bounds(slots)
    for place, segment in enumerate(local.arena.segments):
        yield segment, segment.within(slots[bounds[place] : bounds[place + 1]])
