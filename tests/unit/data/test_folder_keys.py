"""The keys in the names of folders are columns, as Hive, Spark and pyarrow write them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cpr_contract.model import TableSpec
from cpr_contract.requests import InspectionRequest
from cpr_contract.spec import ColumnsSpec, DataSpec
from cpr_trainer.data.dataset import Batch
from cpr_trainer.data.folder_keys import keys_of
from cpr_trainer.data.inspection import inspect_files
from cpr_trainer.errors import DataError
from support.plain_batches import single_ids
from support.table_data import FILES, FORMATS, assert_same, everything, read, spec, write

TABLES = (TableSpec("day", 2**31 - 1), TableSpec("user", 2**31 - 1))
COLUMNS = ColumnsSpec(("click",), (), ("hour",), ("day", "user"))
DAYS = ["2026-01-01", "2026-01-02", "a b/%", None]
WHOLE = pa.table({"click": [0, 1, 1, 0], "user": ["a", "b", "c", "d"], "hour": [0, 1, 2, 3], "day": DAYS})


def of_folders(ending: str, folder: Path) -> Batch:
    """Write a file of clicks and users in each folder, and read all with the keys `day` and `hour`."""
    names = ("day=2026-01-01/hour=00", "day=2026-01-02/hour=1", "day=a%20b%2F%25/hour=2.0")
    for row, name in enumerate((*names, "day=__HIVE_DEFAULT_PARTITION__/hour=03")):
        (folder / name).mkdir(parents=True)
        write(WHOLE.select(["click", "user"]).slice(row, 1), folder / name, ending, columns=COLUMNS)
    return everything(read(keyed(FORMATS[ending], f"{folder}/"), TABLES))


def keyed(form: str, uri: str) -> DataSpec:
    return replace(spec(form, uri), columns=COLUMNS)


def by_user(batch: Batch) -> list[tuple[object, ...]]:
    """Files are read in the order of their names."""
    parts = zip(batch.labels.tolist(), batch.dense[:, 0].tolist(), *single_ids(batch).T.tolist(), strict=True)
    return sorted(parts, key=lambda row: row[1])


@pytest.mark.parametrize("ending", FORMATS)
def test_keys_of_folders_are_columns_in_every_format(tmp_path: Path, ending: str) -> None:
    pq.write_table(WHOLE, tmp_path / "whole.parquet")
    whole = everything(read(keyed("Parquet", f"{tmp_path}/whole.parquet"), TABLES))
    assert by_user(of_folders(ending, tmp_path / "hive")) == by_user(whole)


def test_folders_of_pyarrow_are_read(tmp_path: Path) -> None:
    pq.write_to_dataset(WHOLE, tmp_path / "hive", partition_cols=["day", "hour"])
    pq.write_table(WHOLE, tmp_path / "whole.parquet")
    found = everything(read(keyed("Parquet", f"{tmp_path}/hive/"), TABLES))
    assert by_user(found) == by_user(everything(read(keyed("Parquet", f"{tmp_path}/whole.parquet"), TABLES)))


@pytest.mark.parametrize("ending", FORMATS)
def test_column_of_the_file_has_priority(tmp_path: Path, ending: str) -> None:
    rows = WHOLE.slice(0, 3)
    data = write(rows, tmp_path / "plain", ending, columns=COLUMNS)
    other = write(rows, tmp_path / "day=x", ending, columns=COLUMNS)
    assert_same(everything(read(other, TABLES)), everything(read(data, TABLES)))


@pytest.mark.parametrize("ending", FORMATS)
def test_key_that_is_no_number_is_named(tmp_path: Path, ending: str) -> None:
    write(WHOLE.select(["click", "user", "day"]), tmp_path / "hour=noon", ending, columns=COLUMNS)
    with pytest.raises(DataError, match=r"in the folder hour=noon, which is no number"):
        everything(read(keyed(FORMATS[ending], f"{tmp_path}/"), TABLES))


def test_key_that_not_all_folders_have_is_missing_by_name(tmp_path: Path) -> None:
    write(WHOLE.select(["click", "user", "hour"]), tmp_path / "day=1", "csv", columns=COLUMNS)
    write(WHOLE.select(["click", "user", "hour"]), tmp_path / "other", "csv", columns=COLUMNS)
    with pytest.raises(DataError, match=r"other/part-000\.csv has no columns 'day'"):
        read(keyed("CSV", f"{tmp_path}/*/*"), TABLES)


def test_inspection_shows_keys(tmp_path: Path) -> None:
    write(WHOLE.select(["click", "user"]), tmp_path / "hour=3", "parquet", columns=COLUMNS)
    assert [each.name for each in inspect_files(InspectionRequest(f"{tmp_path}/"), FILES).columns] == [
        "click",
        "user",
        "hour",
    ]


@pytest.mark.parametrize(
    ("uri", "keys"),
    [
        ("s3://b/day=a%2520b/x=1.csv", {"day": "a b"}),
        ("file:///d%20e/k%253D=1/%C3%A9=2/a", {"k=": "1", "\u00e9": "2"}),
        ("/=1/a==b/c=/=/x", {"a": "=b", "c": ""}),
    ],
)
def test_keys_follow_from_the_path_of_a_file(uri: str, keys: dict[str, str]) -> None:
    assert keys_of(uri) == keys
