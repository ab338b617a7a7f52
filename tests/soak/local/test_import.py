"""`cprjob import`, then `cprjob run`: a job starts from the state dict of a model of plain torch, bit for bit."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from cpr_trainer.importing.row_keys import keys_of
from support.runs import CPRJOB, run, small_job

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]

#: Steps that change no float32 of the order of a first value: the end has, bit for bit, what the job began with.
STILL = {"kind": "SGD", "learningRate": 1e-30}
ROWS = {"user": 3000, "item": 700}
LAYERS = {"bottom.0": (13, 16), "bottom.2": (16, 8), "top.0": (8 + 3, 16), "top.2": (16, 1)}


def state_dict() -> dict[str, torch.Tensor]:
    """Return parameters under the names that a wrapper of torch gives, and those of a DLRM."""
    torch.manual_seed(7)
    layers = {f"{name}.{kind}": 0.1 * torch.randn(shape) for name, (inputs, outputs) in LAYERS.items()
              for kind, shape in (("weight", (outputs, inputs)), ("bias", (outputs,)))}  # fmt: skip
    tables = {f"embedding_bags.t_{name}.weight": 0.1 * torch.randn(rows, 8) for name, rows in ROWS.items()}
    return {f"module.{name}": value for name, value in (layers | tables).items()}


def manifest(folder: Path, ids: str = "RowNumber", **spec: Any) -> Path:
    """Write a job on ids below 50, with a folder as its store."""
    rows = [f"{n % 2},{n},{n % 50},{n % 20}" for n in range(2000)]
    (folder / "clicks.csv").write_text("\n".join(("label,price,user,item", *rows, "")), "utf-8")
    capacity = 8192 if ids == "Dynamic" else 0
    tables = [{"name": name, "rows": capacity or rows, "ids": ids} for name, rows in ROWS.items()]
    model = {"embeddingDim": 8, "bottomMlp": [16, 8], "topMlp": [16, 1], "tables": tables}
    columns = {"labels": ["label"], "numbers": ["price"], "categories": [*ROWS]}
    job = small_job(
        model={**model, "denseOptimizer": STILL, "sparseOptimizer": STILL},
        data={"format": "CSV", "uri": f"{folder}/clicks.csv", "columns": columns, "epochs": 1, "batchSize": 64},
        **spec,
    )
    job["spec"]["snapshots"]["store"] = {"endpoint": f"file://{folder}/store", "bucket": "saves"}
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job), "utf-8")
    return path


def cprjob(*arguments: object) -> str:
    done = subprocess.run((*CPRJOB, *map(str, arguments)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_job_starts_from_an_import_bit_for_bit(tmp_path: Path) -> None:
    tensors = state_dict()
    save_file(tensors, tmp_path / "ranker.safetensors")
    renamed = [word for name in ROWS for word in ("--map", f"embedding_bags.t_{name}.weight={name}")]
    output = cprjob(
        "import", manifest(tmp_path), "--from", tmp_path / "ranker.safetensors", "--name", "ranker", *renamed
    )
    rules = yaml.safe_load(output.partition("Start from it by\n")[2])["restoreFrom"]
    assert rules == {"anchor": "import-ranker/gen-0001/dense/group-0001/step-000000000/manifest.json"}
    code, _, output = run(tmp_path, manifest(tmp_path, restoreFrom=rules))
    assert code == 0, output
    cprjob("export", "--workdir", tmp_path / "work", "--to", tmp_path / "model")
    for name in ROWS:
        weight = load_file(tmp_path / "model" / "tables" / f"{name}.safetensors")["weight"]
        assert torch.equal(weight, tensors[f"module.embedding_bags.t_{name}.weight"])
    layers = load_file(tmp_path / "model" / "dense.safetensors")
    assert len(layers) == 2 * len(LAYERS)
    assert all(torch.equal(value, tensors[f"module.{name}"]) for name, value in layers.items())
    saves = f"file://{tmp_path}/store/saves"
    found = json.loads(cprjob("snapshots", "verify", saves, "--job", "import-ranker", "--json"))
    assert ([each["step"] for each in found["points"]], found["damaged"]) == ([0], [])


def test_job_finds_imported_rows_of_a_dynamic_table_by_their_ids(tmp_path: Path) -> None:
    torch.manual_seed(7)
    weights = {name: 0.1 * torch.randn(rows, 8) for name, rows in ROWS.items()}
    ids = {name: torch.randperm(rows) for name, rows in ROWS.items()}
    for name in ROWS:
        save_file({"weight": weights[name], "ids": ids[name]}, tmp_path / f"{name}.safetensors")
    sources = [word for name in ROWS for word in ("--from", tmp_path / f"{name}.safetensors")]
    job = manifest(tmp_path, "Dynamic")
    output = cprjob("import", job, *sources, "--name", "ranker", "--dense", "Initialise")
    rules = yaml.safe_load(output.partition("Start from it by\n")[2])["restoreFrom"]
    code, _, output = run(tmp_path, manifest(tmp_path, "Dynamic", restoreFrom=rules))
    assert code == 0, output
    cprjob("export", "--workdir", tmp_path / "work", "--to", tmp_path / "model")
    for name in ROWS:
        table = load_file(tmp_path / "model" / "tables" / f"{name}.safetensors")
        found = dict(zip(table["keys"].tolist(), table["weight"].tolist(), strict=True))
        keys = keys_of(ids[name].numpy(), 0).tolist()
        assert found == dict(zip(keys, weights[name].tolist(), strict=True)), name
