"""An Iceberg table is read by its metadata, without a catalog: the rows of a snapshot are those of pyiceberg."""

from __future__ import annotations

import datetime as dt
import decimal
import gzip
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import FileScanTask, ManifestGroupPlanner, Table
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, StringType

from cpr_contract.requests import InspectionRequest
from cpr_trainer.data.inspection import inspect_files
from cpr_trainer.data.open import list_files
from cpr_trainer.errors import DataError
from support.lake_tables import by_key, clicks_of, iceberg_catalog, of_table, pinned, rows_of
from support.table_data import FILES


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    with iceberg_catalog(tmp_path) as catalog:
        yield catalog


@pytest.fixture
def table(catalog: SqlCatalog) -> Table:
    """A table of two commits."""
    table = catalog.create_table("lake.clicks", clicks_of(0).schema)
    for first in (0, 3):
        table.append(clicks_of(first))
    return table


def folder_of(table: Table) -> Path:
    return Path(table.location().removeprefix("file://"))


def of_pyiceberg(table: Table, version: int | None = None) -> list[dict[str, Any]]:
    return by_key(table.scan(snapshot_id=version).to_arrow().to_pylist())


def assert_read_as_by_pyiceberg(table: Table, version: int | None = None) -> None:
    found = by_key(rows_of(of_table("Iceberg", folder_of(table), version)))
    assert found == of_pyiceberg(table, version)
    assert found, "a test without rows shows nothing"


def test_renamed_added_dropped_and_moved_columns(table: Table) -> None:
    with table.update_schema() as update:
        update.rename_column("user", "visitor")
        update.delete_column("click")
        update.move_first("tags")
    with table.update_schema() as update:
        update.add_column("user", StringType())  # the name of an old column, and none of its values
        update.add_column("click", LongType())
    new = clicks_of(6).rename_columns(["key", "click", "visitor", "tags"]).append_column("user", pa.array(list("abc")))
    table.append(new.set_column(1, "click", pa.array([7, 8, None])))
    assert_read_as_by_pyiceberg(table)
    for snapshot in table.metadata.snapshots:
        assert_read_as_by_pyiceberg(table, snapshot.snapshot_id)


def test_files_are_read_in_the_order_of_their_commits(table: Table) -> None:
    for first in (6, 9):
        table.append(clicks_of(first))
    assert [row["key"] for row in rows_of(of_table("Iceberg", folder_of(table)))] == list(range(12))


def test_overwritten_and_deleted_rows_are_not_read(table: Table) -> None:
    table.delete("key = 4")  # rewrites the file
    table.overwrite(clicks_of(9), "key < 3")
    assert_read_as_by_pyiceberg(table)
    assert [row["key"] for row in of_pyiceberg(table)] == [3, 5, 9, 10, 11]


def test_partition_columns_that_files_lack_have_the_values_of_the_manifest(catalog: SqlCatalog, tmp_path: Path) -> None:
    partitions = {
        "text": pa.array(["a b/%=\u00e9", None, ""]),
        "short": pa.array([-1, None, 3], pa.int32()),
        "long": pa.array([2**62, None, 3], pa.int64()),
        "flag": pa.array([True, None, False]),
        "price": pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("-2.00")], pa.decimal128(10, 2)),
        "ratio": pa.array([0.1, None, -2.5e-7]),
    }
    rows = clicks_of(0)
    for name, values in partitions.items():
        rows = rows.append_column(name, values)
    table = catalog.create_table("lake.parts", rows.schema)
    with table.update_spec() as update:
        for name in partitions:
            update.add_identity(name)
    table.append(rows)
    assert_read_as_by_pyiceberg(table)
    for path in folder_of(table).glob("data/**/*.parquet"):  # as tables of Hive have them that became one of Iceberg
        read = pq.ParquetFile(path).read()
        pq.write_table(read.drop_columns(list(partitions)), path)
    assert_read_as_by_pyiceberg(table)
    inspected = {
        each.name: each.kind for each in inspect_files(InspectionRequest(str(folder_of(table))), FILES).columns
    }
    assert inspected["short"] == "int32"


def test_partition_columns_that_files_have_are_read_from_them(catalog: SqlCatalog) -> None:
    days = pa.array([dt.date(2026, 1, 2), None, dt.date(2026, 1, 3)])
    rows = clicks_of(0).append_column("day", days)
    table = catalog.create_table("lake.days", rows.schema)
    with table.update_spec() as update:
        update.add_identity("day")
    table.append(rows)
    assert_read_as_by_pyiceberg(table)


def test_files_without_field_ids_need_a_mapping_of_names(table: Table, tmp_path: Path) -> None:
    for path in folder_of(table).glob("data/*.parquet"):
        read = pq.ParquetFile(path).read()
        plain = pa.schema([pa.field(field.name, field.type) for field in clicks_of(0).schema])
        pq.write_table(pa.table(read.columns, schema=plain), path)
    with pytest.raises(DataError, match="has no field ids") as caught:
        rows_of(of_table("Iceberg", folder_of(table)))
    assert "schema.name-mapping.default" in caught.value.remedy
    mapping = json.dumps([{"field-id": 1, "names": ["old", "key"]}, {"field-id": 3, "names": ["user"]}])
    with table.transaction() as change:
        change.set_properties({"schema.name-mapping.default": mapping})
    found = by_key(rows_of(of_table("Iceberg", folder_of(table))))
    assert [(row["key"], row["user"], row["click"]) for row in found][:2] == [(0, "u0", None), (1, "u1", None)]


def test_column_that_was_added_with_a_default_has_it_in_older_files(table: Table) -> None:
    newest = max(folder_of(table).glob("metadata/*.metadata.json"))
    document = json.loads(newest.read_text("utf-8"))
    document |= {"format-version": 3, "next-row-id": 0}
    fields = document["schemas"][-1]["fields"]
    fields.append({"id": 9, "name": "price", "type": "double", "required": False, "initial-default": 2.5})
    document["last-column-id"] = 9
    newest.write_text(json.dumps(document), "utf-8")
    assert {row["price"] for row in rows_of(of_table("Iceberg", folder_of(table)))} == {2.5}


def test_pin_outlives_the_metadata_and_names_lost_files(table: Table) -> None:
    data = of_table("Iceberg", folder_of(table))
    pin = pinned(data)
    assert pin.table is not None
    assert pin.table.version == table.metadata.current_snapshot_id
    table.append(clicks_of(6))
    stated = replace(data, version=pin.table.version)
    assert (len(list_files(data, FILES)), len(list_files(stated, FILES))) == (3, 2)
    shutil.rmtree(folder_of(table) / "metadata")
    assert [row["key"] for row in rows_of(data, pin=pin)] == list(range(6))
    Path(pin.uris[1]).unlink()
    with pytest.raises(DataError, match=r"is not there any more, and version \d+ of its table has it") as caught:
        rows_of(data, pin=pin)
    assert "history.expire.max-snapshot-age-ms" in caught.value.remedy


def test_metadata_is_taken_by_its_name_or_as_the_newest(table: Table) -> None:
    folder = folder_of(table)
    newest = max(folder.glob("metadata/*.metadata.json"))
    older = sorted(folder.glob("metadata/*.metadata.json"))[-2]
    assert len(rows_of(of_table("Iceberg", older))) == 3
    renamed = folder / "metadata" / "v12.gz.metadata.json"  # of a catalog that is a folder of Hadoop
    renamed.write_bytes(gzip.compress(newest.read_bytes()))
    assert len(rows_of(of_table("Iceberg", folder))) == 6
    shutil.copy(newest, folder / "metadata" / "00012-other.metadata.json")
    with pytest.raises(DataError, match="has 2 metadata files of the same number") as caught:
        rows_of(of_table("Iceberg", folder))
    assert "as data.uri" in caught.value.remedy


def test_inspection_recognises_a_table(table: Table) -> None:
    stats = inspect_files(InspectionRequest(f"{folder_of(table)}/"), FILES)
    assert (stats.format, stats.files, stats.rows) == ("Iceberg", 2, 6)


# --- files that pyiceberg does not write


def file_of(content: DataFileContent, form: FileFormat) -> DataFile:
    file = DataFile.from_args(
        content=content, file_path="/t/a", file_format=form, partition=Record(), record_count=1, file_size_in_bytes=9
    )
    file.spec_id = PartitionSpec().spec_id
    return file


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (
            FileScanTask(
                file_of(DataFileContent.DATA, FileFormat.PARQUET),
                {file_of(DataFileContent.POSITION_DELETES, FileFormat.PARQUET)},
            ),
            "/t/a has rows that delete files of its table mark as deleted",
        ),
        (FileScanTask(file_of(DataFileContent.DATA, FileFormat.ORC)), "/t/a is a file of ORC"),
    ],
    ids=["deletes", "orc"],
)
def test_rows_that_files_alone_do_not_have_are_refused(
    table: Table, monkeypatch: pytest.MonkeyPatch, task: FileScanTask, message: str
) -> None:
    monkeypatch.setattr(ManifestGroupPlanner, "plan_files", lambda *_: [task])
    with pytest.raises(DataError, match=message):
        rows_of(of_table("Iceberg", folder_of(table)))


def test_missing_snapshots_and_folders_are_named(catalog: SqlCatalog, table: Table, tmp_path: Path) -> None:
    empty = catalog.create_table("lake.empty", clicks_of(0).schema)
    for place, version, message in (
        (folder_of(table), 7, "has no snapshot 7"),
        (folder_of(empty), None, "has no snapshot."),
        (tmp_path / "absent", None, "is no Iceberg table"),
    ):
        with pytest.raises(DataError, match=message):
            rows_of(of_table("Iceberg", place, version))
