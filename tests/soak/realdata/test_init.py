"""`cprjob init`, `run` and `report` on the real click logs, without an edit: scores of at least the examples'."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from support.realdata import click_log
from support.runs import CPRJOB

pytestmark = [pytest.mark.dist, pytest.mark.realdata, pytest.mark.timeout(3600)]


def cprjob(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        (*CPRJOB, *arguments), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize(
    ("log", "example"),
    [
        ("anime_420k", 0.821),  # examples/ratings.yaml
        ("criteo_80k", 0.702),  # examples/public_logs/criteo-kaggle.yaml
    ],
)
def test_real_log_is_trained_in_three_commands(log: str, example: float, tmp_path: Path) -> None:
    """Held-out AUC of the same last tenth of the rows."""
    print(cprjob(tmp_path, "init", str(click_log(f"{log}.tsv.gz"))))
    cprjob(tmp_path, "run", f"{log.replace('_', '-')}.yaml", "--workdir", "work")
    assert "Succeeded" in cprjob(tmp_path, "report", "--workdir", "work")
    score = json.loads(cprjob(tmp_path, "evaluate", "--workdir", "work", "--json"))
    print(f"{log}: AUC {score['auc']:.4f}, log loss {score['log_loss']:.4f}, by the example {example}")
    assert score["auc"] >= example
