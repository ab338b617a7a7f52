"""Text that other programs wrote gives the samples of the same rows in Parquet, by the syntax in `data.csv`."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cpr_contract import CONTRACT_VERSION
from cpr_contract.model import TableSpec
from cpr_contract.spec import ColumnsSpec, CsvSpec, DataSpec, JobSpec, SnapshotSpec, StoreSpec
from cpr_trainer.data.dataset import Dataset
from cpr_trainer.data.dialect import Dialect, dialect_of
from cpr_trainer.data.inspection import inspect_job
from cpr_trainer.errors import DataError
from support.table_data import FILES, assert_same, everything, model_of, read, spec

#: Wide enough that no two texts of a test share a row.
TABLES = (TableSpec("user", 2**31 - 1), TableSpec("flag", 2**31 - 1))
COLUMNS = ColumnsSpec(("click",), (), ("price",), ("user", "flag"))
NAMES = ("click", "price", "user", "flag")
Row = tuple[bool, float | None, str | None, bool | None]

#: Two lines of each way to write a text, as the programs wrote them.
ROWS: tuple[Row, ...] = (
    (True, 1.5, 'a "b"', True),
    (False, None, "back\\slash", False),
    (True, 2.0, 'quote, comma "x" and \\ back', True),
    (False, 3.0, None, None),
    (True, 1.0, "ends\\", True),
    (False, 1.0, "a,b\\", True),
    (True, 1.0, '\\"x', False),
    (False, 1.0, "\\n, z", False),
    (False, 1.0, 'a\\\\"', False),
)
SPARK = rb"""click,price,user,flag
true,1.5,"a \"b\"",true
false,,back\slash,false
true,2.0,"quote, comma \"x\" and \\ back",true
false,3.0,,
true,1.0,ends\,true
false,1.0,"a,b\\",true
true,1.0,"\\\"x",false
false,1.0,"\\n, z",false
false,1.0,"a\\\\\"",false
"""
PANDAS = rb'''click,price,user,flag
True,1.5,"a ""b""",True
False,,back\slash,False
True,2.0,"quote, comma ""x"" and \ back",True
False,3.0,,
True,1.0,ends\,True
False,1.0,"a,b\",True
True,1.0,"\""x",False
False,1.0,"\n, z",False
False,1.0,"a\\""",False
'''
DUCKDB_TSV = PANDAS.replace(b"True", b"true").replace(b"False", b"false")
DUCKDB_TSV = b"\n".join(line.replace(b",", b"\t") for line in DUCKDB_TSV.split(b"\n"))
DUCKDB_TSV = DUCKDB_TSV.replace(b"quote\t comma", b"quote, comma").replace(b'"a\tb\\"', b"a,b\\")
DUCKDB_TSV = DUCKDB_TSV.replace(b'"\\n\t z"', b"\\n, z")
#: As SELECT INTO OUTFILE of MySQL, COPY of PostgreSQL and tables of Hive with ESCAPED BY write them.
MYSQL = rb"""click	price	user	flag
1	1.5	a "b"	1
0	\N	back\\slash	0
1	2.0	quote, comma "x" and \\ back	1
0	3.0	\N	\N
1	1.0	ends\\	1
0	1.0	a,b\\	1
1	1.0	\\"x	0
0	1.0	\\n, z	0
0	1.0	a\\\\"	0
"""
TRUTHS = CsvSpec(boolean=("True", "False"))


def parquet(rows: Sequence[Row], path: Path, flag: pa.DataType | None = None) -> Dataset:
    table = pa.table({name: list(values) for name, values in zip(NAMES, zip(*rows, strict=True), strict=True)})
    if flag is not None:
        table = table.set_column(3, "flag", table["flag"].cast(flag))
    pq.write_table(table, path)
    return opened("Parquet", path)


def opened(form: str, path: Path, syntax: CsvSpec | None = None) -> Dataset:
    return read(replace(spec(form, str(path)), columns=COLUMNS, csv=syntax), TABLES)


@pytest.mark.parametrize(
    ("text", "form", "syntax"),
    [
        (SPARK, "CSV", CsvSpec(escape="\\", boolean=("true", "false"))),
        (PANDAS, "CSV", TRUTHS),
        (DUCKDB_TSV, "TSV", CsvSpec(quote='"', boolean=("true", "false"))),
        (MYSQL, "TSV", CsvSpec(escape="\\")),
        (MYSQL.replace(b"\t", b"\1"), "TSV", CsvSpec(delimiter="\1", escape="\\")),
        (MYSQL.replace(b"\n", b"\r\n"), "TSV", CsvSpec(escape="\\")),
    ],
    ids=["spark", "pandas", "duckdb-tsv", "mysql", "hive", "mysql-on-windows"],
)
def test_text_of_another_program_gives_the_samples_of_parquet(
    tmp_path: Path, text: bytes, form: str, syntax: CsvSpec
) -> None:
    (tmp_path / "text").write_bytes(text)
    expected = parquet(ROWS, tmp_path / "a.parquet", pa.int8() if b"\\N" in text else None)
    assert_same(everything(opened(form, tmp_path / "text", syntax)), everything(expected))


def advice(path: Path, form: str, syntax: CsvSpec | None = None) -> list[str]:
    data = replace(spec(form, str(path)), columns=COLUMNS, csv=syntax)
    model = replace(model_of(TABLES), numeric=1)
    store = SnapshotSpec(StoreSpec("file:///nowhere", None, "b", ""), 2, 30.0, None)
    job = JobSpec(CONTRACT_VERSION, "u", "n", model, data, 1, 1, store, 10.0)
    return [each for each in inspect_job(job, FILES).data.advice if "RowNumber" not in each]


@pytest.mark.parametrize(
    ("text", "form", "syntax", "warned"),
    [
        (SPARK, "CSV", CsvSpec(boolean=("true", "false")), ["data.csv.escape: '\\'"]),
        (b'click,price,user,flag\n1,2,"a \\"b",\n', "CSV", CsvSpec(), ["user has backslashes, as"]),
        (PANDAS, "CSV", CsvSpec(), ["click has only True and False", "user has backslashes", "flag"]),
        (DUCKDB_TSV, "TSV", CsvSpec(boolean=("true", "false")), ["data.csv.quote: '\"'", "user has backslashes"]),
        (MYSQL, "TSV", CsvSpec(), ["price has cells '\\N'", "user has backslashes", "user has", "flag has"]),
        (MYSQL, "TSV", CsvSpec(escape="\\"), []),
        (
            b"click,price,user,flag\n1,2, ann,7.0\n0,3,NULL,8.0\n",
            "CSV",
            CsvSpec(),
            ["trim: true", "['NULL']", "integers"],
        ),
    ],
    ids=["spark", "one-quote", "pandas", "duckdb-tsv", "mysql", "mysql-nulls", "blanks"],
)
def test_inspection_names_the_option_that_a_column_seems_to_need(
    tmp_path: Path, text: bytes, form: str, syntax: CsvSpec, warned: list[str]
) -> None:
    (tmp_path / "text").write_bytes(text)
    found = advice(tmp_path / "text", form, syntax)
    assert len(found) == len(warned), found
    for line, part in zip(found, warned, strict=True):
        assert part in line


cells = st.text(st.sampled_from('ab"\\,\t\n\r|Nn0t \u00e9'), max_size=6)


def by_csv_module(rows: list[list[str]], **options: Any) -> bytes:
    target = io.StringIO()
    csv.writer(target, lineterminator="\n", **options).writerows([["click", "price", "user", "flag"], *rows])
    return target.getvalue().encode()


def with_escapes(rows: list[list[str]], delimiter: str) -> bytes:
    """As PostgreSQL writes text: control characters are letters behind a backslash."""
    letters = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "": "\\N"}
    lines = ([letters.get(cell) or "".join(letters.get(each, each) for each in cell) for cell in row] for row in rows)
    return "".join(delimiter.join(line) + "\n" for line in [["click", "price", "user", "flag"], *lines]).encode()


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(cells, cells), min_size=1, max_size=6))
@example(rows=[("\\N", "\t\\N"), ("", "")])
@pytest.mark.parametrize(
    ("form", "syntax", "write", "line_breaks"),
    [
        ("CSV", CsvSpec(), by_csv_module, False),
        (
            "CSV",
            CsvSpec(escape="\\"),
            lambda rows: by_csv_module(rows, quoting=csv.QUOTE_ALL, doublequote=False, escapechar="\\"),
            False,
        ),
        ("TSV", CsvSpec(quote='"'), lambda rows: by_csv_module(rows, delimiter="\t"), False),
        ("TSV", CsvSpec(escape="\\"), lambda rows: with_escapes(rows, "\t"), True),
        ("CSV", CsvSpec(quote="'"), lambda rows: by_csv_module(rows, quotechar="'"), False),
    ],
    ids=["doubled", "escaped", "tsv", "postgresql", "other-quote"],
)
def test_any_text_is_read_back(  # noqa: PLR0913, PLR0917 -- hypothesis and a table
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, str]],
    form: str,
    syntax: CsvSpec,
    write: Callable[[list[list[str]]], bytes],
    line_breaks: bool,  # noqa: FBT001 -- a column of the table
) -> None:
    folder = tmp_path_factory.mktemp("dialect")
    if not line_breaks:
        rows = [tuple(cell.replace("\n", "").replace("\r", "") for cell in row) for row in rows]
    (folder / "text").write_bytes(write([["1", "2", *row] for row in rows]))
    table = pa.table({"click": [1] * len(rows), "price": [2] * len(rows)})
    users, flags = zip(*rows, strict=True)
    pq.write_table(table.append_column("user", pa.array(users)).append_column("flag", pa.array(flags)), folder / "a")
    assert_same(
        everything(opened(form, folder / "text", syntax)),
        everything(opened("Parquet", folder / "a")),
    )


@pytest.mark.parametrize("blanks", [" ", "\t", " \t"])
def test_trimmed_cells_are_those_without_blanks(tmp_path: Path, blanks: str) -> None:
    plain = [["1", "2", "ann", "x, y"], ["0", "", "", 'say "a, b"']]
    (tmp_path / "a.csv").write_bytes(by_csv_module(plain))
    padded = by_csv_module(plain, quoting=csv.QUOTE_ALL).decode().replace('","', f'"{blanks},{blanks}"')
    (tmp_path / "b.csv").write_text(
        f"{blanks}{padded}".replace("click", f" click{blanks}").replace("ann", f"ann{blanks}")
    )
    known = everything(opened("CSV", tmp_path / "a.csv"))
    assert_same(everything(opened("CSV", tmp_path / "b.csv", CsvSpec(trim=True))), known)


def test_absent_cells_are_empty_in_every_kind_of_column(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("click,price,user,flag\n1,,,x\n0,2,b,\n")
    (tmp_path / "b.csv").write_text("click,price,user,flag\n1,NULL,n/a,x\n0,2,b,NULL\n")
    known = everything(opened("CSV", tmp_path / "a.csv"))
    assert_same(everything(opened("CSV", tmp_path / "b.csv", CsvSpec(null_values=("NULL", "n/a", "")))), known)
    with pytest.raises(DataError, match="column price is 'NULL', not a number"):
        everything(opened("CSV", tmp_path / "b.csv"))


def test_a_bad_row_is_named_by_its_line_among_rewritten_ones(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes(b"click\tprice\tuser\tflag\n1\t2\ta\\nb\t\\N\n1\t2\tb\n1\t2\tc\t\n")
    syntax = CsvSpec(escape="\\")
    with pytest.raises(DataError, match=r"a\.tsv, line 3: it has 3 columns instead of 4"):
        everything(opened("TSV", tmp_path / "a.tsv", syntax))
    (tmp_path / "a.tsv").write_bytes(b"click\tprice\tuser\tflag\n1\t2\ta\\\nb\tx\n")
    with pytest.raises(DataError, match="without line breaks in quotes or behind an escape"):
        everything(opened("TSV", tmp_path / "a.tsv", syntax))


def test_names_of_columns_have_the_syntax_of_cells(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"click;price;'us''er' ;\\flag\n1;2;'x;y';z\n")
    data = replace(spec("CSV", f"{tmp_path}/a.csv"), csv=CsvSpec(";", "'", trim=True))
    columns = ColumnsSpec(("click",), (), ("price",), ("us'er", "\\flag"))
    assert len(everything(read(replace(data, columns=columns), TABLES))) == 1


def test_plain_text_is_parsed_as_it_is() -> None:
    data = DataSpec("CSV", "x", 1, None, 1, 1, 0)
    text = b'1,"a ""b""",\\N, c\n'
    assert dialect_of(data) == dialect_of(replace(data, csv=CsvSpec())) == Dialect(",", '"', header=True)
    assert dialect_of(data).rewritten(text) is text
