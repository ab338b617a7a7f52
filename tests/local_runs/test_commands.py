"""Smoke tests of the program: a job on this machine with a kill becomes a served model, and a stopped job resumes."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from support.oracle import exact_auc, log_loss
from support.runs import CPRJOB, incarnations, living, run, small_job, started, status, until

pytestmark = pytest.mark.dist

EXAMPLES = Path(__file__).parents[2] / "examples"
SERVE = EXAMPLES / "serve.py"
ROWS, HELD_OUT, EPOCHS, BATCH = 4_000, 1_000, 10, 100
#: Packages of the trainer, which serving does not import.
TRAINERS = ("torch", "safetensors", "minio", "pydantic", "onnxruntime")


def write_job(folder: Path, epochs: int = EPOCHS) -> Path:
    """Write clicks on items, each with a chance of its own, and the job that learns them; return its manifest."""
    random = np.random.default_rng(1)
    item = random.integers(0, 100, ROWS)
    chance = 1 / (1 + np.exp(-np.random.default_rng(0).normal(0, 2, 100)[item]))
    clicks = (random.random(ROWS) < chance).astype(np.int64)
    items = [f"item-{each}" for each in item]
    table = pa.table({"click": clicks, "price": random.normal(size=ROWS), "user": random.integers(0, 300, ROWS)})
    (folder / "clicks").mkdir()
    pq.write_table(table.append_column("item", [items]), folder / "clicks" / "rows.parquet", row_group_size=1000)
    document = small_job(
        ttlSecondsAfterFinished=0,  # `cprjob export` needs the run
        managedBy="kueue.x-k8s.io/multikueue",  # no other cluster runs it
        accuracyBudget={"portionOfLostSamples": 0},
        recovery={"replay": {"mode": "Required", "memory": "64Mi"}},
        trainers={"workers": 1},
        model={
            "embeddingDim": 4,
            "bottomMlp": [8, 4],
            "topMlp": [8, 1],
            "numeric": 1,
            "tables": [{"name": name, "rows": 500} for name in ("user", "item")],
        },
        data={
            "format": "Parquet",
            "uri": f"{folder}/clicks/",
            "epochs": epochs,
            "batchSize": BATCH,
            "columns": {"labels": ["click"], "numbers": ["price"], "categories": ["user", "item"]},
            "holdOut": HELD_OUT / ROWS,
        },
    )
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(document), "utf-8")
    return path


def cprjob(*arguments: object, **variables: str) -> str:
    command = (*CPRJOB, *map(str, arguments))
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_run_with_a_killed_pod_is_evaluated_exported_and_served_without_the_trainer(tmp_path: Path) -> None:
    code, report, output = run(tmp_path, write_job(tmp_path), "--kill", "shard/1@0.1:POD")
    assert code == 0, output
    assert (report["phase"], report["samples"]) == ("Succeeded", EPOCHS * (ROWS - HELD_OUT))
    assert incarnations(report) == {"shard/0": 1, "shard/1": 2, "trainer/0": 1}
    (failure,) = report["failures"]
    assert (failure["kind"], failure["tier"], failure["action"]) == ("Killed", "NewPod", "ReplaceShards")
    assert (failure["lost_samples"], failure["lost_row_updates"], report["budget"]["spent"]) == (0, 0, 0)
    assert report["replayed_samples"] > 0
    assert "SIGKILL to all of shard/1" in output
    until(lambda: not living(tmp_path))

    score = json.loads(cprjob("evaluate", "--workdir", tmp_path / "work", "--json"))
    assert score["samples"] == HELD_OUT
    assert score["auc"] > 0.75
    cprjob("export", "--workdir", tmp_path / "work", "--to", tmp_path / "model")
    absent = tmp_path / "absent"
    absent.mkdir()
    for package in TRAINERS:
        (absent / f"{package}.py").write_text(f"raise ImportError('{package} is not here')", "utf-8")
    rows = pq.read_table(tmp_path / "clicks" / "rows.parquet").slice(ROWS - HELD_OUT)
    pq.write_table(rows, tmp_path / "rows.parquet")
    served = subprocess.run(
        [sys.executable, SERVE, tmp_path / "model", tmp_path / "rows.parquet"],
        env=os.environ | {"PYTHONPATH": str(absent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert served.returncode == 0, served.stderr
    logits, labels = np.array(served.stdout.split(), float), rows["click"].to_numpy()
    assert score["auc"] == pytest.approx(exact_auc(logits, labels), abs=1e-3)
    assert score["log_loss"] == pytest.approx(log_loss(logits, labels), rel=1e-4)


def test_example_of_data_that_arrives_is_interrupted_and_trains_the_rest_once_it_resumes(tmp_path: Path) -> None:
    """One file comes while the job is stopped. The job waits for more at the end of its data."""
    log = tmp_path / "log"

    def write(files: int) -> None:
        command = [sys.executable, str(EXAMPLES / "stream_clicks.py"), str(log), "--every", "0", "--files", str(files)]
        subprocess.run(command, check=True, capture_output=True)

    def train(samples: int, *arguments: object) -> None:
        """Run the job, and interrupt it once it has trained this many samples."""

        def trained() -> bool:
            found = status(tmp_path)
            voids = found.get("data", {}).get("voidSamples", 0)
            return bool(found.get("progress", {}).get("samples", 0) - voids >= samples)

        with started(tmp_path, *arguments) as process:
            until(trained)
            process.send_signal(signal.SIGINT)
            assert process.wait() == 130
        until(lambda: not living(tmp_path))

    write(19)
    train(1, EXAMPLES / "stream.yaml", "--set", f"data.uri={log}/*.jsonl")
    write(1)
    train(20 * 2000, "--resume")
    report = json.loads((tmp_path / "report.json").read_text())
    data = report["data"]
    assert (data["ended"], data["late_files"], data["lag_samples"]) == (False, 0, 0)
    assert report["samples"] - data["void_samples"] == 20 * 2000
    assert (report["budget"]["spent"], report["failures"]) == (0, [])


@pytest.mark.parametrize("end", ["pipe", "terminal", "hangup"])
def test_run_with_closed_output_saves_everything(tmp_path: Path, end: str) -> None:
    mine, its = pty.openpty() if end == "terminal" else os.pipe()
    # It trains until it is stopped: a closed pipe is noticed at the next line of output.
    command = (*CPRJOB, "run", str(write_job(tmp_path, 100 * EPOCHS)), "--workdir", str(tmp_path / "work"))
    # Under nohup the tests inherit an ignored SIGHUP, and so would the command.
    inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with (tmp_path / "errors.txt").open("wb") as errors:
        process = subprocess.Popen(command, stdout=its, stderr=errors, start_new_session=True)
    signal.signal(signal.SIGHUP, inherited)
    os.close(its)
    os.set_blocking(mine, False)

    def is_training() -> bool:
        with contextlib.suppress(BlockingIOError):
            os.read(mine, 1 << 20)  # a terminal without a reader stops the program
        return bool(status(tmp_path).get("progress", {}).get("samples"))

    until(is_training)
    if end == "hangup":
        process.send_signal(signal.SIGHUP)
        until(lambda: status(tmp_path)["phase"] in {"Suspending", "Suspended"})
        process.send_signal(signal.SIGHUP)  # a terminal sends it, and so does its shell
    else:
        os.close(mine)
    assert process.wait() == 130
    assert status(tmp_path)["phase"] == "Suspended"
    assert status(tmp_path)["anchors"]
    output = (tmp_path / "errors.txt").read_text("utf-8")
    assert ("To resume the job: cprjob run --resume" in output) is (end != "hangup")
    if end == "hangup":
        os.close(mine)


def test_interrupted_run_resumes_with_another_number_of_shards(tmp_path: Path) -> None:
    with started(tmp_path, write_job(tmp_path, 4 * EPOCHS)) as process:
        until(lambda: status(tmp_path).get("progress", {}).get("samples"))
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    until(lambda: not living(tmp_path))
    assert f"cprjob run --resume --workdir {tmp_path / 'work'}" in (tmp_path / "output.txt").read_text()
    (anchor,) = status(tmp_path)["anchors"][-1:]
    code, report, output = run(tmp_path, "--resume", "--set", "shards.replicas=3")
    assert code == 0, output
    assert "2 shards become 3" in output
    assert incarnations(report) == {"shard/0": 2, "shard/1": 2, "shard/2": 2, "trainer/0": 2}
    assert status(tmp_path)["forks"][-1]["anchor"] == anchor
    assert report["samples"] == 4 * EPOCHS * (ROWS - HELD_OUT)
    assert (report["budget"]["spent"], report["failures"]) == (0, [])
