"""A model of plain torch becomes an anchor, and a real job starts from it: `cprjob import`, then `cprjob run`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict_saver import save

from support.runs import CPRJOB, run, small_job

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]

#: Steps that change no float32 of the order of a first value: the end has, bit for bit, what the job began with.
STILL = {"kind": "SGD", "learningRate": 1e-30}
MODEL = {"embeddingDim": 8, "bottomMlp": [16, 8], "topMlp": [16, 1]}
ROWS = {"user": 3000, "item": 700, "shop": 500}
TABLES = [
    {"name": "user", "rows": 3000, "ids": "RowNumber", "optimizer": {"kind": "RowWiseAdagrad", "learningRate": 1e-30}},
    {"name": "item", "rows": 700, "ids": "RowNumber"},
    {"name": "shop", "rows": 500, "ids": "XXH64", "dim": 4},
]
LAYERS = {
    "bottom.0": (13, 16),
    "bottom.2": (16, 8),
    "top.0": (8 + 6, 16),
    "top.2": (16, 1),
    "projections.2": (4, 8),
}


def state_dict() -> dict[str, Tensor]:
    """A ranker of plain torch under a wrapper, with its layers called as those of the DLRM are."""
    torch.manual_seed(7)
    network = nn.Module()
    for name, (inputs, outputs) in LAYERS.items():
        layer = nn.Linear(inputs, outputs, bias=not name.startswith("projections"))
        parent, _, number = name.partition(".")
        if not hasattr(network, parent):
            network.add_module(parent, nn.Module())
        network.get_submodule(parent).add_module(number, layer)
    bags = nn.ModuleDict({f"t_{name}" if name == "user" else name: bag(name) for name in ROWS})
    network.add_module("embedding_bags", bags)
    return {f"module.{name}": value.detach() for name, value in network.state_dict().items()}


def bag(name: str) -> nn.EmbeddingBag:
    return nn.EmbeddingBag(ROWS[name], 4 if name == "shop" else 8)


def manifest(folder: Path, **spec: Any) -> Path:
    """A job on numbered rows, whose store is a folder."""
    data = folder / "clicks.csv"
    rows = [f"{n % 2},{n},{n % 50},{n % 20},s{n % 7}" for n in range(2000)]
    data.write_text("label,price,user,item,shop\n" + "\n".join(rows) + "\n", "utf-8")
    columns = {"labels": ["label"], "numbers": ["price"], "categories": ["user", "item", "shop"]}
    job = small_job(
        model={**MODEL, "tables": TABLES, "denseOptimizer": STILL, "sparseOptimizer": STILL},
        data={"format": "CSV", "uri": str(data), "columns": columns, "epochs": 1, "batchSize": 64},
        shards={"replicas": 3},
        **spec,
    )
    job["spec"]["snapshots"]["store"] = {"endpoint": f"file://{folder}/store", "bucket": "saves"}
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job), "utf-8")
    return path


def imported(*arguments: object) -> tuple[int, str, str]:
    command = (*CPRJOB, "import", *map(str, arguments))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, " ".join(done.stderr.split())


def started(folder: Path, rules: dict[str, Any]) -> dict[str, Tensor]:
    """Run a job that starts so, and return its model."""
    code, _, output = run(folder, manifest(folder, restoreFrom=rules))
    assert code == 0, output
    to = folder / "model"
    subprocess.run((*CPRJOB, "export", "--workdir", folder / "work", "--to", to), check=True)
    tables = {path.stem: load_file(path)["weight"] for path in (to / "tables").iterdir()}
    return load_file(to / "dense.safetensors") | tables


def saved(folder: Path, form: str, tensors: dict[str, Tensor]) -> Path:
    path = folder / "elsewhere"
    if form == "dcp":
        with pytest.warns(UserWarning, match="single process"):
            save({"model": tensors, "step": 3}, checkpoint_id=path, no_dist=True)
    else:
        path.mkdir()
        half = len(tensors) // 2
        for number, names in enumerate(([*tensors][:half], [*tensors][half:])):
            save_file({name: tensors[name] for name in names}, path / f"model-{number}.safetensors")
    return path


@pytest.mark.parametrize("form", ["safetensors", "dcp"])
def test_job_starts_from_a_state_dict_bit_for_bit(tmp_path: Path, form: str) -> None:
    tensors = state_dict()
    source = saved(tmp_path, form, tensors)
    job, renamed = manifest(tmp_path), "embedding_bags.t_user.weight=user"
    code, output, errors = imported(job, "--from", source, "--name", "ranker", "--map", renamed)
    assert code == 0, errors
    rules = yaml.safe_load(output.partition("Start from it by\n")[2])["restoreFrom"]
    assert rules == {"anchor": "import-ranker/gen-0001/dense/group-0001/step-000000000/manifest.json"}
    model = started(tmp_path, rules)
    assert torch.equal(model["user"], tensors["module.embedding_bags.t_user.weight"])
    assert torch.equal(model["item"], tensors["module.embedding_bags.item.weight"])
    assert torch.equal(model["shop"], tensors["module.embedding_bags.shop.weight"])
    layers = {name: value for name, value in model.items() if name not in ROWS}
    assert len(layers) == 9
    assert all(torch.equal(value, tensors[f"module.{name}"]) for name, value in layers.items())
    listed = (*CPRJOB, "snapshots", "verify", f"file://{tmp_path}/store/saves", "--job", "import-ranker", "--json")
    found = json.loads(subprocess.run(listed, capture_output=True, check=True).stdout)
    assert ([each["step"] for each in found["points"]], found["damaged"]) == ([0], [])
