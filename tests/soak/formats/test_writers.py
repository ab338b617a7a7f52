"""Files of other programs, in releases that docs/data.md lists, give the samples of the same rows from pyarrow."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cpr_contract.model import TableSpec
from cpr_contract.spec import ColumnsSpec, CsvSpec, DataSpec
from cpr_trainer.data.dataset import Batch
from cpr_trainer.data.tables import table_format
from support.data_writers import WRITERS
from support.fresh import UV, environment
from support.plain_batches import single_ids
from support.table_data import FILES, everything, read, spec

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "tests" / "support" / "data_writers.py"
PINS = Path(__file__).parent / "writers.txt"
#: Wide enough that no two texts of a test share a row.
TABLES = tuple(TableSpec(name, 2**31 - 1) for name in ("user", "item", "flag", "site"))
COLUMNS = ColumnsSpec(("click",), ("age",), ("price",), tuple(each.name for each in TABLES), integers=("item",))
USERS = [
    'a "b"',
    "back\\slash",
    'x, "y" \\ z',
    "ends\\",
    '\\"q',
    "\u00e9",
    "12",
    "true",
    "NULL",
    None,
    "tab\there",
    "u,v",
]
ROWS = {
    "click": [0, 1] * 6,
    "age": [None, 1, 2, 3] * 3,
    "price": [number + 0.5 for number in range(12)],
    "user": USERS,
    "item": [7, None, 2**40] * 4,
    "flag": [True, False, True] * 4,
    "site": ["home", "shop", "a b"] * 4,
}
#: The readers of files by their ending.
FORMATS = {"parquet": "Parquet", "csv": "CSV", "tsv": "TSV", "jsonl": "JSONLines", "json": "JSONLines", "orc": "ORC"}
FORMATS |= {"arrow": "Arrow", "gz": "CSV", "bz2": "CSV"}
#: What docs/data.md advises for text of a program.
SYNTAX = {
    "spark-csv": CsvSpec(escape="\\"),
    "pandas": CsvSpec(boolean=("True", "False")),
    "duckdb-tsv": CsvSpec(quote='"'),
}

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the pinned programs."""
    folder = tmp_path_factory.mktemp("writers")
    variables = environment(folder)
    interpreter = folder / "venv" / "bin" / "python"
    install: list[str | Path] = [
        UV,
        "pip",
        "install",
        "--quiet",
        "--python",
        interpreter,
        "--require-hashes",
        "--no-deps",
        "-r",
        PINS,
    ]
    subprocess.run(install, env=variables, check=True)
    return interpreter


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    pq.write_table(pa.table(ROWS), path)
    return path


def by_price(data: DataSpec) -> Batch:
    """Return all samples in the order of their prices: folders of keys have another one."""
    batch = everything(read(data, TABLES))
    order = np.argsort(batch.dense[:, 1])
    return Batch(batch.dense[order], single_ids(batch)[order], batch.labels[order])


@pytest.mark.parametrize("writer", WRITERS)
def test_files_of_a_program_give_the_samples_of_pyarrow(tmp_path: Path, python: Path, rows: Path, writer: str) -> None:
    subprocess.run([python, SCRIPT, writer, rows, tmp_path], check=True, stdout=subprocess.DEVNULL)
    files = [path for path in tmp_path.rglob("*.*") if path.is_file() and path.name[0] not in "._"]
    table = tmp_path / "table"
    form = table_format(f"{table}/", FILES) or FORMATS[files[0].suffix.removeprefix(".")]
    uri = f"{table if table.exists() else tmp_path}/"
    syntax = SYNTAX.get(writer) or SYNTAX.get(writer.partition("-")[0])
    data = replace(spec(form, uri), columns=COLUMNS, csv=syntax if form in {"CSV", "TSV"} else None)
    found, expected = by_price(data), by_price(replace(spec("Parquet", str(rows)), columns=COLUMNS))
    np.testing.assert_array_equal(found.dense, expected.dense)
    np.testing.assert_array_equal(found.labels, expected.labels)
    np.testing.assert_array_equal(found.ids, expected.ids)


@pytest.mark.parametrize(
    "program", ["pandas", "polars", "duckdb", "fastparquet", "deltalake", "pyiceberg", "pyspark", "pyarrow"]
)
def test_page_has_the_release_that_was_run(program: str) -> None:
    (version,) = re.findall(rf"^{program}==(\S+)", PINS.read_text("utf-8"), re.MULTILINE)
    named = {"deltalake": "delta-rs", "pyspark": "spark"}.get(program, program)
    assert f"| {named} {version}" in (ROOT / "docs" / "data.md").read_text("utf-8").lower()
