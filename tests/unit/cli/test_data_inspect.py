"""`cprjob data inspect` and `cprjob evaluate` with fake answers of the trainer image."""

from __future__ import annotations

import io
import json
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cpr_contract.codec import to_json
from cpr_contract.requests import (
    ColumnStats,
    DataStats,
    Evaluation,
    EvaluationRequest,
    Inspection,
    InspectionRequest,
    Reading,
)
from cpr_contract.spec import JobSpec
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.validate import parse_spec
from cpr_operator.cli import data_inspect, export
from cpr_operator.cli.export import Model
from support.documents import PARQUET, edited

STATS = DataStats(
    format="CSV",
    header=True,
    files=2,
    rows=1000,
    bad=2,
    faults=("a.csv, line 3: column [x] is 'y', not 0 or 1",),
    columns=(
        ColumnStats("click", "integer", 0, 0.0, 1.0, 2, "label"),
        ColumnStats("user", "text", 125, None, None, 12345, "table user, 10 rows", repeated=6789),
        ColumnStats("tags", "list of int64", 0, 1.0, 9.0, 9, "table tags, 10 rows, mean of a bag", 1.75, 12),
    ),
    reading=Reading(trained=900, held_out=100, samples=1800, steps=15, windows=3),
    advice=("Column [a] has integers.",),
)
FOUND = Inspection(STATS)


class TrainerImage:
    """Gives every request the same response, and records the requests."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.requests: list[tuple[str, JobSpec | None, Any]] = []

    def __call__(self, role: str, job: JobSpec | None, request: object, environment: object = None) -> Generator[bytes]:
        self.requests.append((role, job, request))
        yield to_json(self.answer).encode()


def run(target: str, image: TrainerImage, monkeypatch: pytest.MonkeyPatch, *, as_json: bool = False) -> tuple[int, str]:
    monkeypatch.setattr(data_inspect, "run_role", image)
    console = Console(file=io.StringIO(), width=120)
    code = data_inspect.inspect_data(target, console, {}, as_json=as_json)
    assert isinstance(console.file, io.StringIO)
    return code, console.file.getvalue()


def test_inspect_prints_a_table_of_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = run("/data/*.csv", TrainerImage(FOUND), monkeypatch)
    assert code == 1, "some rows are bad"
    for words in (
        "CSV, with a header: 2 files, 1,000 rows",
        "12.5%",
        "12,345",
        "6,789",
        "table user, 10 rows",
        "2 bad rows, the first:",
        "a.csv, line 3: column [x] is 'y', not 0 or 1",
        "Column [a] has integers.",
        "1,800 samples in 15 steps from 900 rows, shuffled in 3 windows; 100 are held out",
    ):
        assert words in output.replace("\n", " ")


@pytest.mark.parametrize(
    ("windows", "order"), [(0, "in their order"), (1, "shuffled as a whole"), (2, "shuffled in 2 windows")]
)
def test_inspect_prints_the_order_of_rows(monkeypatch: pytest.MonkeyPatch, windows: int, order: str) -> None:
    assert STATS.reading is not None
    stats = replace(STATS, reading=replace(STATS.reading, windows=windows))
    _, output = run("/data/*.csv", TrainerImage(Inspection(stats, None)), monkeypatch)
    assert f"from 900 rows, {order}; 100 are held out" in output.replace("\n", " ")


def test_inspect_prints_a_table_of_evaluation_data(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = replace(STATS, bad=0, faults=())
    scored = replace(STATS, files=1, rows=77, faults=("test.csv, line 3: wrong",), reading=None, advice=())
    code, output = run("/data/*.csv", TrainerImage(Inspection(trained, scored)), monkeypatch)
    assert code == 1, "a row that is scored is bad"
    first, _, second = output.partition("evaluation.uri:")
    assert "2 files, 1,000 rows" in first
    assert "The job trains" in first
    for words in ("1 file, 77 rows", "table user, 10 rows", "test.csv, line 3: wrong"):
        assert words in second
    assert "The job trains" not in second
    _, output = run("/data/*.csv", TrainerImage(Inspection(trained, scored)), monkeypatch, as_json=True)
    assert json.loads(output) == json.loads(to_json(trained)) | {"evaluation": json.loads(to_json(scored))}


@pytest.mark.parametrize(
    ("target", "uri"),
    [("/data/a.csv", "/data/a.csv"), ("file:///data/", "file:///data/"), ("clicks/", "{here}/clicks/")],
)
def test_inspect_passes_absolute_paths_to_the_trainer_image(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: str, uri: str
) -> None:
    monkeypatch.chdir(tmp_path)
    image = TrainerImage(FOUND)
    run(target, image, monkeypatch)
    assert image.requests == [("inspect", None, InspectionRequest(uri.format(here=tmp_path)))]


def test_inspect_of_a_manifest_reads_its_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    manifest = tmp_path / "job.yaml"
    manifest.write_text(json.dumps(edited(PARQUET)))  # JSON is YAML
    image = TrainerImage(FOUND)
    run(str(manifest), image, monkeypatch)
    ((role, job, request),) = image.requests
    assert (role, request) == ("inspect", InspectionRequest(None))
    assert job is not None
    assert job.data.uri == "s3://clicks/day=*/"


@pytest.mark.parametrize(
    ("auc", "entropy", "words"),
    [
        (0.71234567, 0.9, "AUC 0.71235, log loss 0.50000, normalised entropy 0.90000, calibration 1.2500, recall 0.75"),
        (None, None, "AUC not defined, all labels are the same, log loss 0.50000, calibration 1.2500, recall 0.75"),
    ],
)
def test_evaluate_prints_scores(auc: float | None, entropy: float | None, words: str) -> None:
    metrics = (("calibration", 1.25), ("recall", 0.75))
    image = TrainerImage(Evaluation(1500, 100, auc, 0.5, metrics, entropy, 1.25))
    job = to_job_spec(parse_spec(edited(PARQUET)["spec"]), "u", "n")
    console = Console(file=io.StringIO(), width=200)
    export.evaluate(Model(to_json(job), "the/anchor"), console, image, as_json=False)
    assert isinstance(console.file, io.StringIO)
    output = console.file.getvalue()
    assert "step 1,500, 100 held-out samples" in output
    assert words in output
    assert image.requests == [("evaluate", job, EvaluationRequest("the/anchor"))]
    export.evaluate(Model(to_json(job), "the/anchor"), console, image, as_json=True)
    assert '"log_loss": 0.5' in console.file.getvalue()
