"""The statistics of data and the advice for a job, before it trains."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from cpr_contract import CONTRACT_VERSION
from cpr_contract.model import DynamicSpec, FeatureSpec, ModelSpec, OptimizerSpec, SparseOptimizerSpec, TableSpec
from cpr_contract.requests import MAX_VALUES, ColumnStats, DataStats, InspectionRequest
from cpr_contract.spec import DataSpec, EvaluationSpec, JobSpec, SnapshotSpec, StoreSpec
from cpr_trainer.data.column_summary import Distinct
from cpr_trainer.data.inspection import inspect_files, inspect_job
from cpr_trainer.errors import DataError
from cprjob_bench.roles.samples import write_criteo_tsv
from cprjob_serving.hashes import mix64
from support.table_data import COLUMNS, FILES, FORMATS, TABLES, Click, as_text, clicks, spec, write

NAMES = ["click", "age", "views", "price", "user", "item"]
OPTIMIZERS = OptimizerSpec("SGD", 0.1), SparseOptimizerSpec("SGD", 0.1)


def job(data: DataSpec) -> JobSpec:
    store = StoreSpec("file:///nowhere", None, "b", "")
    model = ModelSpec(4, (4,), (1,), TABLES, *OPTIMIZERS)
    return JobSpec(CONTRACT_VERSION, "u", "n", model, data, 1, 1, SnapshotSpec(store, 2, 30.0, None), 10.0)


def columns(stats: DataStats) -> dict[str, ColumnStats]:
    return {column.name: column for column in stats.columns}


@pytest.mark.parametrize("ending", FORMATS)
def test_column_statistics_are_equal_in_every_format(tmp_path: Path, ending: str) -> None:
    rows = clicks(1000)
    write(rows, tmp_path, ending, files=2)
    stats = inspect_files(InspectionRequest(f"{tmp_path}/"), FILES)
    assert (stats.format, stats.files, stats.rows, stats.bad) == (FORMATS[ending], 2, 1000, 0)
    found = columns(stats)
    assert (sorted if ending == "jsonl" else list)(found) == (sorted if ending == "jsonl" else list)(NAMES)
    for name, column in found.items():
        cells = [getattr(row, name) for row in rows]
        present = [cell for cell in cells if cell is not None]
        assert column.missing == len(cells) - len(present)
        assert column.distinct == len(set(present))
        assert column.repeated == sum(count > 1 for count in Counter(present).values())
        if name != "user":
            assert (column.lowest, column.highest) == (min(present), max(present))
    kinds = [found[name].kind for name in NAMES]
    if FORMATS[ending] not in {"CSV", "TSV"}:
        assert kinds == ["int64" if ending == "jsonl" else "int8", "int64", "int64", "double", "text", "int64"]
    else:
        assert kinds == ["integer", "integer", "integer", "number", "text", "integer"]
    assert stats.reading is None


def test_column_has_the_kind_of_its_widest_cell(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b,c,d\n1,1,,x\n2,2.5,,3\n")
    (tmp_path / "b.csv").write_text("a,b,c,d\n3,,,\n1e2x,1,,4\n")
    found = columns(inspect_files(InspectionRequest(f"{tmp_path}/*"), FILES))
    assert [found[name].kind for name in "abcd"] == ["text", "number", "empty", "text"]
    assert (found["a"].lowest, found["b"].lowest, found["b"].highest) == (None, 1, 2.5)
    assert [found[name].missing for name in "abcd"] == [0, 1, 4, 1]


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        (pa.array([1, 2]), pa.array(["3", "u4"]), "int64 or text"),
        (pa.array(["3", "u4"]), pa.array([1, 2]), "int64 or text"),
        (pa.array([1, 2]), pa.array([1.5, None]), "int64 or double"),
        (pa.array([None, None]), pa.array([1, 2]), "int64"),
        (pa.array([[1], [2]]), pa.array([["a"], ["b"]]), "list of int64 or text"),
    ],
)
def test_types_that_differ_between_files_are_all_shown(
    tmp_path: Path, first: pa.Array, second: pa.Array, kind: str
) -> None:
    for name, cells in (("a", first), ("b", second)):
        pq.write_table(pa.table({"user": cells}), tmp_path / f"{name}.parquet")
    assert columns(inspect_files(InspectionRequest(f"{tmp_path}/"), FILES))["user"].kind == kind


def test_statistics_cover_parquet_lists_and_times(tmp_path: Path) -> None:
    lists = {"l": [[1], None, [2, 3, 3, None]], "o": [[[1]], [[2]], None], "e": [[], [], None]}
    table = pa.table({**lists, "t": pa.array([1, 1, None], pa.timestamp("ms"))})
    pq.write_table(table, tmp_path / "a.parquet")
    found = columns(inspect_files(InspectionRequest(f"{tmp_path}/a.parquet"), FILES))
    assert (found["l"].kind, found["l"].distinct, found["l"].missing) == ("list of int64", 3, 1)
    assert (found["l"].lowest, found["l"].highest, found["l"].bag_mean, found["l"].bag_most) == (1, 3, 4 / 3, 3)
    assert (found["e"].distinct, found["e"].missing, found["e"].bag_most) == (0, 3, 0)
    assert found["o"].kind.startswith("list<")
    assert (found["o"].distinct, found["o"].missing, found["o"].bag_most) == (None, 1, None)
    assert (found["t"].kind, found["t"].distinct, found["t"].missing) == ("timestamp[ms]", 1, 1)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_statistics_list_values_and_find_whole_and_ordered_columns(tmp_path: Path, ending: str) -> None:
    """Two files are one sequence of rows."""
    rows = [
        {"label": int(place % 4 == 0), "user": place // 10, "price": place / 8, "left": 7 - place, "id": f"{place:03}"}
        for place in range(100)
    ]
    for name, part in (("a", rows[:50]), ("b", rows[50:])):
        table = pa.Table.from_pylist(part)
        write_table = pq.write_table if ending == "parquet" else pyarrow.csv.write_csv
        write_table(table, tmp_path / f"{name}.{ending}")
    found = columns(inspect_files(InspectionRequest(f"{tmp_path}/"), FILES))
    assert sorted(found["label"].values) == [("0", 75), ("1", 25)]
    assert len(found["id"].values) == MAX_VALUES
    assert [name for name in found if found[name].whole] == ["label", "user", "left", "id"]
    assert [name for name in found if found[name].ordered] == ["user", "price", "id"]


def test_order_is_that_of_numbers_over_empty_cells_and_files(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b,c\n9,x,2\n,,3\n10,y,4\n")
    (tmp_path / "b.csv").write_text("a,b,c\n10,y,3\n")
    found = columns(inspect_files(InspectionRequest(f"{tmp_path}/"), FILES))
    assert [found[name].ordered for name in "abc"] == [True, True, False]


def test_numbers_that_are_none_are_found(tmp_path: Path) -> None:
    cells = {"nan": [1.0, float("nan")], "inf": [1.0, float("inf")], "null": [1.0, None], "half": [1.0, 0.5]}
    pq.write_table(pa.table(cells), tmp_path / "a.parquet")
    found = columns(inspect_files(InspectionRequest(f"{tmp_path}/a.parquet"), FILES))
    assert {name: (each.whole, each.finite) for name, each in found.items()} == {
        "nan": (True, False),
        "inf": (False, False),
        "null": (True, True),
        "half": (False, True),
    }


def test_sample_has_blocks_of_all_parts(tmp_path: Path) -> None:
    table = pa.table({"user": range(1000)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=100)
    stats = inspect_files(InspectionRequest(f"{tmp_path}/a.parquet", rows=300), FILES)
    assert (stats.rows, stats.read) == (1000, 300)
    user = columns(stats)["user"]
    assert (user.lowest, user.highest, user.distinct) == (0, 699, 300)
    assert inspect_files(InspectionRequest(f"{tmp_path}/a.parquet", rows=1000), FILES).read is None


def test_text_with_a_separator_is_counted_as_ids(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("click,tags\n0,a|b\n1,\n1,b\n")
    request = InspectionRequest(f"{tmp_path}/a.csv", bags=("tags",), separator="|")
    tags = columns(inspect_files(request, FILES))["tags"]
    assert (tags.kind, tags.distinct, tags.missing, tags.bag_mean, tags.bag_most) == ("list of text", 2, 1, 1, 2)


@pytest.mark.parametrize(
    ("text", "form", "header"),
    [
        ("a,b\n1,2\n", "CSV", True),
        ("1,b\n1,2\n", "CSV", False),
        ('"a ""x""","b,c"\n1,2\n', "CSV", True),
        ("a\tb\n1\t2\n", "TSV", True),
        ("0\t1\n1\t2\n", "TSV", False),
        ("\ufeffa,b\r\n1,2\r\n", "CSV", True),
    ],
)
def test_format_is_detected_by_the_first_line(tmp_path: Path, text: str, form: str, *, header: bool) -> None:
    (tmp_path / "data").write_text(text, newline="")
    stats = inspect_files(InspectionRequest(f"{tmp_path}/data"), FILES)
    assert (stats.format, stats.header, stats.rows) == (form, header, text.count("\n") - header)


def test_criteo_is_detected_by_its_columns(tmp_path: Path) -> None:
    write_criteo_tsv(tmp_path / "clicks", 100, 1, (TableSpec("a", 10),))
    stats = inspect_files(InspectionRequest(f"{tmp_path}/clicks"), FILES)
    assert (stats.format, stats.header, len(stats.columns)) == ("Criteo", False, 40)


def test_inspection_of_a_job_describes_its_samples(tmp_path: Path) -> None:
    data = replace(write(clicks(1000), tmp_path, "tsv", files=3), epochs=2, hold_out=0.1, shuffle_rows=400)
    stats = inspect_job(job(data), FILES).data
    feeds = {name: column.feeds for name, column in columns(stats).items()}
    assert feeds == {
        "click": "label",
        "age": "count",
        "views": "count",
        "price": "number",
        "user": "table user, 100 rows",
        "item": "table item, 50 rows",
    }
    reading = stats.reading
    assert reading is not None
    assert (reading.trained, reading.held_out, reading.samples, reading.windows) == (900, 100, 1800, 3)
    for shuffle_rows, windows in ((0, 0), (1000, 1)):
        other = inspect_job(job(replace(data, shuffle_rows=shuffle_rows)), FILES).data.reading
        assert other == replace(reading, windows=windows)
    assert reading.steps == 1800 / data.batch_size


def test_inspection_of_a_job_describes_its_evaluation_data(tmp_path: Path) -> None:
    trained = job(write(clicks(300), tmp_path / "trained", "csv"))
    separate = write(clicks(40, seed=1), tmp_path / "scored", "csv", files=2)
    assert inspect_job(trained, FILES).scored is None
    last = tmp_path / "scored" / "part-001.csv"
    last.write_bytes(last.read_bytes() + b"7,3,0,0.5,u,7\n")
    scored = inspect_job(replace(trained, evaluation=EvaluationSpec(0, 10, uri=separate.uri)), FILES).scored
    assert scored is not None
    assert (scored.files, scored.rows, scored.bad, scored.reading, scored.advice) == (2, 41, 1, None, ())
    assert scored.faults == (f"{separate.uri}part-001.csv, line 22: column click is '7', not 0 or 1",)
    assert columns(scored)["user"].feeds == "table user, 100 rows"


def test_group_column_is_required_in_evaluation_data(tmp_path: Path) -> None:
    trained = job(write(clicks(30), tmp_path / "trained", "csv"))
    separate = write(clicks(30, seed=1), tmp_path / "scored", "csv")
    grouped = inspect_job(replace(trained, evaluation=EvaluationSpec(0, 10, uri=separate.uri, group_by="user")), FILES)
    assert grouped.scored is not None
    assert columns(grouped.scored)["user"].feeds == "table user, 100 rows, group"
    with pytest.raises(DataError, match=r"scored/part-000\.csv has no columns 'visitor'"):
        inspect_job(replace(trained, evaluation=EvaluationSpec(0, 10, uri=separate.uri, group_by="visitor")), FILES)


def test_unused_columns_are_not_inspected(tmp_path: Path) -> None:
    data = replace(write(clicks(10), tmp_path, "parquet"), columns=replace(COLUMNS, counts=(), numbers=("age",)))
    assert set(columns(inspect_job(job(data), FILES).data)) == {"click", "age", "user", "item"}


def test_bad_rows_are_counted_and_the_first_are_named(tmp_path: Path) -> None:
    lines = as_text([Click(1)] * 30, ",").splitlines()
    lines[5] = b"1,2"
    lines[9:29] = [b"7,3,0,0.5,u,7"] * 20
    (tmp_path / "a.csv").write_bytes(b"\n".join(lines))
    stats = inspect_job(job(spec("CSV", f"{tmp_path}/a.csv")), FILES).data
    assert stats.bad == 21
    assert len(stats.faults) == 10
    assert stats.faults[0] == f"{tmp_path}/a.csv, line 6: it has 2 columns instead of 6"
    assert stats.faults[1] == f"{tmp_path}/a.csv, line 10: column click is '7', not 0 or 1"
    assert inspect_files(InspectionRequest(f"{tmp_path}/a.csv"), FILES).bad == 1, "without a job any cell is right"


def test_synthetic_data_cannot_be_inspected() -> None:
    with pytest.raises(DataError, match="nothing to inspect"):
        inspect_job(job(DataSpec("Synthetic", None, None, 10, 1, 0, 0)), FILES)


@pytest.mark.parametrize("different", [0, 1, 4095, 4096, 100_000])
def test_counts_of_different_and_repeated_values_are_within_their_stated_error(different: int) -> None:
    """Each third value has two occurrences in one block, the others up to one, and half of them two blocks later."""
    whole, former, latter = Distinct(), Distinct(), Distinct()
    values = mix64(np.arange(different).astype(np.uint64))
    occurrences = np.where(np.arange(different) % 3 == 0, 2, 1)
    later = values[: different // 2]
    parts = np.array_split(np.concatenate((values, later)), 7)
    counts = np.array_split(np.concatenate((occurrences, np.ones(len(later), np.int64))), 7)
    for number, (part, count) in enumerate(zip(parts, counts, strict=True)):
        whole.add(part, count)
        (former if number % 2 else latter).add(part, count)
    former.merge(latter)
    repeated = int(((occurrences > 1) | (np.arange(different) < different // 2)).sum())
    assert former.counts() == whole.counts()
    for found, exact in zip(whole.counts(), (different, repeated), strict=True):
        assert found == exact if different < 4096 else abs(found / exact - 1) < 4 / np.sqrt(4096)


def test_advice_suggests_row_numbers_for_integers_below_the_rows(tmp_path: Path) -> None:
    rows = [Click(1, user=str(row), item=row) for row in range(50)]
    (advice,) = inspect_job(job(write(rows, tmp_path / "a", "csv")), FILES).data.advice[1:]
    assert "Column item has integers from 0 to 49, which are rows of table item." in advice
    assert "its 50 different ids share about 32 rows" in advice
    assert advice.endswith("State ids: RowNumber in spec.model.tables.")
    parquet = write([*rows, Click(1, user="50", item=None)], tmp_path / "b", "parquet")
    texts, numbers = inspect_job(job(parquet), FILES).data.advice
    assert "Column user" in texts, "of text, too"
    assert numbers.endswith("and outOfRange: DefaultRow, because some are missing.")


@pytest.mark.parametrize("item", [-1, 50])
def test_no_advice_for_integers_beyond_the_rows(tmp_path: Path, item: int) -> None:
    rows = [Click(1, user=f"u{row}", item=row) for row in (0, item)]
    assert inspect_job(job(write(rows, tmp_path, "csv")), FILES).data.advice == ()


def test_a_table_of_row_numbers_needs_no_advice(tmp_path: Path) -> None:
    rows = [Click(1, user="u", item=row) for row in (0, 50)]
    numbered = job(write(rows, tmp_path, "csv"))
    tables = TABLES[0], replace(TABLES[1], ids="RowNumber")
    stats = inspect_job(replace(numbered, model=replace(numbered.model, tables=tables)), FILES).data
    assert stats.advice == ()
    assert columns(stats)["item"].feeds == "table item, 50 rows by number"
    assert stats.faults == (f"{tmp_path}/part-000.csv, line 3: column item is '50', not an integer from 0 to 49",)


def test_inspection_prints_the_capacity_that_a_dynamic_table_needs(tmp_path: Path) -> None:
    """Its features have 2,500 ids each, 1,200 of them common; 200 users stand twice."""
    users = [*range(2500), *range(200)]
    rows = [Click(1, user=f"{user}", item=row % 2500 + 1300) for row, user in enumerate(users)]
    keyed = TableSpec("ids", 5000, ids="Dynamic", dynamic=DynamicSpec())
    features = FeatureSpec("user", "user", "ids"), FeatureSpec("item", "item", "ids")
    data = write(rows, tmp_path, "parquet", columns=replace(COLUMNS, categories=()))
    described = replace(job(data).model, tables=(keyed,), features=features)
    stats = inspect_job(replace(job(data), model=described), FILES).data
    assert columns(stats)["user"].feeds == "table ids, 5000 rows by key"
    (advice,) = stats.advice
    assert advice == (
        "Table ids with ids: Dynamic has 5,000 rows, and its data 3,800 different ids, 1,400 of them more than once. "
        "At 90% occupancy all ids take 8,192 rows, and those that occur more than once 4,096, with admission: "
        "{minSteps: 2}."
    )
