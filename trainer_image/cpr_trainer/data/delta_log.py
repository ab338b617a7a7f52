"""Reads the commits of a Delta Lake table after a version, each once."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from cpr_contract.pinned_data import Constant, TableVersion
from cpr_trainer.data.delta import (
    BROKEN,
    LOG,
    READERS,
    Action,
    Actions,
    commit_name,
    delta_snapshot,
    snapshot_of_actions,
    table_actions,
    uri_of,
    versions_in,
)
from cpr_trainer.data.files import content_errors
from cpr_trainer.data.table_columns import TableSnapshot
from cpr_trainer.data.table_log import Appended, history_lost, rows_changed, table_replaced
from cpr_trainer.errors import DataError
from cpr_trainer.store import Uris

_RETENTION = "delta.logRetentionDuration"
#: The parts of the action that adds a file which its readers need.
_OF_FILE = ("path", "partitionValues", "size", "modificationTime", "dataChange", "deletionVector")


@dataclass(frozen=True, slots=True)
class Commit:
    """The effect of a commit on the rows: the actions of the files that it `added`, and whether it removed some.

    Files that a compaction wrote or removed have the same rows as others, and count as neither. about: new metadata or
    a new protocol. tag: that of the commit's file.
    """

    added: tuple[Action, ...]
    removes: bool
    about: Actions
    tag: str

    @classmethod
    def parse(cls, text: str, tag: str) -> Commit:
        """Return the commit of a file: an action a line. Raises ValueError, AttributeError."""
        actions = [each for line in text.splitlines() for each in json.loads(line).items()]
        changes = [(kind, each) for kind, each in actions if kind in {"add", "remove"} and each.get("dataChange", True)]
        return cls(
            tuple({key: each[key] for key in _OF_FILE if key in each} for kind, each in changes if kind == "add"),
            any(kind == "remove" for kind, _ in changes),
            {kind: each for kind, each in actions if kind in {"protocol", "metaData"}},
            tag,
        )


def last_consecutive(begin: int, versions: Collection[int]) -> int:
    """Return the last version up to which all after `begin` are among `versions`."""
    while begin + 1 in versions:
        begin += 1
    return begin


class DeltaLog:
    """The commits of the table in the folder `table` after a version; see `TableLog`.

    Without a pinned version a job begins with `version`, or the newest. Commits that were read and are not pinned stay
    in memory, and the metadata of the last one.
    """

    def __init__(self, table: str, version: int | None, files: Uris) -> None:
        self._table = table
        self._version = version
        self._files = files
        self._commits: dict[int, Commit] = {}
        self._about: Actions = {}
        self._about_version = -1

    def read(self, pinned: TableVersion | None) -> Appended:
        """Return the files of the commits after the pinned version. Raises as `TableLog.read` does."""
        files: Mapping[str, tuple[Constant, ...]] = {}
        if pinned is None:
            found = delta_snapshot(self._table, self._version, self._files)
            pinned = replace(found.version, tag=self._tag(found.version.version))
            if self._version is None:
                return Appended(TableSnapshot(pinned, found.files))
            files = found.files
        refused = self._read_commits(pinned.version, pinned.tag)
        end = pinned.version
        for version in sorted(self._commits):
            if self._commits[version].removes:
                refused = rows_changed(f"Version {version} of the Delta table {self._table}")
                break
            end = version
        if end == pinned.version:
            return Appended(TableSnapshot(pinned, files), refused)
        added = self._added(pinned.version, end)
        return Appended(TableSnapshot(added.version, {**files, **added.files}), refused)

    def _read_commits(self, begin: int, tag: str) -> DataError | None:
        """Read the commits after `begin`; return the error of those that are lost after them.

        Raises DataError if the log does not continue the version `begin`, whose commit had this tag.
        """
        self._commits = {version: commit for version, commit in self._commits.items() if version > begin}
        log, newest = self._list(begin)
        if last_consecutive(begin, {*log, *self._commits}) < newest:
            log, newest = self._list(begin)  # A listing may lack commits that came while it was made.
        if newest < begin or (tag and begin in log and self._tag(begin) not in {tag, ""}):
            raise table_replaced(f"The log of the Delta table {self._table} does not continue version {begin}.")
        last = last_consecutive(begin, {*log, *self._commits})
        new = [version for version in range(begin + 1, last + 1) if version not in self._commits]
        with ThreadPoolExecutor(READERS, thread_name_prefix="delta-log") as pool:
            self._commits |= zip(new, pool.map(self._commit, (log[version] for version in new)), strict=True)
        if last == newest:
            return None
        lost = min((version for version in log if version > last), default=newest + 1) - 1
        return history_lost(
            f"Versions {last + 1} to {lost} of the Delta table {self._table} were deleted from its log before the job "
            "had found them.",
            _RETENTION,
        )

    def _list(self, begin: int) -> tuple[Mapping[int, str], int]:
        """Return the commits from `begin` on, and the newest version of the log, -1 if it is before that."""
        found = self._files.below(self._table + LOG, after=commit_name(begin).removesuffix(".json"))
        commits, checkpoints = versions_in(found)
        return commits, max((*commits, *checkpoints), default=-1)

    def _commit(self, uri: str) -> Commit:
        version = self._files.version(uri)
        with self._files.open(uri, version) as stream, content_errors(uri, BROKEN):
            return Commit.parse(stream.read().decode(), version.tag)

    def _tag(self, version: int) -> str:
        """Return the present tag of a version's commit, empty if the log lacks it."""
        try:
            return self._files.version(self._table + LOG + commit_name(version)).tag
        except DataError:
            return ""

    def _added(self, begin: int, end: int) -> TableSnapshot:
        """Return the files that the commits after `begin` up to `end` added, in the order of these."""
        if self._about_version < begin:
            self._about, self._about_version = table_actions(self._table, end, self._files), end
        for version in range(self._about_version + 1, end + 1):
            self._about = {**self._about, **self._commits[version].about}
        self._about_version = end
        added = [(version, each) for version in range(begin + 1, end + 1) for each in self._commits[version].added]
        found = snapshot_of_actions(self._about, [each for _, each in added], self._table, end)
        versions = {uri_of(self._table, each["path"]): version for version, each in added}
        ordered = dict(sorted(found.files.items(), key=lambda each: versions[each[0]]))
        return TableSnapshot(replace(found.version, tag=self._commits[end].tag), ordered)
