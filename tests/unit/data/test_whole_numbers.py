"""Ids that are whole numbers however they are written, and warnings where one number is written in two ways."""

from __future__ import annotations

import logging
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpr_contract.model import TableSpec
from cpr_contract.spec import ColumnsSpec, DataSpec
from cpr_trainer.data.inspection import inspect_files, inspect_job
from cpr_trainer.data.open import open_dataset
from cpr_trainer.data.whole_numbers import Spellings
from cpr_trainer.embedding.bags import Bags
from cpr_trainer.errors import DataError
from support.plain_batches import single_ids
from support.shard_job import small_job
from support.table_data import FILES, everything, model_of, read, spec

COLUMNS = ColumnsSpec(("click",), (), (), ("user",), integers=("user",))
HASHED, NUMBERED = TableSpec("user", 1000), TableSpec("user", 1000, ids="RowNumber", out_of_range="DefaultRow")
KNOWN = TableSpec("user", 1000, ids="Vocabulary", min_count=1, out_of_range="DefaultRow")


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


@pytest.mark.parametrize("table", [HASHED, NUMBERED, KNOWN], ids=["hashed", "row-number", "vocabulary"])
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
def test_whole_numbers_are_one_id_however_they_are_written(
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
@pytest.mark.parametrize("table", [HASHED, NUMBERED, KNOWN], ids=["hashed", "row-number", "vocabulary"])
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
    found = spellings.twice()
    assert (found is not None) == bool(plain & otherwise)
    assert found is None or found.startswith(
        f"{len(plain & otherwise)} of {len(plain | otherwise)} numbers in two ways"
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
    for found in (inspect_files(f"{tmp_path}/*", FILES), inspect_job(job_of(data, model), FILES).data):
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
