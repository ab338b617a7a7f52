"""`cprjob bench priority` for real: the trainer image's own training and trackers, on small data."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.realdata import click_log

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]

CPRJOB = (sys.executable, "-c", "from cpr_operator.cli import main; main()")
STRATEGIES = {"Full", "MFU", "SSU", "SCAR", "Growth", "Anchors"}


def bench(data: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = (*CPRJOB, "bench", "priority", "--data", str(data), *arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert set(found["strategies"]) == STRATEGIES
    return found


@pytest.fixture
def ratings(tmp_path: Path) -> Path:
    """Users and items, few of them in most rows: what a row's label is follows from both."""
    rng = random.Random(1)
    lines = ["label\tuser\titem\n"]
    for _ in range(6000):
        user, item = int(rng.paretovariate(0.7)) % 300, int(rng.paretovariate(0.7)) % 200
        lines.append(f"{int((user + item) % 3 == 0)}\tu{user}\ti{item}\n")
    path = tmp_path / "ratings.tsv"
    path.write_text("".join(lines), "utf-8")
    return path


def test_strategies_are_measured_against_the_same_failures_and_volume(ratings: Path) -> None:
    found = answer(bench(ratings, "--seeds", "2", "--interval", "0.25", "--failures", "6", "--json"))
    assert [(run["seed"], run["strategy"]) for run in found["runs"][:2]] == [(1, "Full"), (1, "MFU")]
    full, mfu = found["strategies"]["Full"], found["strategies"]["MFU"]
    anchors = found["strategies"].pop("Anchors")
    assert anchors["rows_written"] < full["rows_written"]
    for name, each in found["strategies"].items():
        assert each["lost_row_updates"]["mean"] > 0
        # A save's share is rounded down to whole rows of each shard, of which there are few here.
        assert each["rows_written"] == pytest.approx(full["rows_written"], rel=0.3), name
    assert mfu["portion_of_lost_samples"] > full["portion_of_lost_samples"], "it saves everything half as often"
    assert found["best"] in STRATEGIES - {"Anchors"}


def test_a_run_that_is_too_short_says_what_to_change(ratings: Path) -> None:
    done = bench(ratings, "--seeds", "2", "--fraction", "0.001")
    assert done.returncode == 1
    assert "does not fit a run of 47 steps" in done.stderr
    assert "a fraction of it of a step or more" in done.stderr


@pytest.mark.realdata
@pytest.mark.parametrize("name", ["anime_420k.tsv.gz", "criteo_80k.tsv.gz"])
def test_real_data_is_taken_as_it_is(name: str) -> None:
    path = click_log(name)
    options = ("--seeds", "2", "--failures", "6", "--set", "data.samples=10000", "--set", "data.epochs=null", "--json")
    found = answer(bench(path, *options))
    assert found["data"] == name
    assert all(each["auc_drop"]["mean"] != 0 for each in found["strategies"].values())
