"""Tables of Delta Lake and Apache Iceberg: their log lists the files, which are read as Parquet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cpr_contract.spec import DataFormat
from cpr_trainer.data.files import Block, Index, SourceFile
from cpr_trainer.data.parquet import ParquetFormat
from cpr_trainer.data.schema import Columns
from cpr_trainer.data.table_columns import TableSnapshot
from cpr_trainer.data.table_log import TableLog
from cpr_trainer.errors import DataError
from cpr_trainer.store import Uris

_METADATA_FILE = (".metadata.json", ".metadata.json.gz")
_LOST = {
    "Delta": "Its files are deleted by VACUUM. Keep them for the time of a job (delta.deletedFileRetentionDuration), "
    "and start a new job. A table that was moved must be copied with its whole folder.",
    "Iceberg": "Its files are deleted by expire_snapshots and remove_orphan_files. Let snapshots last for the time of "
    "a job (history.expire.max-snapshot-age-ms), and start a new job. A table cannot be moved, because its metadata "
    "has the places of all files.",
}


class TableFormat(ParquetFormat):
    """Reads the files that one version of a table lists."""

    def __init__(self, name: DataFormat, files: Uris, columns: Columns | None) -> None:
        super().__init__(files, columns)
        self._name = name
        self._uris = files
        self._found: TableSnapshot | None = None

    def find(self, uri: str, version: int | None) -> tuple[str, ...]:
        """Return the URIs of a version's files in their order; None is the newest. `index` then reads them.

        Raises DataError, and StoreError.
        """
        found = self._found = read_snapshot(self._name, uri, version, self._uris)
        if not found.files:
            raise DataError(
                f"Version {found.version.version} of the {self._name} table {uri} has no file.",
                "Check data.uri and data.version.",
            )
        return tuple(found.files)

    def use(self, found: TableSnapshot) -> None:
        """Let `index` read the files of `found`."""
        self._found = found

    def index(self, uri: str) -> Index:
        assert self._found is not None, "files are indexed after they were found"
        found = self._found
        with self._lost_files(uri, found.version.version):
            version = self._uris.version(uri)
        return self.index_file(SourceFile(uri, version, table=found.version, constants=found.files[uri]))

    def fetch(self, block: Block) -> Any:
        with self._lost_files(block.uri, block.file.table.version if block.file.table else 0):
            return super().fetch(block)

    @contextmanager
    def _lost_files(self, uri: str, version: int) -> Iterator[None]:
        """Raise DataError with the retention as its remedy for a file that was deleted."""
        try:
            yield
        except DataError as error:
            try:
                self._uris.version(uri)
            except DataError:
                raise DataError(
                    f"{uri} is not there any more, and version {version} of its table has it.", _LOST[self._name]
                ) from error
            raise


def read_snapshot(name: DataFormat, uri: str, version: int | None, files: Uris) -> TableSnapshot:
    """Return a version of a table; None is the newest. Raises DataError, also without the library, and StoreError."""
    with _library(name):
        if name == "Delta":
            from cpr_trainer.data.delta import delta_snapshot as snapshot  # noqa: PLC0415
        else:
            from cpr_trainer.data.iceberg import iceberg_snapshot as snapshot  # noqa: PLC0415
    return snapshot(_place(uri), version, files)


def open_log(name: DataFormat, uri: str, version: int | None, files: Uris) -> TableLog:
    """Return the log of a table whose versions are followed, from `version` on; None is the newest then.

    Raises DataError without the library.
    """
    with _library(name):
        if name == "Delta":
            from cpr_trainer.data.delta_log import DeltaLog  # noqa: PLC0415

            return DeltaLog(_place(uri), version, files)
        from cpr_trainer.data.iceberg_log import IcebergLog  # noqa: PLC0415

        return IcebergLog(_place(uri), version, files)


def is_metadata_file(uri: str) -> bool:
    """Return whether `uri` names a metadata file of an Iceberg table."""
    return uri.endswith(_METADATA_FILE)


def _place(uri: str) -> str:
    return uri if uri.endswith("/") or is_metadata_file(uri) else uri + "/"


@contextmanager
def _library(name: DataFormat) -> Iterator[None]:
    """Raise DataError if a library is not installed. Each is an extra, and takes up to a second to import."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise DataError(
            f"{name} tables need the package {error.name}, which is not installed.",
            f"Install the extra {name.lower()} (pip install 'cprjob[{name.lower()}]'), or use the trainer's image.",
        ) from error


def table_format(uri: str, files: Uris) -> DataFormat | None:
    """Return the format of the table that `uri` names, None if it names none. Raises as `Uris.find` does."""
    folder = uri.removesuffix("/") + "/"
    if any(each.endswith(".json") for each in files.below(folder + "_delta_log/")):
        return "Delta"
    if is_metadata_file(uri) or any(map(is_metadata_file, files.below(folder + "metadata/"))):
        return "Iceberg"
    return None
