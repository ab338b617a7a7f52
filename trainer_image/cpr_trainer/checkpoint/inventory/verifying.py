"""Every object of a job's saves against what has to be there: present, as long, of that checksum, of that layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, zip_longest

from cpr_contract.inventory import Damage, Verification
from cpr_contract.manifests import DenseManifest, ManifestRef, Part, ShardManifest
from cpr_contract.spec import ModelSpec
from cpr_trainer.checkpoint.format.names import place_of
from cpr_trainer.checkpoint.format.parts import PartError, Shape
from cpr_trainer.checkpoint.inventory.holdings import Held, Holdings, list_jobs
from cpr_trainer.checkpoint.inventory.points import points_with_saves
from cpr_trainer.placement import Placement, layout_hash
from cpr_trainer.store import MissingError, Store, in_parallel
from cpr_trainer.tables.assignment import state_widths

_NOTHING = "no such object"


@dataclass(frozen=True, slots=True)
class _Finding:
    """What is wrong, and the manifest that says so."""

    manifest: str
    damage: Damage


def verify(store: Store, holdings: Holdings, job_uid: str | None, model: ModelSpec | None) -> Verification:
    """Read every object of every save once. Raises StoreError.

    Without a model all saves of a job have to be of one layout, that of its newest.
    """
    found = [_Finding(damage.key, damage) for damage in holdings.damaged]
    found += _check_dense(holdings, model)
    found += _check_shards(holdings, model)
    saves = _saves(holdings)
    parts = [(held, part) for held in saves for part in held.manifest.parts]
    checked = in_parallel(lambda item: _check_part(store, item[0].manifest, item[1], model), parts)
    found += [_Finding(held.ref.key, damage) for (held, _), damage in zip(parts, checked, strict=True) if damage]
    if found:  # a job that trains prunes its saves, manifests first: what is gone by now is no damage
        there = list_jobs(store, job_uid)
        found = [finding for finding in found if finding.manifest in there]
    spoilt = {_folder(finding.damage.key) for finding in found}
    points = points_with_saves(holdings)
    return Verification(
        points=tuple(point for point, _ in points),
        damaged=tuple(dict.fromkeys(finding.damage for finding in found)),
        unusable=tuple(point.key for point, needs in points if not spoilt.isdisjoint(map(_folder, needs))),
        objects=len(parts) + len(saves) + len(holdings.damaged),
        size_bytes=sum(part.size_bytes for _, part in parts),
    )


def _check_dense(holdings: Holdings, model: ModelSpec | None) -> Iterator[_Finding]:
    for held in holdings.dense.values():
        yield from _check_place(held, holdings, model)
        for ref in held.manifest.shards:
            yield from _check_named(held.ref.key, ref, holdings)
        yield from _check_cover(held, holdings, model)


def _check_shards(holdings: Holdings, model: ModelSpec | None) -> Iterator[_Finding]:
    for held in holdings.shards.values():
        yield from _check_place(held, holdings, model)
        for ref in held.manifest.chain:
            yield from _check_named(held.ref.key, ref, holdings)
            base = holdings.shards.get(ref.key)
            if base is not None and base.manifest.spans != held.manifest.spans:
                damage = Damage(ref.key, f"places {_told(held.manifest)}", f"places {_told(base.manifest)}")
                yield _Finding(held.ref.key, damage)


def _check_place(
    held: Held[ShardManifest] | Held[DenseManifest], holdings: Holdings, model: ModelSpec | None
) -> Iterator[_Finding]:
    """Say whether a manifest lies elsewhere than it says, or is of another layout."""
    manifest, key = held.manifest, held.ref.key
    place = place_of(manifest).manifest
    if place != key:
        yield _Finding(key, Damage(key, f"the manifest of {key}", f"the manifest of {place}"))
    layout = _newest_layout(holdings, manifest.job_uid) if model is None else layout_hash(model)
    if manifest.layout != layout:
        yield _Finding(key, Damage(key, f"layout {layout}", f"layout {manifest.layout}"))


def _check_named(by: str, ref: ManifestRef, holdings: Holdings) -> Iterator[_Finding]:
    """Say whether a manifest that another names is there, and the one that was meant."""
    found = holdings.shards.get(ref.key)
    if found is not None and found.ref.digest != ref.digest:
        yield _Finding(by, Damage(ref.key, f"SHA-256 {ref.digest}", f"SHA-256 {found.ref.digest}"))
    elif ref.key not in holdings.entries:
        yield _Finding(by, Damage(ref.key, f"SHA-256 {ref.digest}", _NOTHING))


def _check_cover(held: Held[DenseManifest], holdings: Holdings, model: ModelSpec | None) -> Iterator[_Finding]:
    """Say whether an anchor's shards hold every place once; those that are not there are told of elsewhere."""
    found = [holdings.shards.get(ref.key) for ref in held.manifest.shards]
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
            damage = Damage(held.ref.key, f"saves of shards with place {end} next", f"place {start}")
            yield _Finding(held.ref.key, damage)


def _check_part(
    store: Store, manifest: ShardManifest | DenseManifest, part: Part, model: ModelSpec | None
) -> Damage | None:
    """Read one part and say what is wrong with it, None if nothing is. Raises StoreError."""
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
    """Say whether a part holds what its manifest, and the model, say that it does."""
    try:
        found = Shape.read(data)
        dim, state = (found.dim, found.state) if model is None else _width_at(part.first, model)
        expected = Shape.of(part, dim, manifest.bits, state=state)
        if (found, part.size_bytes) != (expected, expected.size_bytes):
            return Damage(part.key, f"{expected}, {expected.size_bytes} bytes", f"{found}, {part.size_bytes} bytes")
        expected.places(data)
    except PartError as error:
        return Damage(part.key, f"{part.rows} rows of places from {part.first} on", str(error))
    return None


def _width_at(place: int, model: ModelSpec) -> tuple[int, int]:
    """Return how many values a row at this place has, and how many its optimizer keeps."""
    ends = (end for _, end in Placement.of(model, 1).spans(0))
    widths = zip(ends, model.dims, state_widths(model), strict=True)
    return next(((dim, state) for end, dim, state in widths if place < end), (0, 0))


def _told(manifest: ShardManifest) -> str:
    return ", ".join(f"{first} to {last}" for first, last in manifest.spans)


def _newest_layout(holdings: Holdings, job_uid: str) -> str:
    of_job = (held.manifest for held in _saves(holdings) if held.manifest.job_uid == job_uid)
    return max(of_job, key=lambda manifest: (manifest.generation, manifest.step)).layout


def _saves(holdings: Holdings) -> tuple[Held[DenseManifest] | Held[ShardManifest], ...]:
    return (*holdings.dense.values(), *holdings.shards.values())


def _folder(key: str) -> str:
    return key.rpartition("/")[0]
