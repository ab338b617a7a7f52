"""A model trained on another set of tables goes on by name: a real job, and a real one that starts from it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

from support.runs import CPRJOB, run, small_job, status

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]

#: Steps that change no float32 of the order of a first value: the end has, bit for bit, what the job began with.
STILL = {"kind": "SGD", "learningRate": 1e-30}
MOVING = {"kind": "SGD", "learningRate": 0.1}
MODEL = {"embeddingDim": 8, "bottomMlp": [16, 8], "topMlp": [16, 1]}
DAY_1 = [{"name": "users", "rows": 3000}, {"name": "pages", "rows": 700}, {"name": "shops", "rows": 500, "dim": 4}]
DAY_2 = [
    {"name": "cities", "rows": 400},
    {"name": "visitors", "rows": 3000},
    {"name": "shops", "rows": 1000, "dim": 4},
    {"name": "hours", "rows": 24},
]


def job(tables: list[dict[str, Any]], optimizer: dict[str, Any], seed: int, samples: int, **spec: Any) -> str:
    model = {**MODEL, "tables": tables, "sparseOptimizer": optimizer, "denseOptimizer": optimizer}
    data = {"format": "Synthetic", "samples": samples, "batchSize": 64, "seed": seed}
    return yaml.safe_dump(small_job(model=model, data=data, **spec))


def model(folder: Path) -> dict[str, Tensor]:
    to = folder / "model"
    subprocess.run((*CPRJOB, "export", "--workdir", folder / "work", "--to", to), check=True)
    tables = {path.stem: load_file(path)["weight"] for path in (to / "tables").iterdir()}
    return load_file(to / "dense.safetensors") | tables


def trained(folder: Path, manifest: str, *options: str) -> tuple[int, str]:
    folder.mkdir(exist_ok=True)
    path = folder / "job.yaml"
    path.write_text(manifest, "utf-8")
    code, _, output = run(folder, path, *options)
    return code, " ".join(output.split())


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished job of the first day."""
    folder = tmp_path_factory.mktemp("by-name") / "day-1"
    code, output = trained(folder, job(DAY_1, MOVING, 1, 20_000, shards={"replicas": 3}))
    assert code == 0, output
    return folder


def next_day(folder: Path, first: Path, *options: str, **rules: Any) -> tuple[int, str]:
    restore = {"anchor": status(first)["result"]["key"], **rules}
    store = f"snapshots.store={{endpoint: 'file://{first}/work/store', bucket: saves}}"
    return trained(folder, job(DAY_2, STILL, 2, 6400, restoreFrom=restore), "--set", store, *options)


def test_the_next_day_has_other_tables(tmp_path: Path, first: Path) -> None:
    second = tmp_path / "day-2"
    mapped = [{"table": "visitors", "from": "users"}]
    rules: dict[str, Any] = {"missing": "Initialise", "extra": "Ignore", "resized": "Rehash", "map": mapped}
    code, output = next_day(second, first, "--kill", "shard/1@0.5:POD", **rules)
    assert code == 0, output
    old, new = model(first), model(second)
    assert torch.equal(new["visitors"], old["users"])
    assert torch.equal(new["shops"], old["shops"].repeat(2, 1))
    assert new["cities"].abs().max() <= (1 / 400) ** 0.5
    same = [name for name in new if name in old and new[name].shape == old[name].shape]
    assert {"bottom.0.weight", "top.2.bias"} <= set(same)
    assert all(torch.equal(new[name], old[name]) for name in same)
    assert any(name.startswith("top.") and name in old and name not in same for name in new), "it sees more pairs"


def test_what_is_not_allowed_is_told_by_field_and_ends_the_job(tmp_path: Path, first: Path) -> None:
    second = tmp_path / "day-2"
    code, output = next_day(second, first, extra="Ignore")
    assert code == 1
    assert "spec.model.tables[2].rows: table shops of the anchor has 500, shops has 1000." in output
    assert "or spec.restoreFrom.resized to Rehash with a multiple of 500" in output
    assert status(second)["phase"] == "Failed"
