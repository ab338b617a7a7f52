"""A Delta Lake table is read by its log: the rows of a version are those of delta-rs."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from cpr_contract.requests import InspectionRequest
from cpr_trainer.data.inspection import inspect_files
from cpr_trainer.data.open import list_files
from cpr_trainer.errors import DataError
from support.fake_s3 import BUCKET, FakeS3
from support.lake_tables import by_key, clicks_of, of_table, pinned, rows_of
from support.table_data import FILES

#: A column of each type of partition, a null in each, and characters that paths escape.
PARTITIONS = {
    "text": pa.array(["a b/%41=\u00e9", None, "c"]),
    "short": pa.array([-1, None, 3], pa.int16()),
    "long": pa.array([2**62, None, 3], pa.int64()),
    "flag": pa.array([True, None, False]),
    "price": pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("-2.00")], pa.decimal128(10, 2)),
    "ratio": pa.array([0.1, None, -2.5e-7]),
}


def of_delta_rs(table: DeltaTable) -> list[dict[str, Any]]:
    return by_key(pa.table(table.scan()).to_pylist())


def assert_read_as_by_delta_rs(folder: Path, version: int | None = None) -> None:
    found = by_key(rows_of(of_table("Delta", folder, version)))
    assert found == of_delta_rs(DeltaTable(folder, version=version))
    assert found, "a test without rows shows nothing"


def test_partition_columns_have_the_values_and_types_of_the_log(tmp_path: Path) -> None:
    table = clicks_of(0)
    for name, values in PARTITIONS.items():
        table = table.append_column(name, values)
    write_deltalake(tmp_path, table, partition_by=list(PARTITIONS))
    assert_read_as_by_delta_rs(tmp_path)
    wrong = tmp_path / "text=wrong"  # The names of folders have no meaning.
    file = next(path for path in tmp_path.rglob("*.parquet"))
    log = tmp_path / "_delta_log" / f"{0:020}.json"
    wrong.mkdir()
    text = log.read_text("utf-8")
    path = next(add["path"] for line in text.splitlines() if (add := json.loads(line).get("add")) and file.name in line)
    file.rename(wrong / file.name)
    log.write_text(text.replace(json.dumps(path), json.dumps(f"text=wrong/{file.name}")), "utf-8")
    assert_read_as_by_delta_rs(tmp_path)


def test_days_of_partitions_are_texts(tmp_path: Path) -> None:
    days = pa.array([dt.date(2026, 1, 2), None, dt.date(2026, 1, 3)])
    write_deltalake(tmp_path, clicks_of(0).append_column("day", days), partition_by=["day"])
    assert [row["day"] for row in by_key(rows_of(of_table("Delta", tmp_path)))] == ["2026-01-02", None, "2026-01-03"]


def test_versions_of_a_table_that_grew_was_rewritten_and_deleted_from(tmp_path: Path) -> None:
    for number in range(3):
        write_deltalake(tmp_path, clicks_of(3 * number), mode="append")
    DeltaTable(tmp_path).optimize.compact()
    DeltaTable(tmp_path).delete("key = 4")
    write_deltalake(
        tmp_path, clicks_of(9).append_column("added", pa.array([1, None, 3])), mode="append", schema_mode="merge"
    )
    for version in (0, 2, 3, 4, 5, None):
        assert_read_as_by_delta_rs(tmp_path, version)
    assert rows_of(of_table("Delta", tmp_path, 4))[0].keys() == {"key", "click", "user", "tags"}
    assert [row["added"] for row in by_key(rows_of(of_table("Delta", tmp_path)))] == 8 * [None] + [1, None, 3]


@pytest.mark.parametrize("version", [2, 3, 4])
def test_version_is_read_from_its_checkpoint_on(tmp_path: Path, version: int) -> None:
    for number in range(5):
        write_deltalake(tmp_path, clicks_of(3 * number), mode="append")
        if number in {1, 3}:
            DeltaTable(tmp_path).create_checkpoint()
    for number in (0, 1):  # Old commits are deleted after a time.
        (tmp_path / "_delta_log" / f"{number:020}.json").unlink()
    assert_read_as_by_delta_rs(tmp_path, version)


def test_checkpoint_without_all_its_parts_is_left_out(tmp_path: Path) -> None:
    for number in range(3):
        write_deltalake(tmp_path, clicks_of(3 * number), mode="append")
    (tmp_path / "_delta_log" / f"{1:020}.checkpoint.{1:010}.{2:010}.parquet").write_bytes(b"half")
    assert_read_as_by_delta_rs(tmp_path)


def test_files_are_read_in_the_order_of_their_writing(tmp_path: Path) -> None:
    for number in range(4):
        write_deltalake(tmp_path, clicks_of(3 * number), mode="append")
    data = of_table("Delta", tmp_path)
    assert [row["key"] for row in rows_of(data)] == list(range(12))


def test_pin_outlives_the_log_and_names_lost_files(tmp_path: Path) -> None:
    write_deltalake(tmp_path, clicks_of(0), mode="append")
    data = of_table("Delta", tmp_path)
    pin = pinned(data)
    assert pin.table is not None
    assert (pin.table.version, pin.contract) == (0, 1)
    write_deltalake(tmp_path, clicks_of(3), mode="overwrite")
    assert len(list_files(data, FILES)) == 1
    shutil.rmtree(tmp_path / "_delta_log")
    assert [row["key"] for row in rows_of(data, pin=pin)] == [0, 1, 2]
    Path(pin.uris[0]).unlink()
    with pytest.raises(DataError, match=r"is not there any more, and version 0 of its table has it") as caught:
        rows_of(data, pin=pin)
    assert "delta.deletedFileRetentionDuration" in caught.value.remedy


def test_table_in_s3_is_read_by_the_credentials_of_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = clicks_of(0).append_column("text", PARTITIONS["text"])
    write_deltalake(tmp_path, table, partition_by=["text"])
    objects = {
        f"a b/t/{path.relative_to(tmp_path)}": path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    }
    files = FakeS3(objects).uris(monkeypatch)
    found = rows_of(of_table("Delta", f"s3://{BUCKET}/a%20b/t"), files)
    assert by_key(found) == of_delta_rs(DeltaTable(tmp_path))


def test_inspection_recognises_a_table(tmp_path: Path) -> None:
    write_deltalake(tmp_path, clicks_of(0), mode="append")
    write_deltalake(tmp_path, clicks_of(3), mode="overwrite")
    stats = inspect_files(InspectionRequest(str(tmp_path)), FILES)
    assert (stats.format, stats.files, stats.rows) == ("Delta", 1, 3)
    assert [each.name for each in stats.columns] == ["key", "click", "user", "tags"]


# --- logs of other writers

FIELDS = {"key": "long", "user": "string", "day": "string"}


def write_log(
    folder: Path,
    *adds: dict[str, Any],
    fields: list[dict[str, Any]] | None = None,
    features: tuple[str, ...] = (),
    configuration: dict[str, str] | None = None,
) -> None:
    """Write a log of one commit with the partition column `day`."""
    if fields is None:
        fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in FIELDS.items()]
    protocol: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 2}
    if features:
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
        protocol |= {"readerFeatures": features, "writerFeatures": features}
    about = {
        "id": "t",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": ["day"],
        "configuration": configuration or {},
        "createdTime": 1,
    }
    (folder / "_delta_log").mkdir(exist_ok=True)
    lines = [{"protocol": protocol}, {"metaData": about}, *({"add": add} for add in adds)]
    (folder / "_delta_log" / f"{0:020}.json").write_text("\n".join(map(json.dumps, lines)), "utf-8")


def add(folder: Path, name: str, table: pa.Table, day: str | None = "1", key: str = "day") -> dict[str, Any]:
    """Write a data file; return its action in the log."""
    pq.write_table(table, folder / name)
    size = (folder / name).stat().st_size
    return {"path": name, "partitionValues": {key: day}, "size": size, "modificationTime": 1, "dataChange": True}


def mapped(names: dict[str, str]) -> list[dict[str, Any]]:
    """Return the fields of a table whose columns have other names in its files: col-1, col-2, ..."""
    return [
        {
            "name": name,
            "type": kind,
            "nullable": True,
            "metadata": {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"col-{number}"},
        }
        for number, (name, kind) in enumerate(names.items(), 1)
    ]


@pytest.mark.parametrize("mode", ["name", "id"])
def test_renamed_columns_are_found_by_their_mapping(tmp_path: Path, mode: str) -> None:
    fields = mapped(FIELDS)
    schema = pa.schema(
        [
            # The column of a dropped one has the name of another.
            pa.field("user", pa.string(), metadata={"PARQUET:field_id": "9"}),
            pa.field("col-2", pa.string(), metadata={"PARQUET:field_id": "2"}),
            pa.field("col-1", pa.int64(), metadata={"PARQUET:field_id": "1"}),
        ]
    )
    data = pa.table([["dropped", "old"], ["u0", "u1"], [0, 1]], schema=schema)
    added = add(tmp_path, "a.parquet", data.slice(0, 1), key="col-3")
    older = add(tmp_path, "b.parquet", data.select(["col-1"]).slice(1), None, key="col-3")
    write_log(
        tmp_path,
        added,
        older,
        fields=fields,
        features=("columnMapping",),
        configuration={"delta.columnMapping.mode": mode},
    )
    assert by_key(rows_of(of_table("Delta", tmp_path)))[0] == {"key": 0, "user": "u0", "day": "1"}
    assert_read_as_by_delta_rs(tmp_path)


def test_files_without_the_ids_of_their_mapping_are_refused(tmp_path: Path) -> None:
    fields = mapped({"key": "long", "day": "string"})
    written = add(tmp_path, "a.parquet", pa.table({"col-1": [1]}), key="col-2")
    configuration = {"delta.columnMapping.mode": "id"}
    write_log(
        tmp_path,
        written,
        fields=fields,
        features=("columnMapping",),
        configuration=configuration,
    )
    with pytest.raises(DataError, match=r"a\.parquet has no field ids"):
        rows_of(of_table("Delta", tmp_path))


#: Inline, and in a file of its own.
VECTORS = [
    {
        "storageType": "i",
        "pathOrInlineDv": "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L",
        "sizeInBytes": 40,
        "cardinality": 6,
    },
    {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 4, "sizeInBytes": 40, "cardinality": 2},
]


@pytest.mark.parametrize("vector", VECTORS)
def test_deletion_vectors_are_refused(tmp_path: Path, vector: dict[str, Any]) -> None:
    rows = clicks_of(0, 40).select(["key", "user"])
    file = add(tmp_path, "a.parquet", rows)
    plain = add(tmp_path, "b.parquet", rows)
    write_log(tmp_path, file, plain, features=("deletionVectors",))
    assert len(rows_of(of_table("Delta", tmp_path))) == 80, "a table that may have them has none"
    write_log(tmp_path, file | {"deletionVector": vector}, plain, features=("deletionVectors",))
    with pytest.raises(DataError, match="has files with deletion vectors") as caught:
        rows_of(of_table("Delta", tmp_path))
    assert "REORG TABLE" in caught.value.remedy


def test_feature_that_is_not_known_is_refused_by_name(tmp_path: Path) -> None:
    write_log(tmp_path, add(tmp_path, "a.parquet", pa.table({"key": [1]})), features=("variantType",))
    with pytest.raises(DataError, match="features that are not supported: variantType"):
        rows_of(of_table("Delta", tmp_path))


def test_names_in_the_log_are_escaped_once(tmp_path: Path) -> None:
    write_log(tmp_path, add(tmp_path, "a%20b c.parquet", pa.table({"key": [1]})) | {"path": "a%2520b%20c.parquet"})
    assert_read_as_by_delta_rs(tmp_path)


@pytest.mark.parametrize(
    ("version", "message"), [(7, r"no version 7 in its log, which has the versions 0 to 0"), (None, "has no file")]
)
def test_missing_versions_and_empty_tables_are_named(tmp_path: Path, version: int | None, message: str) -> None:
    write_log(tmp_path)
    with pytest.raises(DataError, match=message):
        rows_of(of_table("Delta", tmp_path, version))


def test_folder_without_a_log_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is no Delta table"):
        rows_of(of_table("Delta", tmp_path / "absent"))
