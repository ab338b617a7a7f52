"""Keys of saves: made here, and read back from listings."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from cpr_contract.manifests import (
    MANIFEST,
    RESTORE_RECORD,
    DenseManifest,
    RestoreRecord,
    ShardManifest,
    dense_prefix,
    incarnation_prefix,
    shard_prefix,
    step_folder,
)

SaveKind = Literal["Anchor", "Flush", "Priority", "Dense"]

_SAVE = re.compile(
    r"(?P<writer>.+/(?:inc|group)-(?P<number>\d+))/step-(?P<step>\d+)(?:-(?P<kind>flush|priority|dense))?/[^/]+"
)
_CLAIM = re.compile(r".+/claim-(\d+)")
_RESTORE_RECORD = re.compile(r".+/inc-(?P<number>\d+)/" + re.escape(RESTORE_RECORD))
_KINDS: dict[str | None, SaveKind] = {None: "Anchor", "flush": "Flush", "priority": "Priority", "dense": "Dense"}
#: The order of saves of one step.
_ORDER: dict[SaveKind, int] = {"Anchor": 0, "Dense": 0, "Priority": 1, "Flush": 2}


@dataclass(frozen=True, slots=True)
class SaveName:
    """One save: `folder` ends in a slash, `writer` is the incarnation or group that wrote it."""

    folder: str
    writer: int
    step: int
    kind: SaveKind

    @property
    def manifest(self) -> str:
        """The key of its manifest."""
        return self.folder + MANIFEST

    @property
    def age(self) -> tuple[int, int]:
        """Rises with each save of one writer.

        The step of a priority save is the last that *every* rank had reached: it is after the cut of that step, and
        before that of the next. A flush is the last save.
        """
        return self.step, _ORDER[self.kind]


def place_of(manifest: ShardManifest | DenseManifest) -> SaveName:
    """Return the name under which this manifest belongs; of a dense state that of an anchor if it names shards."""
    m = manifest
    kind: SaveKind
    if isinstance(m, ShardManifest):
        prefix, writer, kind = (
            incarnation_prefix(m.job_uid, m.generation, m.index, m.incarnation),
            m.incarnation,
            m.kind,
        )
    else:
        prefix, writer = f"{dense_prefix(m.job_uid, m.generation)}/group-{m.group:04d}", m.group
        kind = "Anchor" if m.shards else "Dense"
    return SaveName(f"{prefix}/{step_folder(m.step, kind)}/", writer, m.step, kind)


def dense_of_anchor(anchor: SaveName) -> str:
    """Return the folder of a dense save of an anchor's step by the group that wrote the anchor."""
    return f"{anchor.folder.rsplit('/', 2)[0]}/{step_folder(anchor.step, 'Dense')}/"


def part_name(number: int, process_number: int = 1) -> str:
    """Return the last piece of a part's key. Each process has its own: late requests of an earlier one may arrive."""
    return f"part-{number:05d}" if process_number == 1 else f"part-{number:05d}-{process_number}"


def restore_record_key(record: RestoreRecord) -> str:
    """Return the key of an incarnation's restore record."""
    r = record
    return f"{incarnation_prefix(r.job_uid, r.generation, r.index, r.incarnation)}/{RESTORE_RECORD}"


def claims_prefix(job_uid: str, generation: int, index: int) -> str:
    """Return the prefix of the keys of all claims on one shard; the number of the incarnation follows."""
    return f"{shard_prefix(job_uid, generation, index)}/claim-"


def claims_in(keys: Iterable[str]) -> tuple[int, ...]:
    """Return the incarnations with a claim, among the keys of one shard and generation."""
    return tuple(int(found[1]) for key in keys if (found := _CLAIM.fullmatch(key)))


def restore_records_in(keys: Iterable[str]) -> dict[int, str]:
    """Return the incarnations with a restore record, and its key, among the keys of one shard and generation."""
    return {int(found["number"]): key for key in keys if (found := _RESTORE_RECORD.fullmatch(key))}


def is_restore_record(key: str) -> bool:
    """Return whether an object is a restore record."""
    return _RESTORE_RECORD.fullmatch(key) is not None


def parse_save(key: str) -> SaveName | None:
    """Return the save that an object belongs to, by its key; None if to none."""
    found = _SAVE.fullmatch(key)
    if found is None:
        return None
    folder = key.rpartition("/")[0] + "/"
    return SaveName(folder, int(found["number"]), int(found["step"]), _KINDS[found["kind"]])


def committed_in(keys: Iterable[str]) -> tuple[SaveName, ...]:
    """Return the saves with a manifest among these keys, in the order of the keys."""
    found = (parse_save(key) for key in keys if key.endswith("/" + MANIFEST))
    return tuple(save for save in found if save is not None)


def shard_folder(job_uid: str, generation: int, index: int) -> str:
    """Return the prefix to list for one shard; the slash keeps shard-10000 out of shard-1000."""
    return shard_prefix(job_uid, generation, index) + "/"
