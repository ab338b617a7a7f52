"""The points that a job can be restored to, out of its saves: anchors, and the saves after them. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from cpr_contract.inventory import Point, PointKind
from cpr_contract.manifests import DenseManifest, ShardManifest
from cpr_trainer.checkpoint.inventory.holdings import Held, Holdings

Shards = Sequence[Held[ShardManifest]]


def points_of(holdings: Holdings) -> tuple[Point, ...]:
    """Return all points, oldest first, job by job."""
    return tuple(point for point, _ in points_with_saves(holdings))


def points_with_saves(holdings: Holdings) -> tuple[tuple[Point, frozenset[str]], ...]:
    """Return all points, each with the keys of all manifests that it needs.

    Saves of several shards make one point if they are of one step and kind; an anchor's are those that it names.
    """
    found = [_dense_point(held, holdings) for held in holdings.dense.values()]
    anchored = {ref.key for held in holdings.dense.values() for ref in held.manifest.shards}
    groups: dict[tuple[str, int, int, str], list[Held[ShardManifest]]] = defaultdict(list)
    for held in holdings.shards.values():
        if held.ref.key not in anchored:
            m = held.manifest
            groups[m.job_uid, m.generation, m.step, m.kind].append(held)
    found += [_point(group[0], _kind(group[0].manifest), group, holdings) for group in groups.values()]
    return tuple(sorted(found, key=lambda each: _place(each[0])))


def _dense_point(held: Held[DenseManifest], holdings: Holdings) -> tuple[Point, frozenset[str]]:
    named = [ref.key for ref in held.manifest.shards]
    shards = [holdings.shards[key] for key in named if key in holdings.shards]
    point, needs = _point(held, "Anchor" if named else "Dense", shards, holdings)
    return point, needs.union(named)


def _point(
    first: Held[DenseManifest] | Held[ShardManifest], kind: PointKind, shards: Shards, holdings: Holdings
) -> tuple[Point, frozenset[str]]:
    """Make a point of the save that it is known by, and of its shards' saves."""
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
        bases=tuple(sorted({holdings.shards[key].manifest.step for key in bases if key in holdings.shards})),
        strategy=next((held.manifest.strategy for held in shards), None),
    )
    return point, frozenset(bases | saves.keys())


def _kind(manifest: ShardManifest) -> PointKind:
    return "Cut" if manifest.kind == "Anchor" else manifest.kind


def _place(point: Point) -> tuple[str, int, int, float, str]:
    return point.job_uid, point.generation, point.step, point.written_s, point.key
