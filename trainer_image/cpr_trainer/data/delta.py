"""Finds the data files of a version of a Delta Lake table, by its log.

The log is copied through the job's own store, and delta-rs reads the copy. It therefore needs no access to the store.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
from deltalake import DeltaTable

from cpr_contract.pinned_data import Constant, TableColumn, TableVersion
from cpr_trainer.data.files import content_errors
from cpr_trainer.data.table_columns import TableSnapshot, constants_of
from cpr_trainer.errors import DataError
from cpr_trainer.store import Uris

LOG = "_delta_log/"
#: An action of a commit, without its kind.
Action = Mapping[str, Any]
#: The protocol and the metadata of a table: the actions `protocol` and `metaData`.
Actions = Mapping[str, Action]
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10})|\.[0-9a-f-]{36})?\.(?:parquet|json)")
_SIDECARS = LOG + "_sidecars/"
#: Features of tables that do not change how the rows of a file are read, or that are handled here.
_FEATURES = frozenset(
    {"columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "v2Checkpoint", "vacuumProtocolCheck"}
)
READERS = 8
BROKEN = "Check that the table can be read by other programs (FSCK REPAIR TABLE), or state another data.version."


def delta_snapshot(table: str, version: int | None, files: Uris) -> TableSnapshot:
    """Return a version of the table in the folder `table`, with a slash at its end; None is the newest.

    Its files are in the order in which they were written, those of the same time by name. Raises DataError, also for a
    table whose files alone do not have its rows, and StoreError.
    """
    with TemporaryDirectory(prefix="delta-") as folder:
        version = _copy_log(table, version, files, Path(folder))
        with content_errors(table + LOG, BROKEN):
            return _snapshot_of(DeltaTable(folder, version=version), table, version)


def table_actions(table: str, version: int, files: Uris) -> Actions:
    """Return the actions that state the protocol and the metadata of a version. Raises as `delta_snapshot` does."""
    with TemporaryDirectory(prefix="delta-") as folder:
        _copy_log(table, version, files, Path(folder))
        with content_errors(table + LOG, BROKEN):
            opened = DeltaTable(folder, version=version)
            protocol, about = opened.protocol(), opened.metadata()
            return {
                "protocol": {
                    "minReaderVersion": protocol.min_reader_version,
                    "minWriterVersion": protocol.min_writer_version,
                    "readerFeatures": protocol.reader_features,
                    "writerFeatures": protocol.writer_features,
                },
                "metaData": {
                    "id": str(about.id),
                    "format": {"provider": "parquet", "options": {}},
                    "schemaString": opened.schema().to_json(),
                    "partitionColumns": about.partition_columns,
                    "configuration": about.configuration,
                    "createdTime": about.created_time,
                },
            }


def snapshot_of_actions(about: Actions, added: Sequence[Action], table: str, version: int) -> TableSnapshot:
    """Return files that commits up to `version` added to a table, as `delta_snapshot` returns those of a version.

    about: the actions that state its protocol and its metadata. added: the actions of the files.
    """
    lines = [*({kind: action} for kind, action in about.items()), *({"add": action} for action in added)]
    with TemporaryDirectory(prefix="delta-") as folder:
        log = Path(folder) / LOG
        log.mkdir()
        (log / commit_name(0)).write_text("\n".join(map(json.dumps, lines)), "utf-8")
        with content_errors(table + LOG, BROKEN):
            return _snapshot_of(DeltaTable(folder), table, version)


def _snapshot_of(opened: DeltaTable, table: str, version: int) -> TableSnapshot:
    _check_features(opened, table)
    _check_no_deletion_vectors(opened, table, version)
    actions = pa.table(opened.get_add_actions())
    files = _files_of(actions, opened.metadata().partition_columns, table)
    return TableSnapshot(TableVersion(version, _columns(opened)), files)


def commit_name(version: int) -> str:
    """Return the name of a version's commit in the log. The names of all files of later versions sort after it."""
    return f"{version:020}.json"


def versions_in(log: Sequence[str]) -> tuple[dict[int, str], dict[int, list[str]]]:
    """Return the commits and the whole checkpoints among the files of a log, by their version."""
    commits = {int(match[1]): uri for uri in log if (match := _COMMIT.fullmatch(_name(uri)))}
    return commits, _whole_checkpoints(log)


def _copy_log(table: str, version: int | None, files: Uris, folder: Path) -> int:
    """Copy the part of a log that has a version, from the checkpoint before it on; return the version."""
    commits, checkpoints = versions_in(files.below(table + LOG))
    known = sorted({*commits, *checkpoints})
    if not known:
        raise DataError(f"{table} is no Delta table: it has no commit in {LOG}.", "Check data.uri and data.format.")
    if version is not None and version not in known:
        raise DataError(
            f"{table} has no version {version} in its log, which has the versions {known[0]} to {known[-1]}.",
            "Correct data.version, and let the log last for the time of a job (delta.logRetentionDuration).",
        )
    newest = known[-1] if version is None else version
    first = max((each for each in checkpoints if each <= newest), default=-1)
    needed = [*checkpoints.get(first, ()), *(uri for each, uri in commits.items() if first < each <= newest)]
    if first in commits:
        needed.append(commits[first])
    if first in checkpoints:  # One of version 2 has parts in another folder, which no name connects with it.
        needed += files.below(table + _SIDECARS)
    targets = [folder / (_SIDECARS if _SIDECARS in uri else LOG) / _name(uri) for uri in needed]
    for target in targets:
        target.parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(READERS, thread_name_prefix="delta-log") as pool:
        list(pool.map(_copy, needed, targets, [files] * len(needed)))
    return newest


def _copy(uri: str, target: Path, files: Uris) -> None:
    with files.open(uri, files.version(uri)) as source, target.open("wb") as sink:
        copyfileobj(source, sink)


def _name(uri: str) -> str:
    return unquote(uri.rpartition("/")[2])


def _whole_checkpoints(log: Sequence[str]) -> dict[int, list[str]]:
    """Return the files of each checkpoint by its version, without those that lack a part."""
    matches = [(uri, match) for uri in log if (match := _CHECKPOINT.fullmatch(_name(uri)))]
    parts = Counter((match[1], match[2]) for _, match in matches if match[2])
    found: dict[int, list[str]] = {}
    for uri, match in matches:
        if match[2] is None or parts[match[1], match[2]] == int(match[2]):
            found.setdefault(int(match[1]), []).append(uri)
    return found


def _check_features(opened: DeltaTable, table: str) -> None:
    """Raise DataError if a reader of a table must support a feature that is not known here."""
    if unknown := set(opened.protocol().reader_features or ()) - _FEATURES:
        raise DataError(
            f"The Delta table {table} has features that are not supported: {', '.join(sorted(unknown))}.",
            "Drop them (ALTER TABLE ... DROP FEATURE), or copy its rows into another table.",
        )


def _check_no_deletion_vectors(opened: DeltaTable, table: str, version: int) -> None:
    """Raise DataError if files of a table have rows that deletion vectors mark as deleted.

    The list of files does not show them. delta-rs reads all deletion vectors, and those in files of their own were not
    copied: each one is a row or an error.
    """
    if "deletionVectors" not in (opened.protocol().reader_features or ()):
        return
    try:
        found = any(batch.num_rows for batch in opened.deletion_vectors())
    except Exception:  # noqa: BLE001 -- delta-rs has no type for it
        found = True
    if found:
        raise DataError(
            f"Version {version} of the Delta table {table} has files with deletion vectors: some of their "
            "rows were deleted.",
            "Rewrite these files (REORG TABLE ... APPLY (PURGE)), and train the version after that.",
        )


def _columns(opened: DeltaTable) -> tuple[TableColumn, ...]:
    """Return the columns of a table, and how they are found in files by its column mapping."""
    mode = opened.metadata().configuration.get("delta.columnMapping.mode", "none")
    partitions = frozenset(opened.metadata().partition_columns)
    found = []
    for field in json.loads(opened.schema().to_json())["fields"]:
        name, about = field["name"], field["metadata"]
        if name in partitions:
            found.append(TableColumn(name, None, ()))  # It is a constant of each file.
        elif mode == "id":
            found.append(TableColumn(name, int(about["delta.columnMapping.id"]), ()))
        else:
            physical = about["delta.columnMapping.physicalName"] if mode == "name" else name
            found.append(TableColumn(name, None, (physical,)))
    return tuple(found)


def _files_of(actions: Any, partitions: Sequence[str], table: str) -> Mapping[str, tuple[Constant, ...]]:
    actions = actions.sort_by([("modification_time", "ascending"), ("path", "ascending")])
    paths = actions.column("path").to_pylist()
    values: list[tuple[Constant, ...]] = [()] * len(paths)
    if partitions and paths:
        cells = pa.concat_arrays(actions.column("partition").chunks)
        values = list(zip(*(constants_of(cells.field(name), name) for name in partitions), strict=True))
    return dict(zip((uri_of(table, path) for path in paths), values, strict=True))


def uri_of(table: str, path: str) -> str:
    """Return the URI of a file by its path in the log, which is percent-encoded. Clones have paths of other tables."""
    plain = unquote(path)
    if "://" in plain or plain.startswith(("/", "file:")):
        return Uris.of_place(plain)
    return table + (quote(plain) if "://" in table else plain)
