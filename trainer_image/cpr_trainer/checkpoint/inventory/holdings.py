"""What lies in a store: every committed save with its manifest, and how much it takes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from cpr_contract.inventory import Damage
from cpr_contract.manifests import DenseManifest, ManifestRef, Origin, ShardManifest
from cpr_trainer.checkpoint.format.documents import read_document
from cpr_trainer.checkpoint.format.errors import DamagedError
from cpr_trainer.checkpoint.format.names import SaveName, committed_in, is_origin, parse_save
from cpr_trainer.store import Entry, MissingError, Store, in_parallel

M = TypeVar("M", ShardManifest, DenseManifest)

_OF_A_JOB = re.compile(r"[^/]+/gen-\d+/.+")
_OF_A_SHARD = re.compile(r"[^/]+/gen-\d+/shard-\d+/.+")


@dataclass(frozen=True, slots=True)
class Held(Generic[M]):
    """One committed save. Its folder's objects take `size_bytes`; the last of them was written at `written_s`."""

    manifest: M
    ref: ManifestRef
    size_bytes: int
    written_s: float


@dataclass(frozen=True, slots=True)
class Holdings:
    """All objects of some jobs by key; saves of shards, and dense saves and anchors, by the keys of their manifests.

    `damaged` are manifests that cannot be read. `forks` are the steps at which each generation of a job but the first
    began, by job and generation, as far as origins tell.
    """

    entries: Mapping[str, Entry]
    shards: Mapping[str, Held[ShardManifest]]
    dense: Mapping[str, Held[DenseManifest]]
    damaged: tuple[Damage, ...]
    forks: Mapping[tuple[str, int], int]

    @property
    def jobs(self) -> tuple[str, ...]:
        """The uids of all jobs that have objects here."""
        return tuple(sorted({key.partition("/")[0] for key in self.entries}))


def read_holdings(store: Store, job_uid: str | None) -> Holdings:
    """Read what there is of one job, or of all. Raises StoreError."""
    entries = list_jobs(store, job_uid)
    folders: dict[SaveName, list[Entry]] = defaultdict(list)
    for entry in entries.values():
        if (save := parse_save(entry.key)) is not None:
            folders[save].append(entry)
    of_shards = {save: found for save, found in folders.items() if _OF_A_SHARD.fullmatch(save.manifest)}
    others = {save: found for save, found in folders.items() if save not in of_shards}
    shards, damaged_shards = _read_all(store, ShardManifest, of_shards)
    dense, damaged_dense = _read_all(store, DenseManifest, others)
    return Holdings(entries, shards, dense, damaged_shards + damaged_dense, _forks(store, entries))


def list_jobs(store: Store, job_uid: str | None) -> Mapping[str, Entry]:
    """List the objects of one job, or the saves of all: others may lie beside those. Raises StoreError."""
    listed = store.list("" if job_uid is None else f"{job_uid}/")
    return {entry.key: entry for entry in listed if job_uid is not None or _OF_A_JOB.fullmatch(entry.key)}


def _read_all(
    store: Store, kind: type[M], folders: Mapping[SaveName, list[Entry]]
) -> tuple[dict[str, Held[M]], tuple[Damage, ...]]:
    committed = committed_in(entry.key for found in folders.values() for entry in found)
    read = in_parallel(lambda save: _read(store, kind, save, folders[save]), committed)
    held = {each.ref.key: each for each in read if isinstance(each, Held)}
    return held, tuple(each for each in read if isinstance(each, Damage))


def _read(store: Store, kind: type[M], save: SaveName, folder: list[Entry]) -> Held[M] | Damage | None:
    """Read one manifest; None if it was pruned since it was listed."""
    try:
        manifest, ref = read_document(store, kind, save.manifest)
    except MissingError:
        return None
    except DamagedError as error:
        return Damage(save.manifest, f"a {kind.__name__}", error.what)
    return Held(manifest, ref, sum(each.size_bytes for each in folder), max(each.modified_s for each in folder))


def _forks(store: Store, keys: Iterable[str]) -> Mapping[tuple[str, int], int]:
    """Where generations began: the step that shards restored which took no save of the generation itself."""
    forks: dict[tuple[str, int], int] = {}
    for origin in in_parallel(lambda key: _read_origin(store, key), filter(is_origin, keys)):
        if origin is not None and origin.parent is None and origin.generation > 1:
            place = origin.job_uid, origin.generation
            forks[place] = min(origin.step, forks.get(place, origin.step))
    return forks


def _read_origin(store: Store, key: str) -> Origin | None:
    try:
        return read_document(store, Origin, key)[0]
    except (DamagedError, MissingError):
        return None
