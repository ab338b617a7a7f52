"""`cprjob run` with two labels: the example, and a label that is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.runs import CPRJOB, incarnations, run
from support.two_labels import EXAMPLE

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]

NAMES = {"click.auc", "click.logloss", "buy.auc", "buy.logloss", "click.calibration", "buy.calibration"}


@pytest.fixture(autouse=True)
def network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLE), prepend=":")


def test_the_example_is_scored_by_label_though_a_shard_is_lost(tmp_path: Path) -> None:
    subprocess.run([sys.executable, EXAMPLE / "shop.py", tmp_path / "visits", "30000"], check=True)
    changes = (f"data.uri={tmp_path}/visits/", "data.epochs=2", "data.batchSize=64")
    settings = (word for change in changes for word in ("--set", change))
    code, report, output = run(tmp_path, EXAMPLE / "job.yaml", *settings, "--kill", "shard/1@0.5:POD")
    assert code == 0, output
    assert report["samples"] == 2 * 27_000
    assert incarnations(report) == {"shard/0": 1, "shard/1": 2, "trainer/0": 1, "trainer/1": 1}
    metrics = report["metrics"]
    assert metrics.keys() == NAMES
    assert (metrics["click.auc"], metrics["click.logloss"]) == (report["auc"], report["logloss"])
    assert metrics["buy.auc"] > 0.7
    assert 0.8 < metrics["buy.calibration"] < 1.25
    told = " ".join(output.split())
    assert f"buy.auc {metrics['buy.auc']:.4g}" in told
    command = (*CPRJOB, "evaluate", "--workdir", str(tmp_path / "work"))
    done = subprocess.run((*command, "--json"), capture_output=True, text=True, check=True)
    score = json.loads(done.stdout)
    assert score["samples"] == 3000
    assert dict(score["metrics"]).keys() == NAMES
    assert dict(score["metrics"])["buy.auc"] > 0.7
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"buy.auc {dict(score['metrics'])['buy.auc']:.5g}" in " ".join(shown.split())


def test_a_wrong_second_label_is_told_by_file_line_and_column(tmp_path: Path) -> None:
    (tmp_path / "visits.csv").write_text("click,buy,price,user,item\n1,0,0.5,a,b\n1,0.7,0.5,a,b\n")
    settings = (f"data.uri={tmp_path}/visits.csv", "data.format=CSV", "data.holdOut=0")
    words = (word for setting in settings for word in ("--set", setting))
    code, report, output = run(tmp_path, EXAMPLE / "job.yaml", *words)
    assert code == 1
    assert report["phase"] == "Failed"
    assert "visits.csv, line 3: column buy is '0.7', not 0 or 1" in " ".join(output.split())
