"""What `cprjob snapshots` asks `python -m cpr_trainer inventory`, and is told.

A `Request` as JSON on one line comes in by the standard input; the answer, as JSON too, goes out by the standard
output. These documents carry no contract version: both ends are of one installation, or `cprjob` and the image of a job
on a cluster are of one release.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cpr_contract.spec import Bits, ModelSpec, StoreSpec, Strategy

Action = Literal["List", "Verify", "Prune"]

#: `Cut` is what shards saved at a cut that became no anchor.
PointKind = Literal["Anchor", "Cut", "Flush", "Priority", "Dense"]


@dataclass(frozen=True, slots=True)
class Request:
    """What to do with the saves in `store`: those of `job_uid`, or of all jobs if that is None.

    `model` is the job's, where it is known: what a save's layout has to be. To prune, `keep` anchors stay, or nothing
    if it is 0; `forks` are the generations and the steps at which they began, as far as the job's status knows. Nothing
    is deleted without `delete`.
    """

    action: Action
    store: StoreSpec
    job_uid: str | None = None
    model: ModelSpec | None = None
    keep: int = 0
    forks: tuple[tuple[int, int], ...] = ()
    delete: bool = False


@dataclass(frozen=True, slots=True)
class Point:
    """A state that can be restored: an anchor, or saves of one step after it.

    `key` is the manifest of the anchor or of the dense save, else of the first shard's save. `shards` have a save in
    it; `size_bytes` are those of its own objects, written last at `written_s` (seconds since the epoch, the store's
    clock). `bits` a value are the fewest in which any of its rows are stored, None for a dense save. It stands on saves
    of the steps `bases`. `strategy` chose the rows of a `Priority` save.
    """

    job_uid: str
    generation: int
    step: int
    samples: int
    kind: PointKind
    key: str
    shards: tuple[int, ...]
    size_bytes: int
    written_s: float
    bits: Bits | None
    bases: tuple[int, ...]
    strategy: Strategy | None


@dataclass(frozen=True, slots=True)
class Damage:
    """An object that is not what it has to be."""

    key: str
    expected: str
    found: str


@dataclass(frozen=True, slots=True)
class Listing:
    """What there is, oldest first, job by job; what cannot be read is in `damaged`."""

    points: tuple[Point, ...]
    damaged: tuple[Damage, ...]


@dataclass(frozen=True, slots=True)
class Verification:
    """The same, every object read: so many of `size_bytes` in all. `unusable` are keys of points with damage below."""

    points: tuple[Point, ...]
    damaged: tuple[Damage, ...]
    unusable: tuple[str, ...]
    objects: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Pruning:
    """Which points stay and which go; with them go so many objects. They are gone already if `deleted`."""

    stay: tuple[Point, ...]
    go: tuple[Point, ...]
    objects: int
    size_bytes: int
    deleted: bool
