"""Finds the data files of a snapshot of an Apache Iceberg table, by its metadata and without a catalog."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO, NoReturn
from urllib.parse import unquote

from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.manifest import DataFile, FileFormat, ManifestEntry
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import ManifestGroupPlanner
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BooleanType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
)

from cpr_contract.pinned_data import Constant, TableColumn, TableVersion
from cpr_trainer.data.files import content_errors
from cpr_trainer.data.table_columns import TableSnapshot
from cpr_trainer.errors import DataError
from cpr_trainer.store import Uris

#: A metadata file of a table, with its number.
_METADATA = re.compile(r"(?:v(\d+)|(\d+)-[^/]*?)(?:\.gz)?\.metadata\.json(?:\.gz)?")
_FOLDER = "metadata/"
_GZIP = b"\x1f\x8b"
_ARROW_KINDS: Mapping[type[IcebergType], str] = {
    BooleanType: "bool",
    IntegerType: "int32",
    LongType: "int64",
    FloatType: "float",
    DoubleType: "double",
}
BROKEN = "Check that the table can be read by other programs, or state another data.version."
_REWRITE = (
    "Rewrite them (CALL system.rewrite_data_files with delete-file-threshold 1), and train the snapshot after that."
)


def iceberg_snapshot(table: str, version: int | None, files: Uris) -> TableSnapshot:
    """Return a snapshot of a table by its id; None is the current one.

    `table` is the table's folder with a slash at its end, or a metadata file. The data files are in the order of the
    commits that added them, those of one commit by name. Raises DataError, also for a table whose files alone do not
    have its rows, and StoreError.
    """
    place = newest_metadata(table, files) if table.endswith("/") else table
    metadata = read_metadata(place, files)
    with content_errors(place, BROKEN):
        snapshot = snapshot_in(metadata, version, place)
        # The current snapshot is read by the table's schema of today, an earlier one by its own, as by pyiceberg.
        schema = metadata.schema() if version is None else _schema_of(metadata, snapshot.schema_id)
        return files_of_snapshot(metadata, snapshot, schema, files)


def snapshot_in(metadata: TableMetadata, version: int | None, place: str) -> Snapshot:
    """Return a snapshot of the metadata in the file `place`; None is the current one. Raises DataError without it."""
    snapshot = metadata.current_snapshot() if version is None else metadata.snapshot_by_id(version)
    if snapshot is None:
        raise DataError(
            f"{place} has no snapshot" + ("." if version is None else f" {version}."),
            "Correct data.version, and let snapshots last for the time of a job (history.expire.max-snapshot-age-ms).",
        )
    return snapshot


def files_of_snapshot(metadata: TableMetadata, snapshot: Snapshot, schema: Schema, files: Uris) -> TableSnapshot:
    """Return all files of a snapshot, by a schema of its table. Raises as `iceberg_snapshot` does."""
    store = StoreIO(files)
    numbers: dict[str, int] = {}

    def note(entry: ManifestEntry) -> bool:
        if entry.sequence_number:
            numbers[entry.data_file.file_path] = entry.sequence_number
        return True

    tasks = list(ManifestGroupPlanner(metadata, store).plan_files(snapshot.manifests(store), note))
    for task in tasks:
        if task.delete_files:
            raise DataError(f"{task.file.file_path} has rows that delete files of its table mark as deleted.", _REWRITE)
    ordered = sorted((task.file for task in tasks), key=lambda file: (numbers.get(file.file_path, 0), file.file_path))
    return snapshot_of_files(metadata, snapshot.snapshot_id, schema, ordered)


def snapshot_of_files(
    metadata: TableMetadata, version: int, schema: Schema, ordered: Iterable[DataFile]
) -> TableSnapshot:
    """Return the snapshot `version` with these files alone. Raises DataError for one that is not Parquet."""
    constants = _PartitionValues(metadata.specs(), schema)
    found: dict[str, tuple[Constant, ...]] = {}
    for file in ordered:
        if file.file_format != FileFormat.PARQUET:
            raise DataError(
                f"{file.file_path} is a file of {file.file_format.value}; tables are read from Parquet files.",
                "Set the table's property write.format.default to parquet, and rewrite its data files.",
            )
        found[Uris.of_place(file.file_path)] = constants.of(file)
    return TableSnapshot(TableVersion(version, _columns(metadata, schema)), found)


def metadata_files(table: str, files: Uris) -> dict[int, list[str]]:
    """Return the metadata files of a table by their numbers. Raises DataError if there is none."""
    found: dict[int, list[str]] = {}
    for uri in files.below(table + _FOLDER):
        if match := _METADATA.fullmatch(unquote(uri.rpartition("/")[2])):
            found.setdefault(int(match[1] or match[2]), []).append(uri)
    if not found:
        raise DataError(
            f"{table} is no Iceberg table: it has no metadata file in {_FOLDER}.", "Check data.uri and data.format."
        )
    return found


def is_renamed_whole(uri: str) -> bool:
    """Return whether a metadata file has its number by a rename, as tables of Hadoop have, so that no other has it."""
    match = _METADATA.fullmatch(unquote(uri.rpartition("/")[2]))
    return match is not None and match[1] is not None


def newest_metadata(table: str, files: Uris) -> str:
    """Return the metadata file of a table with the highest number.

    Without a catalog it is taken for the current one. Raises DataError if two files have that number.
    """
    found = metadata_files(table, files)
    newest = found[max(found)]
    if len(newest) > 1:
        raise DataError(
            f"{table} has {len(newest)} metadata files of the same number, {newest[0]} and {newest[1]}: only its "
            "catalog has which of them is the table.",
            "Give the metadata file that the catalog names as data.uri.",
        )
    return newest[0]


class StoreIO(FileIO):
    """Reads the files of a table through the job's own store, with its credentials and certificates."""

    def __init__(self, files: Uris) -> None:
        super().__init__()
        self._files = files

    def new_input(self, location: str) -> InputFile:
        """Return a file by its place."""
        return _StoreFile(location, self._files)

    def new_output(self, location: str) -> NoReturn:
        """Raise, because nothing is written."""
        raise NotImplementedError(location)

    def delete(self, location: str | InputFile | OutputFile) -> NoReturn:
        """Raise, because nothing is deleted."""
        raise NotImplementedError(str(location))


class _StoreFile(InputFile):
    def __init__(self, location: str, files: Uris) -> None:
        super().__init__(location)
        self._uri = Uris.of_place(location)
        self._files = files

    def __len__(self) -> int:
        return self._files.version(self._uri).size_bytes

    def exists(self) -> bool:
        try:
            self._files.version(self._uri)
        except DataError:
            return False
        return True

    def open(self, seekable: bool = True) -> BinaryIO:  # noqa: ARG002, FBT001, FBT002 -- as pyiceberg calls it
        return self._files.open(self._uri, self._files.version(self._uri))


def read_metadata(uri: str, files: Uris) -> TableMetadata:
    """Read a metadata file, plain or packed by gzip. Raises DataError, and StoreError."""
    with files.open(uri, files.version(uri)) as stream:
        data = stream.read()
    with content_errors(uri, BROKEN):
        return TableMetadataUtil.parse_raw((gzip.decompress(data) if data.startswith(_GZIP) else data).decode())


def _schema_of(metadata: TableMetadata, schema_id: int | None) -> Schema:
    """Return the schema of a snapshot. Snapshots of early writers name none."""
    return next((each for each in metadata.schemas if each.schema_id == schema_id), metadata.schema())


def _columns(metadata: TableMetadata, schema: Schema) -> tuple[TableColumn, ...]:
    mapping = metadata.name_mapping()
    names = {each.field_id: tuple(each.names) for each in mapping or ()}
    return tuple(
        TableColumn(
            field.name,
            field.field_id,
            names.get(field.field_id, ()),
            None if field.initial_default is None else _constant(field.name, field.field_type, field.initial_default),
        )
        for field in schema.fields
    )


def _constant(name: str, kind: IcebergType, value: Any) -> Constant:
    return Constant(
        name, _arrow_kind(kind), None if value is None else IdentityTransform().to_human_string(kind, value)
    )


def _arrow_kind(kind: IcebergType) -> str:
    """Return the Arrow name of a type; that of texts for types of neither numbers nor texts."""
    if isinstance(kind, DecimalType):
        return f"decimal128({kind.precision}, {kind.scale})"
    return _ARROW_KINDS.get(type(kind), "string")


class _PartitionValues:
    """The values of identity partitions, by file. Other transforms have no value of a column."""

    def __init__(self, specs: Mapping[int, PartitionSpec], schema: Schema) -> None:
        fields = {field.field_id: field for field in schema.fields}
        self._sources = {
            number: [
                (place, fields[field.source_id])
                for place, field in enumerate(spec.fields)
                if isinstance(field.transform, IdentityTransform) and field.source_id in fields
            ]
            for number, spec in specs.items()
        }

    def of(self, file: DataFile) -> tuple[Constant, ...]:
        """Return the constants of a file."""
        sources = self._sources[file.spec_id]
        return tuple(_constant(field.name, field.field_type, file.partition[place]) for place, field in sources)
