"""Reads the snapshots of an Apache Iceberg table after another one, each once and without a catalog."""

from __future__ import annotations

import logging
from collections.abc import Collection, Container, Mapping, Sequence

from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntryStatus
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from cpr_contract.pinned_data import Constant, TableVersion
from cpr_trainer.data.files import content_errors
from cpr_trainer.data.iceberg import (
    BROKEN,
    StoreIO,
    files_of_snapshot,
    is_renamed_whole,
    metadata_files,
    read_metadata,
    snapshot_in,
    snapshot_of_files,
)
from cpr_trainer.data.table_columns import TableSnapshot
from cpr_trainer.data.table_log import Appended, history_lost, rows_changed, table_replaced
from cpr_trainer.errors import DataError
from cpr_trainer.store import Uris

_LOG = logging.getLogger(__name__)

_RETENTION = "history.expire.max-snapshot-age-ms"


def settled_metadata(found: Mapping[int, Sequence[str]], seen: Container[str]) -> tuple[str | None, list[str]]:
    """Return the newest metadata file that is the table's, None without one, and the files with higher numbers.

    A catalog decides between two commits after both have written a file of the same number. A file is therefore the
    table's if it alone has its number, and an earlier look has `seen` it. A catalog that is a folder renames the file
    to its number, which only one commit can.
    """
    newer: list[str] = []
    for number in sorted(found, reverse=True):
        uris = found[number]
        if len(uris) == 1 and (uris[0] in seen or is_renamed_whole(uris[0])):
            return uris[0], newer
        newer += uris
    return None, newer


def snapshots_after(metadata: TableMetadata, ends: Container[int]) -> tuple[list[Snapshot], int | None]:
    """Return the snapshots after the newest one of `ends` in the history of the current one, the oldest first; and it.

    If the history has none of `ends`, the number is that of the snapshot at which it breaks off, or None at its begin.
    """
    found: list[Snapshot] = []
    number = metadata.current_snapshot_id
    while number is not None and number not in ends and (snapshot := metadata.snapshot_by_id(number)) is not None:
        found.append(snapshot)
        number = snapshot.parent_snapshot_id
    return found[::-1], number


class IcebergLog:
    """The snapshots of the table in the folder `table` after another one; see `TableLog`.

    Without a pinned snapshot a job begins with `version`, or the current one. The data files of snapshots that were
    read and are not pinned stay in memory, by the snapshot that added them.
    """

    def __init__(self, table: str, version: int | None, files: Uris) -> None:
        self._table = table
        self._version = version
        self._files = files
        self._seen: Collection[str] = ()
        self._place = ""
        self._metadata: TableMetadata | None = None
        self._pinned = 0
        self._added: dict[int, list[DataFile]] = {}

    def read(self, pinned: TableVersion | None) -> Appended | None:
        """Return the files of the snapshots after the pinned one. Raises as `TableLog.read` does."""
        found = metadata_files(self._table, self._files)
        place, newer = settled_metadata(found, self._seen)
        self._seen = {uri for uris in found.values() for uri in uris}
        if place is None or not self._files.version(place).size_bytes:
            return None  # A file on a disk is empty before it is written.
        if place != self._place or self._metadata is None:
            self._place, self._metadata = place, read_metadata(place, self._files)
        with content_errors(place, BROKEN):
            return self._read(self._metadata, pinned, newer)

    def _read(self, metadata: TableMetadata, pinned: TableVersion | None, newer: Sequence[str]) -> Appended | None:
        before: Mapping[str, tuple[Constant, ...]] = {}
        if pinned is None:
            if self._version is None and metadata.current_snapshot() is None:
                return None
            snapshot = snapshot_in(metadata, self._version, self._place)
            first = files_of_snapshot(metadata, snapshot, metadata.schema(), self._files)
            if self._version is None:
                return Appended(first, more=bool(newer))
            pinned, before = first.version, first.files
        following = self._following(metadata, pinned.version, newer)
        if following is None:
            return Appended(TableSnapshot(pinned, before), more=True)
        refused = None
        for snapshot in following:
            if (added := self._added_by(snapshot)) is None:
                refused = rows_changed(f"Snapshot {snapshot.snapshot_id} of the Iceberg table {self._table}")
                break
            self._added[snapshot.snapshot_id] = added
        if not self._added:
            return Appended(TableSnapshot(pinned, before), refused, more=bool(newer))
        new = (file for added in self._added.values() for file in added)
        found = snapshot_of_files(metadata, next(reversed(self._added)), metadata.schema(), new)
        return Appended(TableSnapshot(found.version, {**before, **found.files}), refused, more=bool(newer))

    def _following(self, metadata: TableMetadata, pinned: int, newer: Sequence[str]) -> list[Snapshot] | None:
        """Return the snapshots after the pinned one that were not read yet, the oldest first.

        None if `metadata` is older than the pinned snapshot, which one of the `newer` files has. Raises DataError if
        its history has not the pinned snapshot.
        """
        read = list(self._added)
        read = read[read.index(pinned) + 1 :] if pinned in read else read if pinned == self._pinned else []
        ends = {pinned, *read}
        following, end = snapshots_after(metadata, ends)
        if end in ends:
            # Snapshots that were read and never became the table's are left out.
            read = read[: read.index(end) + 1] if end in read else []
            self._pinned, self._added = pinned, {number: self._added[number] for number in read}
            return following
        if any(self._may_continue(each, ends) for each in newer):
            _LOG.info("%s is read no further before it is decided which of %s is the table", self._table, newer)
            return None
        current = metadata.current_snapshot_id
        if end is None and metadata.snapshot_by_id(pinned) is not None:
            raise table_replaced(
                f"Snapshot {pinned} is not in the history of snapshot {current}, the current one of the Iceberg table "
                f"{self._table}."
            )
        first = following[0].snapshot_id if following else current
        raise history_lost(
            f"The history of the Iceberg table {self._table} begins with snapshot {first}. Snapshots between {pinned}, "
            "the last one that the job had found, and that one have expired, or the table was created again.",
            _RETENTION,
        )

    def _may_continue(self, place: str, ends: Container[int]) -> bool:
        """Return whether a metadata file has one of these snapshots in its history, or is not written to its end."""
        try:
            return snapshots_after(read_metadata(place, self._files), ends)[1] in ends
        except DataError:
            return True

    def _added_by(self, snapshot: Snapshot) -> list[DataFile] | None:
        """Return the files with new rows, sorted by name; None if the snapshot deletes or updates rows."""
        if snapshot.summary is not None and snapshot.summary.operation == Operation.REPLACE:
            return []
        store, number = StoreIO(self._files), snapshot.snapshot_id
        added = []
        for manifest in snapshot.manifests(store):
            if manifest.added_snapshot_id not in {number, None}:
                continue
            for entry in manifest.fetch_manifest_entry(store, discard_deleted=False):
                if entry.snapshot_id != number or entry.status == ManifestEntryStatus.EXISTING:
                    continue
                if entry.status == ManifestEntryStatus.DELETED or manifest.content == ManifestContent.DELETES:
                    return None
                added.append(entry.data_file)
        return sorted(added, key=lambda file: file.file_path)
