"""Ids that are the numbers of rows, in every format."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cpr_contract.model import TableSpec
from cpr_contract.spec import DataSpec
from cpr_trainer.data.dataset import Dataset
from cpr_trainer.data.decode import rows_of_integers, rows_of_texts
from cpr_trainer.data.schema import NO_ROW
from cpr_trainer.embedding.bags import Bags
from cpr_trainer.errors import DataError
from support import bag_data
from support.plain_batches import single_ids
from support.table_data import FORMATS, Click, as_table, everything, read, spec, write

#: A text column and one of integers.
TABLES = (TableSpec("user", 1000, ids="RowNumber"), TableSpec("item", 500, ids="RowNumber"))
FORGIVING = tuple(replace(table, out_of_range="DefaultRow") for table in TABLES)
BAGS = tuple(replace(table, ids="RowNumber") for table in bag_data.TABLES)


def numbered(count: int) -> list[Click]:
    return [Click(row % 2, user=str(row % 1000), item=row % 500) for row in range(count)]


def bags_of(dataset: Dataset) -> list[list[int]]:
    ids = everything(dataset).ids
    assert isinstance(ids, Bags)
    return [part.tolist() for part in np.split(ids.ids, ids.offsets[1:-1])]


@pytest.mark.parametrize("ending", FORMATS)
def test_each_number_is_its_row_in_every_format(tmp_path: Path, ending: str) -> None:
    ids = single_ids(everything(read(write(numbered(1000), tmp_path, ending, files=2), TABLES)))
    assert ids[:, 0].tolist() == list(range(1000))
    assert ids[:, 1].tolist() == [*range(500)] * 2


def test_criteo_has_row_numbers_too(tmp_path: Path) -> None:
    tables = TableSpec("c1", 3, ids="RowNumber"), TableSpec("c2", 7, ids="RowNumber", out_of_range="DefaultRow")
    cells = [["2", "6"], ["0", "7"], ["1", ""]]
    lines = ["\t".join(["1", *["4"] * 13, *line, *[""] * 24]) for line in cells]
    (tmp_path / "clicks").write_text("\n".join(lines))
    data = DataSpec("Criteo", f"{tmp_path}/clicks", 1, None, 8, 1, 0)
    assert single_ids(everything(read(data, tables))).tolist() == [[2, 6], [0, 0], [1, 0]]
    tables = replace(tables[0], rows=2), tables[1]
    with pytest.raises(DataError, match=r"clicks, line 1: column 15 is '2', not an integer from 0 to 1 "):
        everything(read(data, tables))


@pytest.mark.parametrize(
    ("click", "told"),
    [
        (Click(1, user="1000", item=1), "column user is '1000', not an integer from 0 to 999"),
        (Click(1, user="-1", item=1), "column user is '-1', not an integer from 0 to 999"),
        (Click(1, user=None, item=1), "column user is empty, not an integer from 0 to 999"),
        (Click(1, user="12a", item=1), "column user is '12a', not an integer from 0 to 999"),
        (Click(1, user="1.0", item=1), "column user is '1.0', not an integer from 0 to 999"),
        (Click(1, user="9" * 30, item=1), f"column user is '{'9' * 30}', not an integer from 0 to 999"),
        (Click(1, user="1", item=500), "column item is {}, not an integer from 0 to 499"),
    ],
)
@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_an_id_without_a_row_makes_a_bad_row(tmp_path: Path, ending: str, click: Click, told: str) -> None:
    rows = numbered(30)
    rows[7] = click
    data = write(rows, tmp_path, ending)
    place = "row 8" if ending == "parquet" else "line 9"
    with pytest.raises(DataError) as error:
        everything(read(data, TABLES))
    cell = 500 if ending == "parquet" else "'500'"
    assert f"part-000.{ending}, {place}: {told.format(cell)} (bad rows so far: 1, allowed: 0)." in str(error.value)
    batch = everything(read(replace(data, max_bad_lines=1), TABLES))
    assert single_ids(batch)[:, 0].tolist() == [*range(7), *range(8, 30)], "it is left out"


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_text_is_no_integer_whatever_range_there_is(tmp_path: Path, ending: str) -> None:
    with pytest.raises(DataError, match="column user is 'u1', not an integer "):
        everything(read(write([Click(1, user="u1", item=1)], tmp_path, ending), FORGIVING))


@pytest.mark.parametrize("ending", ["parquet", "csv", "tsv"])
def test_bags_hold_row_numbers(tmp_path: Path, ending: str) -> None:
    rows = [
        bag_data.BagClick(tags=("299", None, "0"), page="39", words=(7, 7)),
        bag_data.BagClick(tags=None, page="0", words=(None, 199)),
        bag_data.BagClick(tags=("1",), page="2", words=(3, 200)),
    ]
    data = bag_data.write_bags(rows, tmp_path, ending)
    cell = "200" if ending == "parquet" else "'200'"
    with pytest.raises(DataError, match=f"an id in column words is {cell}, not an integer from 0 to 199"):
        everything(read(data, BAGS))
    found = bags_of(read(replace(data, max_bad_lines=1), BAGS))
    assert found == [[299, 0], [39], [7, 7], [], [0], [199]]
    forgiving = tuple(replace(table, out_of_range="DefaultRow") for table in BAGS)
    assert bags_of(read(data, forgiving))[6:] == [[1], [2], [3, 0]]


@pytest.mark.parametrize("kind", [pa.int16(), pa.uint64(), pa.string(), pa.dictionary(pa.int8(), pa.int32())], ids=str)
def test_any_integers_of_parquet_are_row_numbers(tmp_path: Path, kind: pa.DataType) -> None:
    table = as_table(numbered(100))
    coded = pa.types.is_dictionary(kind)
    users = table["item"].cast(kind.value_type).dictionary_encode() if coded else table["item"].cast(kind)
    pq.write_table(table.set_column(4, "user", users), tmp_path / "a.parquet")
    ids = single_ids(everything(read(spec("Parquet", f"{tmp_path}/a.parquet"), TABLES)))
    assert ids[:, 0].tolist() == list(range(100))


def test_integers_beyond_int64_are_no_rows() -> None:
    cells = pa.array([0, 999, 1000, 2**63, 2**64 - 1, None], pa.uint64())
    assert rows_of_integers(cells, TABLES[0]).tolist() == [0, 999, *[NO_ROW] * 4]
    assert rows_of_integers(cells, FORGIVING[0]).tolist() == [0, 999, 0, 0, 0, 0]


def test_only_decimal_digits_are_a_number() -> None:
    cells = pa.array([b"007", b"+7", b" 7", b"7\n", b"0x7", b"\xff", "\u0667".encode(), b"true"])
    assert rows_of_texts(cells, FORGIVING[0]).tolist() == [7, *[NO_ROW] * 7]
