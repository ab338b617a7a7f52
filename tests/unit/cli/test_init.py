"""`cprjob init` on small files of many shapes: each manifest is valid, and trains all rows as it is written."""

from __future__ import annotations

import csv
import gzip
import json
import random
from collections.abc import Callable, Generator
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from cpr_contract.codec import to_json
from cpr_contract.requests import Inspection, InspectionRequest
from cpr_contract.spec import JobSpec
from cpr_operator.api import yaml_text
from cpr_operator.cli import init as init_command
from cpr_operator.cli.app import app
from cpr_trainer.data.inspection import inspect_files
from cprjob import fit
from support.public_logs import ROWS, WRITERS
from support.table_data import FILES

Rows = dict[str, list[Any]]


def answer(role: str, job: JobSpec | None, request: object, environment: object = None) -> Generator[bytes]:
    """Answer as the process of the trainer image does."""
    assert (role, job) == ("inspect", None)
    assert isinstance(request, InspectionRequest)
    yield to_json(Inspection(inspect_files(request, FILES))).encode()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(init_command, "run_role", answer)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def cprjob(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(arguments))
    return done.exit_code, done.output


def manifest(*arguments: str) -> dict[str, Any]:
    """Return what the command writes for data."""
    code, output = cprjob("init", *arguments, "--out", "job.yaml")
    assert code == 0, output
    assert cprjob("validate", "job.yaml") == (0, "job.yaml: valid\n")
    (document,) = yaml_text.read_documents(Path("job.yaml").read_bytes())
    return dict(document)


def clicks(rows: int = 400) -> Rows:
    draw = random.Random(3)
    taste = [draw.gauss(0, 2) for _ in range(30)]
    items = [draw.randrange(30) for _ in range(rows)]
    return {
        "click": [int(draw.gauss(taste[item], 1) > 0) for item in items],
        "user_id": [draw.randrange(1, 60) for _ in range(rows)],
        "item": [f"item-{item}" for item in items],
        "price": [round(draw.uniform(0.5, 9), 2) for _ in range(rows)],
        "visits": [draw.randrange(500) for _ in range(rows)],
        "session": [f"s{place:06}" for place in range(rows)],
        "when": [1_700_000_000 + place for place in range(rows)],
    }


def write_text(rows: Rows, path: str, delimiter: str = ",", *, header: bool = True) -> str:
    text = StringIO()
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\n")
    writer.writerows([[*rows]] if header else [])
    writer.writerows(zip(*rows.values(), strict=True))
    Path(path).write_text(text.getvalue(), "utf-8")
    return path


def write_json(rows: Rows) -> str:
    lines = [json.dumps(dict(zip(rows, cells, strict=True))) for cells in zip(*rows.values(), strict=True)]
    Path("clicks.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    return "clicks.jsonl"


def write_packed(rows: Rows) -> str:
    Path("clicks.csv.gz").write_bytes(gzip.compress(Path(write_text(rows, "clicks.csv")).read_bytes()))
    return "clicks.csv.gz"


def write_folder(rows: Rows) -> str:
    """Write two days, as tables of Hive have them."""
    half = len(rows["click"]) // 2
    for day, part in ((1, slice(half)), (2, slice(half, None))):
        folder = Path("log", f"site={'ab'[day - 1]}")
        folder.mkdir(parents=True)
        pq.write_table(pa.table({name: cells[part] for name, cells in rows.items()}), folder / "part.parquet")
    return "log"


def write_table(write: Callable[[pa.Table, str], Any], name: str) -> Callable[[Rows], str]:
    def writer(rows: Rows) -> str:
        write(pa.table(rows), name)
        return name

    return writer


FORMATS: dict[str, Callable[[Rows], str]] = {
    "CSV": lambda rows: write_text(rows, "clicks.csv"),
    "TSV": lambda rows: write_text(rows, "clicks.tsv", "\t"),
    "CSV, gzip": write_packed,
    "JSONLines": write_json,
    "Parquet": write_table(pq.write_table, "clicks.parquet"),
    "Parquet, a folder": write_folder,
    "Arrow": write_table(
        lambda table, name: pyarrow.feather.write_feather(table, name, compression="zstd"), "clicks.arrow"
    ),
    "ORC": write_table(pyarrow.orc.write_table, "clicks.orc"),
}


def train(document: dict[str, Any], rows: int) -> None:
    """Train the manifest in one pass without an edit of anything else."""
    spec = document["spec"]
    spec["data"]["epochs"] = 1
    fitted = fit(spec)
    assert fitted.samples == rows - round(rows * spec["data"]["holdOut"])
    assert np.isfinite(fitted.loss)


@pytest.mark.parametrize("form", FORMATS)
def test_each_format_is_trained_as_it_is_written(form: str) -> None:
    document = manifest(FORMATS[form](clicks(600)))
    data, tables = document["spec"]["data"], document["spec"]["model"]["tables"]
    assert data["format"] == form.partition(",")[0]
    assert data["columns"]["labels"] == ["click"]
    assert data["columns"]["counts"] == ["visits"]
    assert data["columns"]["numbers"] == ["price"]
    ids = {name: table["ids"] for name, table in zip(data["columns"]["categories"], tables, strict=True)}
    site = {"site": "Vocabulary"} if "folder" in form else {}
    assert ids == {"user_id": "RowNumber", "item": "Vocabulary"} | site
    train(document, 600)


@pytest.mark.parametrize(
    ("name", "place", "option"),
    [
        ("criteo-kaggle", "train.txt", ()),
        ("criteo-1tb", "train", ()),
        ("criteo-x1", "train.csv", ()),
        ("avazu", "train.gz", ()),
        ("movielens-25m", "ratings.csv", ()),
        ("taobao", "UserBehavior.csv", ("--label", "4=buy")),
        ("yambda-flat", "listens.parquet", ()),
    ],
)
def test_public_log_is_trained_as_it_is_distributed(name: str, place: str, option: tuple[str, ...], here: Path) -> None:
    WRITERS[name](here)
    train(manifest(place, *option), ROWS)


def odd_columns(rows: Rows) -> Rows:
    """Add columns that no job reads, ids as floating point numbers, bags, weights, and rows without a label."""
    count = len(rows["click"])
    rows["click"] = [None if place % 50 == 7 else value for place, value in enumerate(rows["click"])]
    return rows | {
        "shop": [None if place % 9 == 0 else float(1 + place * 7 % 40) for place in range(count)],
        "tags": [[f"t{place % 5}", f"t{place % 3}"][: place % 3] for place in range(count)],
        "sample_weight": [1.0 + place % 2 for place in range(count)],
        "vector": [[0.5, 0.25]] * count,
        "ratio": [float("nan") if place % 4 == 0 else place / count for place in range(count)],
        "mobile": [place % 2 == 0 for place in range(count)],
        "nothing": [None] * count,
    }


def test_odd_columns_do_not_stop_a_job() -> None:
    pq.write_table(pa.table(odd_columns(clicks())), "clicks.parquet")
    code, output = cprjob("init", "clicks.parquet", "--out", "other.yaml")
    assert code == 0
    for left_out in ("session", "when", "vector", "ratio", "nothing"):
        assert f"{left_out} is left out: " in output
    document = manifest("clicks.parquet")
    columns = document["spec"]["data"]["columns"]
    assert columns["weight"] == "sample_weight"
    assert columns["categories"] == ["user_id", "item", "shop", "tags"]
    assert columns["integers"] == ["shop"]
    document["spec"]["data"]["epochs"] = 1
    assert fit(document["spec"]).samples == 400, "a row without a label is skipped"


def test_cells_of_several_ids_are_bags() -> None:
    rows = clicks()
    rows["genres"] = ["|".join(f"g{part}" for part in range(place % 4)) for place in range(400)]
    document = manifest(write_text(rows, "clicks.csv"))
    assert document["spec"]["data"]["columns"]["separator"] == "|"
    genres = document["spec"]["model"]["tables"][-1]
    assert (genres["name"], genres["rows"], genres["pooling"]) == ("genres", 4, "Mean")
    train(document, 400)


def test_columns_without_names_are_numbered() -> None:
    document = manifest(write_text(clicks(), "clicks.csv", header=False))
    data = document["spec"]["data"]
    assert (data["header"], data["columns"]["labels"], data["columns"]["categories"]) == (False, ["1"], ["2", "3", "5"])
    train(document, 400)


def test_sample_leaves_row_numbers_open() -> None:
    """Two blocks of 300 rows; later ids may be larger."""
    pq.write_table(pa.table(clicks(600)), "clicks.parquet", row_group_size=300)
    document = manifest("clicks.parquet", "--rows", "300")
    assert {table["ids"] for table in document["spec"]["model"]["tables"]} == {"Dynamic"}
    train(document, 600)


def test_existing_file_is_replaced_by_force_alone() -> None:
    write_text(clicks(), "clicks.csv")
    assert cprjob("init", "clicks.csv")[0] == 0
    Path("clicks.yaml").write_text("mine", "utf-8")
    code, output = cprjob("init", "clicks.csv")
    assert (code, Path("clicks.yaml").read_text("utf-8")) == (2, "mine")
    assert "--force" in output
    assert cprjob("init", "clicks.csv", "--force")[0] == 0
    assert "kind: CPRJob" in Path("clicks.yaml").read_text("utf-8")


def test_ambiguous_label_writes_nothing() -> None:
    rows = clicks()
    write_text({"a": rows["click"], "b": rows["click"], "user": rows["user_id"]}, "clicks.csv")
    code, output = cprjob("init", "clicks.csv")
    assert (code, Path("clicks.yaml").exists()) == (2, False)
    assert "columns a, b may each be the label" in output
    assert manifest("clicks.csv", "--label", "b")["spec"]["data"]["columns"]["labels"] == ["b"]


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ("/data/clicks.csv", "clicks"),
        ("/data/Train_2026.tsv.gz", "train-2026"),
        ("/data/2026/", "job-2026"),
        ("/data/log/day=*/part-*.parquet", "log"),
        ("/data/" + "x" * 60 + ".csv", "x" * 40),
        ("/", "job"),
    ],
)
def test_name_of_the_job_is_that_of_its_data(data: str, name: str) -> None:
    assert init_command.job_name_of(data) == name
