"""Ids: row numbers, whole numbers in any spelling, and the published hashes, in every format."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from decimal import Decimal
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from cpr_contract.model import DynamicSpec, TableSpec
from cpr_contract.requests import InspectionRequest
from cpr_contract.spec import ColumnsSpec, DataSpec
from cpr_trainer.data.dataset import Dataset
from cpr_trainer.data.decode import rows_of_integers, rows_of_texts
from cpr_trainer.data.inspection import inspect_files, inspect_job
from cpr_trainer.data.open import open_dataset
from cpr_trainer.data.schema import NO_ROW, as_texts
from cpr_trainer.data.whole_numbers import Spellings
from cpr_trainer.embedding.bags import Bags
from cpr_trainer.errors import DataError
from cprjob_serving.hashes import Cells, murmur3, xxh64
from support import bag_data
from support.plain_batches import single_ids
from support.shard_job import small_job
from support.table_data import FILES, FORMATS, Click, as_table, everything, model_of, read, spec, write

# --- Row numbers


#: A text column and one of integers.
TABLES = (TableSpec("user", 1000, ids="RowNumber"), TableSpec("item", 500, ids="RowNumber"))
WITH_DEFAULT_ROW = tuple(replace(table, out_of_range="DefaultRow") for table in TABLES)
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
    ("click", "expected"),
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
def test_an_id_without_a_row_makes_a_bad_row(tmp_path: Path, ending: str, click: Click, expected: str) -> None:
    rows = numbered(30)
    rows[7] = click
    data = write(rows, tmp_path, ending)
    place = "row 8" if ending == "parquet" else "line 9"
    with pytest.raises(DataError) as error:
        everything(read(data, TABLES))
    cell = 500 if ending == "parquet" else "'500'"
    assert f"part-000.{ending}, {place}: {expected.format(cell)} (bad rows so far: 1, allowed: 0)." in str(error.value)
    batch = everything(read(replace(data, max_bad_lines=1), TABLES))
    assert single_ids(batch)[:, 0].tolist() == [*range(7), *range(8, 30)], "it is left out"


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_text_is_no_row_number_in_any_range(tmp_path: Path, ending: str) -> None:
    with pytest.raises(DataError, match="column user is 'u1', not an integer "):
        everything(read(write([Click(1, user="u1", item=1)], tmp_path, ending), WITH_DEFAULT_ROW))


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
    assert rows_of_integers(cells, WITH_DEFAULT_ROW[0]).tolist() == [0, 999, 0, 0, 0, 0]


def test_only_decimal_digits_are_a_number() -> None:
    cells = pa.array([b"007", b"+7", b" 7", b"7\n", b"0x7", b"\xff", "\u0667".encode(), b"true"])
    assert rows_of_texts(cells, WITH_DEFAULT_ROW[0]).tolist() == [7, *[NO_ROW] * 7]


# --- Whole numbers


COLUMNS = ColumnsSpec(("click",), (), (), ("user",), integers=("user",))
HASHED, NUMBERED = TableSpec("user", 1000), TableSpec("user", 1000, ids="RowNumber", out_of_range="DefaultRow")
KNOWN = TableSpec("user", 1000, ids="Vocabulary", min_count=1, out_of_range="DefaultRow")
KEYED = TableSpec("user", 1000, ids="Dynamic", dynamic=DynamicSpec())


def stored(folder: Path, users: Any, kind: pa.DataType | None = None, columns: ColumnsSpec = COLUMNS) -> DataSpec:
    """Store users as Parquet of a type, or as CSV without one."""
    if kind is None:
        (folder / "a").write_text("click,user\n" + "".join(f"1,{user}\n" for user in users))
    else:
        pq.write_table(pa.table({"click": [1] * len(users), "user": pa.array(users, kind)}), folder / "a")
    return replace(spec("CSV" if kind is None else "Parquet", f"{folder}/a"), columns=columns)


def rows_of(data: DataSpec, table: TableSpec) -> list[int]:
    found: list[int] = single_ids(everything(read(data, (table,))))[:, 0].tolist()
    return found


@pytest.mark.parametrize("table", [HASHED, NUMBERED, KNOWN, KEYED], ids=attrgetter("ids"))
@pytest.mark.parametrize(
    ("kind", "users"),
    [
        (None, ["12.0", " 12", "+12", "012", "-3.", "0", "-0", " "]),
        (pa.string(), ["12.00", "12 ", "12", "00012", "-3.0", "0.0", "0", None]),
        (pa.dictionary(pa.int8(), pa.string()), ["12", "12.0", "12", "12.0", "-3", "0", "-0.0", ""]),
        (pa.float64(), [12.0, 12.0, 12.0, 12.0, -3.0, 0.0, -0.0, None]),
        (pa.float32(), [12.0, 12.0, 12.0, 12.0, -3.0, 0.0, -0.0, float("nan")]),
        (pa.decimal128(9, 2), [*[Decimal(12)] * 4, Decimal(-3), Decimal(0), Decimal(0), None]),
    ],
    ids=str,
)
def test_whole_number_is_one_id_in_every_spelling(
    tmp_path: Path, table: TableSpec, kind: pa.DataType | None, users: list[Any]
) -> None:
    found = rows_of(stored(tmp_path, users, kind), table)
    plain = [12, 12, 12, 12, -3, 0, 0, None]
    assert found == rows_of(stored(tmp_path, plain, pa.int64()), table)
    assert len(set(found[:4])) == 1


@pytest.mark.parametrize(
    ("kind", "user", "shown"),
    [(None, "12.5", "'12.5'"), (None, "u1", "'u1'"), (None, "1e3", "'1e3'"), (pa.float64(), 12.5, "12.5"),
     (pa.float64(), 2.0**53 + 2, "9007199254740994.0"), (pa.float64(), float("inf"), "inf")],
)  # fmt: skip
@pytest.mark.parametrize("table", [HASHED, NUMBERED, KNOWN, KEYED], ids=attrgetter("ids"))
def test_other_values_make_a_bad_row(
    tmp_path: Path, kind: pa.DataType | None, user: Any, shown: str, table: TableSpec
) -> None:
    data = stored(tmp_path, [7 if kind is None else 7.0, user], kind)
    with pytest.raises(DataError, match=f"column user is {shown}, not (a whole number|an integer|a value of the)"):
        rows_of(data, table)
    assert len(rows_of(replace(data, max_bad_lines=1), table)) == 1


def test_bags_hold_whole_numbers_too(tmp_path: Path) -> None:
    table = TableSpec("user", 1000, "Sum")
    kinds = (pa.list_(pa.int64()), pa.list_(pa.float64()), pa.list_(pa.string()))
    bags: list[list[list[Any]]] = [[[12, 7], [], [5]], [[12.0, 7.0], [], [5.0]], [["12.0", " 7"], [], ["5"]]]
    found = [everything(read(stored(tmp_path, *each), (table,))).ids for each in zip(bags, kinds, strict=True)]
    assert isinstance(found[0], Bags)
    for each in found[1:]:
        assert isinstance(each, Bags)
        assert np.array_equal(each.ids, found[0].ids)
        assert np.array_equal(each.offsets, found[0].offsets)


def test_floats_are_refused_with_the_option_as_remedy(tmp_path: Path) -> None:
    data = stored(tmp_path, [12.0, None], pa.float64(), replace(COLUMNS, integers=()))
    with pytest.raises(DataError, match="column user is double, not text or an integer") as caught:
        read(data, (HASHED,))
    assert "data.columns.integers" in caught.value.remedy


@given(
    st.lists(st.tuples(st.integers(-50, 50), st.sampled_from(["{}", "{}.0", " {}", "{}."]), st.integers(0, 3))),
    st.lists(st.sampled_from(["007", "u1", "1.5", "1e3"]), max_size=3),
)
def test_spellings_are_found_across_blocks(written: list[tuple[int, str, int]], names: list[str]) -> None:
    spellings = Spellings()
    for block in range(4):
        texts = {way.format(number) for number, way, where in written if where == block}
        spellings.add(pa.array([each.encode() for each in sorted(texts | {*names})], pa.binary()))
    plain = {number for number, way, _ in written if way == "{}"}
    otherwise = {number for number, way, _ in written if way != "{}"}
    found = spellings.warning("user")
    assert (found is not None) == bool(plain & otherwise)
    assert found is None or found.startswith(
        f"Column user writes {len(plain & otherwise)} of {len(plain | otherwise)} numbers in two ways"
    )
    assert spellings.only_whole == (not names)


def test_two_spellings_of_ids_are_reported_by_inspect_and_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, ending in (("a", ""), ("b", ".0")):
        (tmp_path / name).write_text(f"click,user,item\n1,12{ending},7\n0,5{ending},8\n")
    columns = ColumnsSpec(("click",), (), (), ("user", "item"))
    data = replace(spec("CSV", f"{tmp_path}/*"), columns=columns)
    model = model_of([HASHED, TableSpec("item", 5)])
    warning = "Column user writes 2 of 2 numbers in two ways, as '12' and '12.0'"
    for found in (
        inspect_files(InspectionRequest(f"{tmp_path}/*"), FILES),
        inspect_job(job_of(data, model), FILES).data,
    ):
        assert [each for each in found.advice if "in two ways" in each] == [found.advice[0]]
        assert found.advice[0].startswith(warning[:37])
        assert "data.columns.integers" in found.advice[0]
    with caplog.at_level(logging.WARNING):
        open_dataset(data, model, FILES)
    (record,) = caplog.records
    assert record.getMessage().startswith(warning[:37])
    assert "data.columns.integers" in record.getMessage()
    caplog.clear()
    named = replace(data, columns=replace(columns, integers=("user",)))
    with caplog.at_level(logging.WARNING):
        ids = single_ids(everything(open_dataset(named, model, FILES)))[:, 0].tolist()
    assert ids[:2] == ids[2:]
    assert not caplog.records
    found = inspect_job(job_of(named, model), FILES).data
    assert not [each for each in found.advice if "in two ways" in each]
    assert next(each.distinct for each in found.columns if each.name == "user") == 2


def job_of(data: DataSpec, model: Any) -> Any:
    return replace(small_job(Path("unused")), data=data, model=model)


# --- Published hashes


def cells(*texts: bytes) -> Cells:
    return Cells.of_arrow(pa.array(texts, pa.binary()))


def test_slice_of_an_array_is_hashed_from_its_own_place() -> None:
    part = pa.array([b"12", b"3", b"-45", b"", b"6"], pa.binary()).slice(2, 2)
    assert Cells.of_arrow(part).hashes().tolist() == cells(b"-45", b"").hashes().tolist()
    assert cells().hashes().tolist() == []


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_a_table_has_the_rows_that_its_hash_and_seed_give(tmp_path: Path, ending: str) -> None:
    # Saved models stand on them; docs/hashing.md has them.
    rows = [Click(1, user=user, item=item) for user, item in (("a", 42), (None, -7), ("é", None))]
    tables = TableSpec("user", 1000, ids="XXH64"), TableSpec("item", 1000, ids="Murmur3", hash_seed=7)
    ids = single_ids(everything(read(write(rows, tmp_path, ending), tables)))
    assert ids.tolist() == [[955, 700], [921, 247], [848, 351]]
    seeded = replace(tables[0], hash_seed=1), replace(tables[1], hash_seed=0)
    other = single_ids(everything(read(write(rows, tmp_path, ending), seeded)))
    assert (other != ids).all()


@pytest.mark.parametrize(
    ("values", "digits"),
    [
        (pa.array([-1, 7], pa.int64()), (b"-1", b"7")),
        (pa.array([-1, 7], pa.int8()), (b"-1", b"7")),
        (pa.array([7, 2**64 - 1], pa.uint64()), (b"7", b"18446744073709551615")),
        (pa.array(["007", "-1"]), (b"007", b"-1")),
        (pa.array([b"18446744073709551615"]), (b"18446744073709551615",)),
    ],
)
def test_hash_of_an_integer_is_that_of_its_digits(values: Any, digits: tuple[bytes, ...]) -> None:
    found = xxh64(Cells.of_arrow(as_texts(values)), 7)
    assert found.tolist() == [xxhash.xxh64_intdigest(each, 7) for each in digits]


def test_the_page_has_the_hashes_that_are_computed() -> None:
    page = (Path(__file__).parents[3] / "docs" / "hashing.md").read_text("utf-8")
    lines = re.findall(r"^\| (.+) \| ([07]) \| `(\w{16})` \| `(\w{16})` \| (?:`(\w{16})` )?\|$", page, re.MULTILINE)
    assert len(lines) == 12
    for text, seed, *expected in lines:
        of = cells(re.sub(r"^`(.+)`.*$|^\(empty\)$", r"\1", text).encode())
        found = xxh64(of, int(seed)), murmur3(of, int(seed)), of.hashes()
        assert expected[: 2 + (seed == "0")] == [f"{int(each[0]):016x}" for each in found][: 2 + (seed == "0")]
    own = int(cells(b"42").hashes()[0])
    assert f"row {int(xxh64(cells(b'42'), 0)[0]) % 1000} by XXH64" in page
    assert f"row {int(murmur3(cells(b'42'), 0)[0]) % 1000} by Murmur3 and row {own % 1000} by CPR64" in page
