"""The saves of one or all jobs of a store, as users see them: points to restore, and their damage."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from operator import attrgetter
from typing import Generic, TypeVar

from cpr_contract.choices import Precision
from cpr_contract.manifests import DenseManifest, ManifestRef, Part, RestoreRecord, ShardManifest
from cpr_contract.model import ModelSpec
from cpr_contract.requests import Damage, Point, PointKind, Verification
from cpr_trainer.checkpoint.format.documents import DamagedError, read_document
from cpr_trainer.checkpoint.format.keys import SaveName, committed_in, is_restore_record, parse_save, place_of
from cpr_trainer.checkpoint.format.parts import PartError, Shape
from cpr_trainer.checkpoint.format.quantise import precision_of, value_bits
from cpr_trainer.embedding.optimizers import band_shapes
from cpr_trainer.embedding.placement import Placement, layout_hash
from cpr_trainer.store import Entry, MissingError, Store, in_parallel

M = TypeVar("M", ShardManifest, DenseManifest)

_NOTHING = "no such object"
_OF_A_JOB = re.compile(r"[^/]+/gen-\d+/.+")
_OF_A_SHARD = re.compile(r"[^/]+/gen-\d+/shard-\d+/.+")


@dataclass(frozen=True, slots=True)
class ListedSave(Generic[M]):
    """A committed save. Its folder's objects take `size_bytes`; the last of them was written at `written_s`."""

    manifest: M
    ref: ManifestRef
    size_bytes: int
    written_s: float


@dataclass(frozen=True, slots=True)
class Inventory:
    """All objects of some jobs by key; saves of shards, and dense saves and anchors, by the keys of their manifests.

    `damaged` are unreadable manifests. `forks` are the steps at which generations but the first began, by job and
    generation, from the restore records.
    """

    entries: Mapping[str, Entry]
    shards: Mapping[str, ListedSave[ShardManifest]]
    dense: Mapping[str, ListedSave[DenseManifest]]
    damaged: tuple[Damage, ...]
    forks: Mapping[tuple[str, int], int]

    @property
    def jobs(self) -> tuple[str, ...]:
        """The uids of all jobs that have objects here."""
        return tuple(sorted({key.partition("/")[0] for key in self.entries}))


def read_inventory(store: Store, job_uid: str | None) -> Inventory:
    """Read the inventory of one job, or of all. Raises StoreError."""
    entries = list_jobs(store, job_uid)
    folders: dict[SaveName, list[Entry]] = defaultdict(list)
    for entry in entries.values():
        if (save := parse_save(entry.key)) is not None:
            folders[save].append(entry)
    of_shards = {save: found for save, found in folders.items() if _OF_A_SHARD.fullmatch(save.manifest)}
    others = {save: found for save, found in folders.items() if save not in of_shards}
    shards, damaged_shards = _read_all(store, ShardManifest, of_shards)
    dense, damaged_dense = _read_all(store, DenseManifest, others)
    return Inventory(entries, shards, dense, damaged_shards + damaged_dense, _forks(store, entries))


def list_jobs(store: Store, job_uid: str | None) -> Mapping[str, Entry]:
    """List the objects of one job, or the saves of all, without foreign objects. Raises StoreError."""
    listed = store.list("" if job_uid is None else f"{job_uid}/")
    return {entry.key: entry for entry in listed if job_uid is not None or _OF_A_JOB.fullmatch(entry.key)}


def _read_all(
    store: Store, kind: type[M], folders: Mapping[SaveName, list[Entry]]
) -> tuple[dict[str, ListedSave[M]], tuple[Damage, ...]]:
    committed = committed_in(entry.key for found in folders.values() for entry in found)
    read = in_parallel(lambda save: _read(store, kind, save, folders[save]), committed)
    held = {each.ref.key: each for each in read if isinstance(each, ListedSave)}
    return held, tuple(each for each in read if isinstance(each, Damage))


def _read(store: Store, kind: type[M], save: SaveName, folder: list[Entry]) -> ListedSave[M] | Damage | None:
    """Read one manifest; None if it was pruned since it was listed."""
    try:
        manifest, ref = read_document(store, kind, save.manifest)
    except MissingError:
        return None
    except DamagedError as error:
        return Damage(save.manifest, f"a {kind.__name__}", error.what)
    return ListedSave(manifest, ref, sum(each.size_bytes for each in folder), max(each.modified_s for each in folder))


def _forks(store: Store, keys: Iterable[str]) -> Mapping[tuple[str, int], int]:
    """Return the first step of generations: that of restores from no save of the generation itself."""
    forks: dict[tuple[str, int], int] = {}
    for record in in_parallel(lambda key: _read_record(store, key), filter(is_restore_record, keys)):
        if record is not None and record.parent is None and record.generation > 1:
            place = record.job_uid, record.generation
            forks[place] = min(record.step, forks.get(place, record.step))
    return forks


def _read_record(store: Store, key: str) -> RestoreRecord | None:
    try:
        return read_document(store, RestoreRecord, key)[0]
    except (DamagedError, MissingError):
        return None


Shards = Sequence[ListedSave[ShardManifest]]


def points_of(inventory: Inventory) -> tuple[Point, ...]:
    """Return all points, oldest first, job by job."""
    return tuple(point for point, _ in points_with_saves(inventory))


def points_with_saves(inventory: Inventory) -> tuple[tuple[Point, frozenset[str]], ...]:
    """Return all points, each with the keys of all manifests that it needs.

    Saves of several shards make one point if they are of one step and kind; an anchor's are those that it names.
    """
    found = []
    for anchor in inventory.dense.values():
        named = [ref.key for ref in anchor.manifest.shards]
        shards = [inventory.shards[key] for key in named if key in inventory.shards]
        point, needs = _point(anchor, "Anchor" if named else "Dense", shards, inventory)
        found.append((point, needs.union(named)))
    anchored = {ref.key for held in inventory.dense.values() for ref in held.manifest.shards}
    groups: dict[tuple[str, int, int, PointKind], list[ListedSave[ShardManifest]]] = defaultdict(list)
    for held in inventory.shards.values():
        if held.ref.key not in anchored:
            m = held.manifest
            groups[m.job_uid, m.generation, m.step, "Cut" if m.kind == "Anchor" else m.kind].append(held)
    for (*_, kind), group in groups.items():
        found.append(_point(group[0], kind, group, inventory))
    place = attrgetter("job_uid", "generation", "step", "written_s", "key")
    return tuple(sorted(found, key=lambda each: place(each[0])))


def _point(
    first: ListedSave[DenseManifest] | ListedSave[ShardManifest], kind: PointKind, shards: Shards, inventory: Inventory
) -> tuple[Point, frozenset[str]]:
    """Return the point of the save that names it, and of its shards' saves."""
    saves = {held.ref.key: held for held in (first, *shards)}
    bases = {ref.key for held in shards for ref in held.manifest.chain}
    point = Point(
        job_uid=first.manifest.job_uid,
        generation=first.manifest.generation,
        step=first.manifest.step,
        samples=first.manifest.samples,
        kind=kind,
        key=first.ref.key,
        shards=tuple(sorted(held.manifest.index for held in shards)),
        size_bytes=sum(held.size_bytes for held in saves.values()),
        written_s=max(held.written_s for held in saves.values()),
        bits=min((held.manifest.bits for held in shards), default=None),
        bases=tuple(sorted({inventory.shards[key].manifest.step for key in bases if key in inventory.shards})),
        strategy=next((held.manifest.strategy for held in shards), None),
    )
    return point, frozenset(bases | saves.keys())


def verify(store: Store, inventory: Inventory, job_uid: str | None, model: ModelSpec | None) -> Verification:
    """Read every object of every save once. Raises StoreError.

    Without a model all saves of a job have to be of one layout, that of its newest.
    """
    saves = _saves(inventory)
    # Each damage with the key of the manifest that it contradicts.
    found = [(damage.key, damage) for damage in inventory.damaged]
    found += [(held.ref.key, damage) for held in saves for damage in _check_manifest(held, inventory, model)]
    parts = [(held, part) for held in saves for part in held.manifest.parts]
    checked = in_parallel(lambda item: _check_part(store, item[0].manifest, item[1], model), parts)
    found += [(held.ref.key, damage) for (held, _), damage in zip(parts, checked, strict=True) if damage]
    if found:  # a training job prunes its saves, manifests first: deleted ones are no damage
        there = list_jobs(store, job_uid)
        found = [(manifest, damage) for manifest, damage in found if manifest in there]
    damaged_folders = {_folder(damage.key) for _, damage in found}
    points = points_with_saves(inventory)
    return Verification(
        points=tuple(point for point, _ in points),
        damaged=tuple(dict.fromkeys(damage for _, damage in found)),
        unusable=tuple(point.key for point, needs in points if not damaged_folders.isdisjoint(map(_folder, needs))),
        objects=len(parts) + len(saves) + len(inventory.damaged),
        size_bytes=sum(part.size_bytes for _, part in parts),
    )


def _check_manifest(
    held: ListedSave[ShardManifest] | ListedSave[DenseManifest], inventory: Inventory, model: ModelSpec | None
) -> Iterator[Damage]:
    """Yield the damages of a manifest: another key than its own, another layout, and missing saves that it names."""
    manifest, key = held.manifest, held.ref.key
    place = place_of(manifest).manifest
    if place != key:
        yield Damage(key, f"the manifest of {key}", f"the manifest of {place}")
    layout = _newest_layout(inventory, manifest.job_uid) if model is None else layout_hash(model)
    if manifest.layout != layout:
        yield Damage(key, f"layout {layout}", f"layout {manifest.layout}")
    for ref in manifest.chain if isinstance(manifest, ShardManifest) else manifest.shards:
        found = inventory.shards.get(ref.key)
        if found is not None and found.ref.digest != ref.digest:
            yield Damage(ref.key, f"SHA-256 {ref.digest}", f"SHA-256 {found.ref.digest}")
        elif ref.key not in inventory.entries:
            yield Damage(ref.key, f"SHA-256 {ref.digest}", _NOTHING)
        if isinstance(manifest, ShardManifest) and found is not None and found.manifest.spans != manifest.spans:
            yield Damage(ref.key, f"places {_spans_text(manifest)}", f"places {_spans_text(found.manifest)}")
    if isinstance(manifest, DenseManifest):
        yield from _check_cover(manifest, key, inventory, model)


def _check_cover(anchor: DenseManifest, key: str, inventory: Inventory, model: ModelSpec | None) -> Iterator[Damage]:
    """Yield the damage of an anchor without a shard for each place. Missing shards are reported elsewhere."""
    found = [inventory.shards.get(ref.key) for ref in anchor.shards]
    manifests = [shard.manifest for shard in found if shard is not None]
    if not manifests or len(manifests) < len(found):
        return
    by_band = zip_longest(*(manifest.spans for manifest in manifests))
    spans = [(0, 0), *(span for band in by_band for span in band if span)]
    if model is not None:
        total = Placement.of(model, 1).total
        spans.append((total, total))
    for (_, end), (start, _) in pairwise(spans):
        if start != end:
            yield Damage(key, f"saves of shards with place {end} next", f"place {start}")


def _check_part(
    store: Store, manifest: ShardManifest | DenseManifest, part: Part, model: ModelSpec | None
) -> Damage | None:
    """Read one part; return its damage, None if there is none. Raises StoreError."""
    data = bytearray(part.size_bytes)
    try:
        received = store.get_into(part.key, [memoryview(data)])
    except MissingError:
        return Damage(part.key, f"{part.size_bytes} bytes", _NOTHING)
    if received.size_bytes != part.size_bytes:
        return Damage(part.key, f"{part.size_bytes} bytes", f"{received.size_bytes} bytes")
    if received.crc32c != part.crc32c:
        return Damage(part.key, f"CRC-32C {part.crc32c:08x}", f"CRC-32C {received.crc32c:08x}")
    return _check_head(manifest, part, model, data) if isinstance(manifest, ShardManifest) else None


def _check_head(manifest: ShardManifest, part: Part, model: ModelSpec | None, data: bytearray) -> Damage | None:
    """Return the damage of a part that differs from its manifest, or from the model."""
    try:
        found = Shape.read(data)
        if model is None:
            dim, precision, state = found.dim, precision_of(found.bits), found.state
        else:
            dim, precision, state = _row_at(part.first, model)
        expected = Shape.of(part, dim, value_bits(manifest.bits, precision), state=state)
        if (found, part.size_bytes) != (expected, expected.size_bytes):
            return Damage(part.key, f"{expected}, {expected.size_bytes} bytes", f"{found}, {part.size_bytes} bytes")
        expected.places(data)
    except PartError as error:
        return Damage(part.key, f"{part.rows} rows of places from {part.first} on", str(error))
    return None


def _row_at(place: int, model: ModelSpec) -> tuple[int, Precision, int]:
    """Return the number of values of a row at this place, their precision, and the values of its optimizer state."""
    ends = (end for _, end in Placement.of(model, 1).spans(0))
    bands = zip(ends, band_shapes(model), strict=True)
    return next(((each.dim, each.precision, each.width) for end, each in bands if place < end), (0, "fp32", 0))


def _spans_text(manifest: ShardManifest) -> str:
    return ", ".join(f"{first} to {last}" for first, last in manifest.spans)


def _newest_layout(inventory: Inventory, job_uid: str) -> str:
    of_job = (held.manifest for held in _saves(inventory) if held.manifest.job_uid == job_uid)
    return max(of_job, key=lambda manifest: (manifest.generation, manifest.step)).layout


def _saves(inventory: Inventory) -> tuple[ListedSave[DenseManifest] | ListedSave[ShardManifest], ...]:
    return (*inventory.dense.values(), *inventory.shards.values())


def _folder(key: str) -> str:
    return key.rpartition("/")[0]
