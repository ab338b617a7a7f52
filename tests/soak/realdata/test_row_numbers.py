"""`cprjob run` on a real ratings log with numeric ids: none is hashed, and a score is that of plain torch."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pytest
import torch
import yaml
from torch import Tensor, nn

from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.validate import parse_spec
from cpr_trainer.model.entrypoint import build_network
from support.oracle import exact_auc
from support.realdata import click_log
from support.runs import CPRJOB, run, small_job

pytestmark = [pytest.mark.dist, pytest.mark.realdata, pytest.mark.timeout(600)]

#: Rows of each table: one for each number up to the largest in the column.
ROWS = {"user": 5001, "item": 7391, "episodes": 1788}
RATE = 0.02


def ratings_job(path: Path, **table: Any) -> dict[str, Any]:
    """One pass over nine tenths of the ratings, with tables as large as their columns."""
    return small_job(
        model={
            "embeddingDim": 8,
            "bottomMlp": [8],
            "topMlp": [32, 1],
            "tables": [{"name": name, "rows": rows} | table for name, rows in ROWS.items()],
            "denseOptimizer": {"kind": "Adagrad", "learningRate": RATE},
            "sparseOptimizer": {"kind": "Adagrad", "learningRate": RATE},
        },
        data={
            "format": "TSV",
            "uri": str(path),
            "columns": {"labels": ["label"], "categories": [*ROWS]},
            "epochs": 1,
            "batchSize": 256,
            "holdOut": 0.1,
        },
    )


def held_out_auc(tmp_path: Path, job: dict[str, Any]) -> tuple[float, int]:
    """Train a job with `cprjob run`; return the AUC that `cprjob evaluate` finds, and of how many samples."""
    manifest = tmp_path / "ratings.yaml"
    manifest.write_text(yaml.safe_dump(job), "utf-8")
    code, _, output = run(tmp_path, manifest)
    assert code == 0, output
    command = (*CPRJOB, "evaluate", "--workdir", tmp_path / "work", "--json")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    score = json.loads(done.stdout)
    return score["auc"], score["samples"]


def plain_auc(path: Path, job: dict[str, Any], held_out: int) -> float:
    """Train the same network over an `nn.EmbeddingBag` for each column; return the AUC of the last rows."""
    table = pyarrow.csv.read_csv(path, parse_options=pyarrow.csv.ParseOptions(delimiter="\t", quote_char=False))
    ids = torch.from_numpy(np.stack([table[name].to_numpy() for name in ROWS], axis=1))
    labels = torch.from_numpy(table["label"].to_numpy().astype(np.float32))
    torch.manual_seed(0)
    network = build_network(to_job_spec(parse_spec(job["spec"]), "plain", "plain").model, 0)
    bags = [nn.EmbeddingBag(rows, 8, mode="sum") for rows in ROWS.values()]
    for bag in bags:
        nn.init.uniform_(bag.weight, -(bag.num_embeddings**-0.5), bag.num_embeddings**-0.5)
    parameters = [*network.parameters(), *(bag.weight for bag in bags)]
    optimizer = torch.optim.Adagrad(parameters, lr=RATE, eps=1e-8)

    def logits_of(samples: Tensor) -> Tensor:
        vectors = torch.stack([bag(ids[samples, t, None]) for t, bag in enumerate(bags)], dim=1)
        logits: Tensor = network(torch.zeros(len(samples), 13), vectors)
        return logits

    trained = len(labels) - held_out
    for samples in torch.randperm(trained).split(256):
        loss = nn.functional.binary_cross_entropy_with_logits(logits_of(samples), labels[samples])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        last = torch.arange(trained, len(labels))
        return exact_auc(logits_of(last).numpy(), labels[last].numpy())


def test_row_numbers_score_as_plain_torch_does(tmp_path: Path) -> None:
    path = click_log("anime_420k.tsv.gz")
    job = ratings_job(path, ids="RowNumber")
    found, samples = held_out_auc(tmp_path, job)
    assert samples == 41_994, "a tenth of all ratings"
    assert found == pytest.approx(plain_auc(path, job, samples), abs=0.002)


@pytest.mark.parametrize("kind", ["Adam", "RowWiseAdagrad"])
def test_number_of_trainers_does_not_change_the_score(tmp_path: Path, kind: str) -> None:
    """Adam's step does not shrink with the gradient: an update for each push would learn faster with more trainers."""
    scores = {}
    for trainers in (1, 2, 3, 4):
        job = ratings_job(click_log("anime_420k.tsv.gz"), ids="RowNumber")
        job["spec"]["trainers"] = job["spec"].get("trainers", {}) | {"replicas": trainers}
        job["spec"]["model"]["sparseOptimizer"] = {"kind": kind, "learningRate": 0.002 if kind == "Adam" else RATE}
        folder = tmp_path / str(trainers)
        folder.mkdir()
        scores[trainers], _ = held_out_auc(folder, job)
    print(kind, scores)
    assert max(scores.values()) - min(scores.values()) <= 0.0005


@pytest.mark.timeout(1800)
def test_rows_in_bf16_score_as_float32_does(tmp_path: Path) -> None:
    """The mean over five seeds: a single run differs by as much from one with another seed."""
    scores: dict[str, list[float]] = {"fp32": [], "bf16": []}
    for seed in range(5):
        for precision, found in scores.items():
            job = ratings_job(click_log("anime_420k.tsv.gz"), ids="RowNumber", precision=precision)
            job["spec"]["data"]["seed"] = seed
            folder = tmp_path / f"{precision}-{seed}"
            folder.mkdir()
            found.append(held_out_auc(folder, job)[0])
    print(scores)
    assert abs(np.mean(scores["bf16"]) - np.mean(scores["fp32"])) <= 0.0005
