"""`cprjob run` with evaluations on data of their own, by group, that end the job early: calm, and with kills."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from numpy.typing import NDArray

from support.runs import CPRJOB, incarnations, run, small_job, status

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
ROWS, SCORED, EVERY, PATIENCE = 8_000, 1_500, 4_000, 2
#: Both well before the earliest end, at (1 + PATIENCE) * EVERY samples: 0.19 of all. Steps are small, so that they take
#: seconds: kills are due by what the leader reported last.
KILLS = ("--kill", "shard/1@0.02:POD", "--kill", "trainer/0@0.06")


def clicks(rows: int, seed: int) -> pa.Table:
    """Each item has a chance of its own; 25 shops, the later ones small, and rows of no shop."""
    random = np.random.default_rng(seed)
    item = random.integers(0, 100, rows)
    chance = 1 / (1 + np.exp(-np.random.default_rng(0).normal(0, 2, 100)[item]))
    shops = np.minimum(random.geometric(0.15, rows), 25)
    return pa.table(
        {
            "click": (random.random(rows) < chance).astype(np.int64),
            "price": random.normal(size=rows),
            "user": random.integers(0, 300, rows),
            "item": [f"item-{each}" for each in item],
            "shop": [None if each == 3 else f"shop-{each}" for each in shops],
        }
    )


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pa.Table]:
    """The manifest of the job, and the rows that it is scored on."""
    folder, scored = tmp_path_factory.mktemp("data"), clicks(SCORED, 2)
    for name, table in (("train", clicks(ROWS, 1)), ("test", scored)):
        (folder / name).mkdir()
        pq.write_table(table, folder / name / "rows.parquet", row_group_size=1024)
    columns = {"labels": ["click"], "numbers": ["price"], "categories": ["user", "item"]}
    document = small_job(
        accuracyBudget={"portionOfLostSamples": 0},
        trainers={"workers": 1},  # each run would measure for itself
        recovery={"replay": {"mode": "Auto", "memory": "64Mi"}},
        model={
            "embeddingDim": 4, "bottomMlp": [8, 4], "topMlp": [8, 1], "numeric": 1,
            "tables": [{"name": "user", "rows": 500}, {"name": "item", "rows": 500}],
        },
        data={"format": "Parquet", "uri": f"{folder}/train/", "columns": columns, "epochs": 8, "batchSize": 20},
        evaluation={
            "everySamples": EVERY, "uri": f"{folder}/test/", "groupBy": "shop",
            "earlyStop": {"metric": "GAUC", "patience": PATIENCE, "minImprovement": 0.01},
        },
    )  # fmt: skip
    (folder / "job.yaml").write_text(yaml.safe_dump(document), "utf-8")
    return folder / "job.yaml", scored


def evaluated(folder: Path) -> subprocess.CompletedProcess[str]:
    command = (*CPRJOB, "evaluate", "--workdir", str(folder / "work"), "--json")
    return subprocess.run(command, capture_output=True, text=True, check=False)


def auc(logits: NDArray[np.float64], labels: NDArray[np.bool_]) -> float | None:
    """The share of pairs in the right order."""
    ones, zeros = logits[labels], logits[~labels]
    if not len(ones) or not len(zeros):
        return None
    differences = ones[:, None] - zeros[None, :]
    return float(((differences > 0) + (differences == 0) / 2).mean())


def test_a_job_with_kills_ends_early_where_one_without_does_and_is_scored_by_group(
    tmp_path: Path, job: tuple[Path, pa.Table]
) -> None:
    manifest, scored = job
    ends: list[tuple[Any, ...]] = []
    for name, kills in (("calm", ()), ("harmed", KILLS)):
        folder = tmp_path / name
        folder.mkdir()
        code, report, output = run(folder, manifest, *kills)
        assert code == 0, output
        end = status(folder)
        (complete,) = (each for each in end["conditions"] if each["type"] == "Complete")
        assert (complete["reason"], end["phase"]) == ("EarlyStopped", "Succeeded")
        best, progress = end["best"], end["progress"]
        assert end["result"] == best["anchor"]
        assert best["since"] == PATIENCE
        assert progress["samples"] == best["anchor"]["samples"] + PATIENCE * EVERY < 8 * ROWS
        assert report["best"]["value"] == best["value"]
        assert "held out" in output
        ends.append((progress["samples"], progress["heldOut"], best["value"], best["anchor"]["step"]))
    assert incarnations(report)["shard/1"] == 2
    assert len(report["failures"]) == 2
    assert report["lost_row_updates"] == 0
    assert ends[1] == ends[0]

    done = evaluated(folder)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["step"] == best["anchor"]["step"]
    assert found["gauc"] == pytest.approx(best["value"], abs=1e-6), (
        "the model that was the best is the one that is kept"
    )
    assert_groups_are_right(tmp_path, folder, scored, found)

    # What the job is scored on is what it began with.
    (manifest.parent / "test" / "rows.parquet").write_bytes(b"PAR1 changed")
    changed = evaluated(folder)
    assert changed.returncode != 0
    assert "test/rows.parquet" in changed.stdout + changed.stderr


def assert_groups_are_right(tmp_path: Path, folder: Path, scored: pa.Table, found: dict[str, Any]) -> None:
    """By the predictions of the exported model, which is the best one."""
    model, rows = tmp_path / "model", tmp_path / "rows.parquet"
    export = (*CPRJOB, "export", "--workdir", str(folder / "work"), "--to", str(model))
    subprocess.run(export, check=True, capture_output=True)
    pq.write_table(scored, rows)
    served = subprocess.run(
        [sys.executable, ROOT / "examples" / "serve.py", model, rows], capture_output=True, text=True, check=False
    )
    assert served.returncode == 0, served.stderr
    logits, labels = np.array(served.stdout.split(), float), scored["click"].to_numpy() == 1
    shops = np.array([each or "" for each in scored["shop"].to_pylist()])
    names, counts = np.unique(shops, return_counts=True)
    largest = names[np.argsort(-counts, kind="stable")][:20]
    assert [each["name"] for each in found["groups"]] == largest.tolist()
    assert "" in largest
    for each in found["groups"]:
        own = shops == each["name"]
        assert each["samples"] == own.sum()
        assert each["auc"] == pytest.approx(auc(logits[own], labels[own]), abs=1e-3)
    rest = ~np.isin(shops, largest)
    assert found["rest"]["samples"] == rest.sum() > 0
    assert found["rest"]["auc"] == pytest.approx(auc(logits[rest], labels[rest]), abs=1e-3)
    aucs = [
        (int(count), auc(logits[shops == name], labels[shops == name]))
        for name, count in zip(names, counts, strict=True)
    ]
    known = [(count, value) for count, value in aucs if value is not None]
    mean = sum(count * value for count, value in known) / sum(count for count, _ in known)
    assert found["gauc"] == pytest.approx(mean, abs=1e-3)
