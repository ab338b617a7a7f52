"""A model of a real run, served without its trainer in three formats, and rows that changed."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from numpy.typing import NDArray

import cpr_trainer.evaluate
from cpr_contract.codec import from_json, unpack
from cpr_contract.spec import JobSpec
from cpr_trainer.checkpoint.format.records import vocabularies_of
from cpr_trainer.data.source import open_dataset
from cpr_trainer.store import Uris, open_store
from support.fresh import environment
from support.runs import CPRJOB, run, small_job, status

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
ROWS, HELD_OUT = 12_000, 0.1
MODEL: dict[str, Any] = {
    "embeddingDim": 4,
    "bottomMlp": [8, 4],
    "topMlp": [8, 1],
    "numeric": 2,
    "tables": [
        {"name": "user", "rows": 3000, "ids": "XXH64", "hashSeed": 7},
        {"name": "item", "rows": 2000, "dim": 2},
        {"name": "site", "rows": 90, "ids": "RowNumber", "outOfRange": "DefaultRow"},
        {"name": "city", "rows": 61, "ids": "Vocabulary", "outOfRange": "DefaultRow"},
    ],
    "features": [
        {"name": "user", "column": "user_id", "table": "user"},
        {"name": "site", "column": "site", "table": "site"},
        {"name": "city", "column": "city", "table": "city"},
        {"name": "liked", "column": "liked", "table": "item", "pooling": "Sum", "weights": "stars"},
        {"name": "seen", "column": "seen", "table": "item", "pooling": "Mean", "maxLength": 3},
    ],
}


@dataclass(frozen=True)
class Trained:
    """A job that has ended. anchors: their keys, oldest first; the last one is its result."""

    folder: Path
    job: JobSpec
    rows: pa.Table
    anchors: tuple[str, ...]

    def export(self, to: Path | str, *options: str) -> Path:
        command = (*CPRJOB, "export", "--workdir", str(self.folder / "work"), "--to", str(to), *options)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return Path(to)


def visits() -> pa.Table:
    random = np.random.default_rng(1)
    liked = [random.integers(0, 5000, random.integers(0, 5)).tolist() for _ in range(ROWS)]
    return pa.table(
        {
            "click": random.integers(0, 2, ROWS),
            "views": random.integers(0, 9, ROWS),
            "price": random.normal(size=ROWS),
            "user_id": [f"user-{each}" for each in random.integers(0, 10_000, ROWS)],
            "site": random.integers(0, 100, ROWS),
            "city": [f"city-{each}" for each in random.integers(0, 70, ROWS)],
            "liked": liked,
            "stars": [random.random(len(each)).tolist() for each in liked],
            "seen": [random.integers(0, 5000, random.integers(0, 6)).tolist() for _ in range(ROWS)],
        }
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("trained")
    rows = visits()
    (folder / "visits").mkdir()
    pq.write_table(rows, folder / "visits" / "rows.parquet", row_group_size=4096)
    cities = folder / "cities.txt"
    cities.write_text("".join(f"city-{each}\n" for each in reversed(range(60))), "utf-8")
    model = copy.deepcopy(MODEL)
    model["tables"][3]["vocabulary"] = {"uri": str(cities)}
    columns = {"labels": ["click"], "counts": ["views"], "numbers": ["price"]}
    data = {"format": "Parquet", "uri": f"{folder}/visits/", "columns": columns, "epochs": 4, "holdOut": HELD_OUT}
    job = small_job(model=model, data=data | {"batchSize": 64})
    job["spec"]["snapshots"] |= {"keep": 50}
    (folder / "job.yaml").write_text(yaml.safe_dump(job), "utf-8")
    code, _, output = run(folder, folder / "job.yaml")
    assert code == 0, output
    end = status(folder)
    command = (*CPRJOB, "snapshots", "ls", "--workdir", folder / "work", "--json")
    listed = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    anchors = tuple(each["key"] for each in listed["points"] if each["kind"] == "Anchor")
    assert anchors[-1] == end["result"]["key"]
    assert len(anchors) > 2, "three are needed for two deltas"
    cities.write_text("another\n", "utf-8")  # The job has a copy.
    return Trained(folder, from_json(JobSpec, unpack(end["runtime"]["jobSpec"])), rows, anchors)


@pytest.fixture(scope="module")
def evaluated(trained: Trained) -> NDArray[np.float32]:
    """The logits of `cprjob evaluate`."""
    found: list[torch.Tensor] = []
    logits_of = cpr_trainer.evaluate.logits_of

    def noted(*arguments: Any) -> torch.Tensor:
        found.append(logits_of(*arguments))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpr_trainer.evaluate, "logits_of", noted)
        store = trained.job.snapshots.store
        objects = open_store(store, None, None)
        known = vocabularies_of(objects, trained.anchors[-1], trained.job.model)
        dataset = open_dataset(trained.job.data, trained.job.model, Uris(store), vocabularies=lambda _: known)
        cpr_trainer.evaluate.evaluate(trained.job, dataset, objects, trained.anchors[-1])
    logits: NDArray[np.float32] = torch.cat(found).numpy()
    return logits


def installed(folder: Path, *packages: str) -> dict[str, str]:
    """The variables of an environment with cprjob_serving and some packages, and without the trainer's."""
    variables = environment(folder)
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    for name in ("operator", "trainer_image"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    pip = folder / "venv" / "bin" / "pip"
    subprocess.run([pip, "install", "--quiet", f"{source}[serving]", *packages], env=variables, check=True)
    return variables


@pytest.mark.parametrize(
    ("form", "packages", "absent"),
    [
        ("safetensors", ("pyarrow",), ("torch", "onnxruntime", "safetensors")),
        ("onnx", ("pyarrow", "onnxruntime"), ("torch", "onnx", "safetensors")),
        ("torch-export", ("pyarrow", "torch"), ("onnx", "onnxruntime", "safetensors")),
    ],
)
def test_model_is_served_without_the_trainer(  # noqa: PLR0913, PLR0917 -- one case
    tmp_path: Path,
    trained: Trained,
    evaluated: NDArray[np.float32],
    form: str,
    packages: tuple[str, ...],
    absent: tuple[str, ...],
) -> None:
    model = trained.export(tmp_path / "model", "--format", form)
    pq.write_table(trained.rows.slice(ROWS - len(evaluated)), tmp_path / "rows.parquet")
    variables = installed(tmp_path, *packages)
    python = tmp_path / "venv" / "bin" / "python"
    looked = f"import importlib.util as i; print([n for n in {(*absent, 'minio', 'pydantic')} if i.find_spec(n)])"
    found = subprocess.run([python, "-c", looked], env=variables, stdout=subprocess.PIPE, text=True, check=True)
    assert found.stdout.strip() == "[]"
    command = [python, ROOT / "examples" / "serve.py", model, tmp_path / "rows.parquet"]
    served = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert served.returncode == 0, served.stderr
    logits = np.array(served.stdout.split(), float)
    assert len(evaluated) == ROWS * HELD_OUT
    assert evaluated.std() > 1e-3, "logits that are all the same would prove nothing"
    # A float32 of 8 and more tells no smaller differences than 1e-6 itself.
    assert (np.abs(logits - evaluated) / np.maximum(np.abs(evaluated), 1)).max() <= 1e-6


def files(folder: Path) -> dict[str, bytes]:
    """All files by name, without what a killed process has left of one."""
    found = (path for path in folder.rglob("*") if path.is_file() and ".writing-" not in path.name)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def test_model_and_two_deltas_are_the_whole_export(tmp_path: Path, trained: Trained) -> None:
    first, middle = trained.anchors[0], trained.anchors[len(trained.anchors) // 2]
    options = ("--format", "torch-export")
    base = trained.export(tmp_path / "base", "--anchor", first, *options)
    to_middle = trained.export(tmp_path / "delta1", "--anchor", middle, "--since", first, *options)
    to_last = trained.export(tmp_path / "delta2", "--since", middle, *options)
    whole = trained.export(tmp_path / "whole", *options)
    rows = json.loads((to_last / "delta.json").read_text())["rows"]
    assert 0 < rows["user"] < 3000, "only rows that changed"
    apply = (sys.executable, "-m", "cprjob_serving", "apply")
    wrong = subprocess.run([*apply, base, to_last, tmp_path / "no"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 1
    assert f"has the rows since {middle}, but {base} is of {first}" in wrong.stderr
    assert not (tmp_path / "no").exists()
    subprocess.run([*apply, base, to_middle, tmp_path / "one"], check=True)
    subprocess.run([*apply, tmp_path / "one", to_last, tmp_path / "two"], check=True)
    assert files(tmp_path / "one") != files(whole)
    assert files(tmp_path / "two") == files(whole)
