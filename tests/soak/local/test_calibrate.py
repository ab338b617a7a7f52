"""`cprjob calibrate` with the trainer image's own training, on a small job."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from support.runs import CPRJOB, small_job

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]

SAMPLES, BATCH = 6400, 64


def test_calibration_measures_the_cost_of_losses(tmp_path: Path) -> None:
    job = small_job(
        accuracyBudget={"type": "AUCDrop", "aucDrop": {"limit": 0.001}},
        data={"format": "Synthetic", "samples": 10**9, "batchSize": BATCH, "seed": 4},
        shards={"replicas": 3},
    )
    manifest, plot = tmp_path / "small.yaml", tmp_path / "out.png"
    manifest.write_text(yaml.safe_dump(job), "utf-8")
    options = ("--levels", "0.1,0.5", "--seeds", "2", "--samples", str(SAMPLES), "--json", "--plot", plot)
    done = subprocess.run((*CPRJOB, "calibrate", manifest, *options), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    pairs = answer["pairs"]
    assert [(each["seed"], each["level"]) for each in pairs] == [(4, 0.1), (4, 0.5), (5, 0.1), (5, 0.5)]
    for each in pairs:
        # Two failures of two of three shards, each rounded to whole steps at both ends.
        assert each["pls"] == pytest.approx(each["level"], abs=2 * 2 / 3 * BATCH / SAMPLES)
        assert each["lost_row_updates"] > 0
    assert all(each["auc_drop"] > 0 for each in pairs if each["level"] == 0.5)
    assert answer["sensitivity"]["low"] < answer["sensitivity"]["estimate"] < answer["sensitivity"]["high"]
    assert plot.stat().st_size > 0
    assert "run 6 of 6: seed 5, PLS 0.5" in done.stderr
