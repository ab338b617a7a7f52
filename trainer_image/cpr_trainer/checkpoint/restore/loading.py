"""Loads a shard's save: its chain, the save, the priority saves on top, and then first values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cpr_contract.manifests import DenseManifest, ManifestRef, Part, Ranges, RowUpdates, ShardManifest
from cpr_contract.spec import JobSpec
from cpr_trainer.arrays import Ints
from cpr_trainer.checkpoint.format.documents import (
    DamagedError,
    Found,
    parts_of,
    read_chain,
    read_manifest,
    read_places,
    read_rows,
)
from cpr_trainer.checkpoint.format.parts import Link, Shape
from cpr_trainer.checkpoint.format.quantise import EXACT, decode_rows, record_bytes, value_bits
from cpr_trainer.checkpoint.format.records import seed_of
from cpr_trainer.checkpoint.restore.lineage import Candidate
from cpr_trainer.checkpoint.restore.other_tables import load_other_tables, take_first_values
from cpr_trainer.embedding.arena import Arena, LocalRows
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.embedding.segments import Segment
from cpr_trainer.store import Store, in_parallel


@dataclass(frozen=True, slots=True)
class RestoredShard:
    """The state of a shard after a restore.

    It continues from `step`, `samples`, `applied` and `lost`: 0 and empty after `RestoreFrom` and `Seed`; `lost` is
    empty after `Anchor` too, because it counts from there. `ref` is the save's manifest, None for first values and for
    several saves. `chain`, oldest first, is the possible base of the next save. `replayed` are the priority saves on
    top; `damaged` has the errors of others. `row_updates` continue from the save's, also over rollbacks, and start at 0
    if the shard had other places then. Updates in priority saves are subtracted from its `lost`, which is below 0 until
    the ranks have pushed again, with the counts of their earlier pushes.
    """

    step: int
    samples: int
    applied: tuple[int, ...]
    lost: Ranges
    ref: ManifestRef | None
    chain: tuple[Link, ...] = ()
    replayed: tuple[ManifestRef, ...] = ()
    damaged: tuple[DamagedError, ...] = ()
    row_updates: RowUpdates = RowUpdates()  # noqa: RUF009 -- frozen

    @property
    def top(self) -> str:
        """The key of the last save that was put on top; empty for first values."""
        below = "" if self.ref is None else self.ref.key
        return self.replayed[-1].key if self.replayed else below


def load_anchor(store: Store, job: JobSpec, manifest: DenseManifest, placement: Placement, index: int) -> LocalRows:
    """Return shard `index` of a placement with the rows of an anchor, which any number of shards wrote."""
    local = LocalRows.of(job, placement, index)
    saves = tuple(manifest.shards[holder] for holder in placement.holders(index, len(manifest.shards)))
    load_shard(store, Candidate("Anchor", manifest.layout, manifest.step, saves, seed=seed_of(manifest)), local)
    return local


def load_saves(store: Store, saves: Sequence[Found], local: LocalRows) -> None:
    """Load the rows of some complete saves, the later ones last; their rows have an epoch, and others none.

    Raises DamagedError, StoreError.
    """
    for found in saves:
        _load_parts(store, found, local, 1)


def slots_of_save(store: Store, found: Found, local: LocalRows) -> Iterator[Ints]:
    """Yield the slots on a shard of the rows in a save, part by part; only the heads are read.

    Raises DamagedError, StoreError.
    """
    for segment, (first, last) in zip(local.arena.segments, local.spans, strict=True):
        bits = value_bits(found[0].bits, segment.precision)
        for part in parts_of(found):
            if first <= part.first < last:
                shape = Shape.of(part, segment.dim, bits, state=segment.state.shape[1])
                yield read_places(store, part, shape) - first + segment.first


def load_shard(store: Store, candidate: Candidate, local: LocalRows) -> RestoredShard:
    """Verify a candidate and load it into the arena: every row, and the epochs of rows other than first values.

    Parts are verified one by one, which takes memory for some parts only. After a DamagedError the arena holds a
    mixture, and must be loaded from another candidate. A damaged priority save is skipped, except its parts that
    verify. Raises DamagedError, StoreError.
    """
    if candidate.damage:
        raise DamagedError(candidate.key, candidate.damage)
    local.arena.epochs.clear()
    found = tuple(read_manifest(store, ShardManifest, save, candidate.layout) for save in candidate.saves)
    if candidate.tables is None:
        chain = _load_complete(store, candidate, local, found)
    else:
        chain = ()
        load_other_tables(store, candidate.tables, local, found)
    on_top, damaged = _load_priority(store, candidate, local)
    take_first_values(local, candidate.tables or candidate.seed)
    local.arena.seed(local.placement, local.index, local.seeding)
    ref = found[0][1] if len(found) == 1 else None
    replayed = tuple(ref for _, ref in on_top)
    below = found[0][0].row_updates if chain else RowUpdates()
    updates = _with_priority(below, "" if ref is None else ref.key, on_top, whole=not damaged)
    if candidate.kind in {"RestoreFrom", "Seed"}:
        for band in local.dynamic if found else ():
            band.start_over(found[0][0].step)
        return RestoredShard(0, 0, (), (), ref, chain, replayed, damaged, updates)
    m = found[0][0]
    lost = m.lost if candidate.kind == "Save" else ()
    return RestoredShard(m.step, m.samples, m.applied, lost, ref, chain, replayed, damaged, updates)


def _load_complete(store: Store, candidate: Candidate, local: LocalRows, found: tuple[Found, ...]) -> tuple[Link, ...]:
    """Load the saves and their chains; return the next save's chain: none after another job's or other places'."""
    if found:
        _check_cover(local, found)
    continues = len(found) == 1 and candidate.kind != "RestoreFrom" and found[0][0].spans == local.spans
    links: list[Link] = []
    for top in found:
        for save, its_ref in read_chain(store, top):
            epoch = len(links) + 1 if continues else 1
            _load_parts(store, (save, its_ref), local, epoch)
            links.append(Link(its_ref, epoch, save.rows, local.arena.epochs.changed_rows))
    local.arena.epochs.now = len(links) + 1 if continues else 2
    return tuple(links) if continues else ()


def _load_priority(
    store: Store, candidate: Candidate, local: LocalRows
) -> tuple[tuple[Found, ...], tuple[DamagedError, ...]]:
    """Load the priority saves, as changes that no complete save has; return those loaded, and errors of others."""
    replayed: list[Found] = []
    damaged: list[DamagedError] = []
    for ref in candidate.priority:
        try:
            found = read_manifest(store, ShardManifest, ref, candidate.layout)
            _check_cover(local, (found,))
            _load_parts(store, found, local, local.arena.epochs.now)
        except DamagedError as error:
            damaged.append(error)
        else:
            replayed.append(found)
    return tuple(replayed), tuple(damaged)


def _with_priority(account: RowUpdates, below: str, saves: tuple[Found, ...], *, whole: bool) -> RowUpdates:
    """Return the account with the updates that priority saves add to the save `below` (its key).

    It is exact if each was made after the one below it, counts its updates, and is `whole`. Otherwise the loss is an
    upper bound.
    """
    for manifest, ref in saves:
        if manifest.after != below or manifest.added_updates is None:
            return replace(account, exact=False)
        account, below = replace(account, lost=account.lost - manifest.added_updates), ref.key
    return account if whole else replace(account, exact=False)


def _check_cover(local: LocalRows, found: tuple[Found, ...]) -> None:
    """Raise DamagedError unless these saves cover every place of the shard."""
    for band, (start, end) in enumerate(local.spans):
        reached = start
        for manifest, ref in found:
            if len(manifest.spans) != len(local.spans):
                raise DamagedError(ref.key, f"holds rows of {len(manifest.spans)} dims, not {len(local.spans)}")
            first, last = manifest.spans[band]
            if len(local.spans) > 1 and not (first < end and start < last):
                continue  # it has rows of another dim
            if not first <= reached < last:
                raise DamagedError(ref.key, f"holds places {first} to {last}, not {reached}")
            reached = last
        if reached < end:
            raise DamagedError(found[-1][1].key, f"ends at place {reached}, not {end}")


def _load_parts(store: Store, found: Found, local: LocalRows, epoch: int) -> None:
    """Load those parts of one save with places of this shard, several at once: their rows are disjoint."""
    loaders = [
        _PartLoader(store, found[0], local.arena, segment, span, epoch)
        for segment, span in zip(local.arena.segments, local.spans, strict=True)
    ]
    loads = [(loader, part) for part in parts_of(found) for loader in loaders if loader.wants(part)]
    in_parallel(lambda item: item[0].load(item[1]), loads)


@dataclass(frozen=True, slots=True, eq=False)
class _PartLoader:
    """Loads parts of one save into the segment with the places of `span`, as changes of `epoch`."""

    store: Store
    manifest: ShardManifest
    arena: Arena
    segment: Segment
    span: tuple[int, int]
    epoch: int

    def wants(self, part: Part) -> bool:
        """Return whether a part holds rows of the segment."""
        first, last = self.span
        return max(part.first, first) < min(part.first + part.span, last)

    def load(self, part: Part) -> None:
        """Load the rows of a part that lie in the segment. Raises DamagedError."""
        segment, (first, last) = self.segment, self.span
        bits = value_bits(self.manifest.bits, segment.precision)
        shape = Shape.of(part, segment.dim, bits, state=segment.state.shape[1])
        inside = first <= shape.first and shape.first + shape.span <= last
        # Damaged rows of a priority save must not overwrite the save below.
        if inside and shape.contiguous and self.manifest.bits == EXACT and self.manifest.kind != "Priority":
            at = slice(part.first - first, part.first - first + part.rows)
            read_rows(self.store, part, shape, segment.rows[at], segment.state[at])
            self.arena.epochs.of[segment.first + at.start : segment.first + at.stop] = self.epoch
            return
        records = np.empty((shape.rows, record_bytes(shape.dim, shape.bits)), np.uint8)
        state = np.empty((shape.rows, shape.state), np.float32)
        places = read_rows(self.store, part, shape, records, state)
        mine = np.flatnonzero((first <= places) & (places < last))
        rows = decode_rows(records, shape.dim, shape.bits)
        slots = places[mine] - first
        segment.write(slots, rows[mine])
        segment.state[slots] = state[mine]
        self.arena.epochs.of[slots + segment.first] = self.epoch
