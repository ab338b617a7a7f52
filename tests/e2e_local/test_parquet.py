"""`cprjob run` on files: Parquet, and a shard that is killed half way."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from support.runs import CPRJOB, incarnations, run, small_job
from support.table_data import COLUMNS, clicks, write

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]


def test_a_job_on_two_files_survives_the_loss_of_a_shard(tmp_path: Path) -> None:
    data = write(clicks(12_000), tmp_path / "clicks", "parquet", files=2)
    job = small_job(
        model={
            "embeddingDim": 4,
            "bottomMlp": [8, 4],
            "topMlp": [8, 1],
            "tables": [{"name": "user", "rows": 100}, {"name": "item", "rows": 50}],
        },
        data={
            "format": "Parquet",
            "uri": data.uri,
            "columns": asdict(COLUMNS),
            "samples": 60_000,
            "batchSize": 64,
            "shuffleRows": 5000,
            "holdOut": 0.1,
        },
        trainers={"replicas": 2},
    )
    manifest = tmp_path / "parquet.yaml"
    manifest.write_text(yaml.safe_dump(job), "utf-8")
    # A save only at the end: a shard that dies right after one has lost nothing. The budget allows whatever one of two
    # shards can lose.
    options = (
        *("--set", "snapshots.interval.seconds=3600", "--set", "accuracyBudget.portionOfLostSamples=0.6"),
        *("--kill", "shard/1@0.3:POD"),
    )
    code, report, output = run(tmp_path, manifest, *options)
    assert code == 0, output
    assert report["samples"] == 60_000
    assert incarnations(report) == {"shard/0": 1, "shard/1": 2, "trainer/0": 1, "trainer/1": 1}
    assert 0 < report["budget"]["spent"] <= report["budget"]["limit"]
    command = (*CPRJOB, "evaluate", "--workdir", tmp_path / "work", "--json")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    score = json.loads(done.stdout)
    assert score["samples"] == 1200, "a tenth of all rows"
    assert score["step"] == -(-60_000 // 64)
    assert 0.4 < score["auc"] < 0.6, "labels are chance"


def test_a_bad_row_is_told_by_file_line_and_column(tmp_path: Path) -> None:
    (tmp_path / "clicks.csv").write_text("click,price,user\n1,0.5,a\n0,cheap,b\n")
    job = small_job(
        model={"embeddingDim": 4, "bottomMlp": [4], "topMlp": [1], "tables": [{"name": "user", "rows": 10}]},
        data={
            "format": "CSV",
            "uri": str(tmp_path / "clicks.csv"),
            "columns": {"labels": ["click"], "numbers": ["price"], "categories": ["user"]},
            "epochs": 1,
        },
    )
    manifest = tmp_path / "csv.yaml"
    manifest.write_text(yaml.safe_dump(job), "utf-8")
    code, report, output = run(tmp_path, manifest)
    assert code == 1
    assert report["phase"] == "Failed"
    assert "clicks.csv, line 3: column price is 'cheap', not a number or empty" in " ".join(output.split())
