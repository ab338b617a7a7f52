"""Smoke tests of `cprjob bench`: each command measures something small, and prints it as JSON."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.runs import CPRJOB

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]


def bench(*arguments: object) -> dict[str, Any]:
    command = (*CPRJOB, "bench", *map(str, arguments), "--json")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_recovery_times_a_pause_in_each_tier() -> None:
    found = bench("recovery", "--tier=InPlace", "--tier=Spare", "--tier=NewPod", "--size=2", "--runs=1")
    assert list(found) == ["InPlace", "Spare", "NewPod"]
    assert all(0 < sizes["2"]["p50_s"] == sizes["2"]["p99_s"] for sizes in found.values())


def test_redundancy_measures_every_mode_and_recovers_with_a_copy() -> None:
    modes = bench("redundancy", "--rows=500", "--repeats=1", "--seconds=12", "--size=1", "--runs=1")["modes"]
    assert list(modes) == ["none", "replay", "parity-1", "parity-2", "parity-4", "eager"]
    assert all(mode["throughput_of_none"] > 0 for mode in modes.values())


def test_snapshot_measures_speeds_pauses_and_bytes(tmp_path: Path) -> None:
    small = ("--rows", 20_000, "--dim", 16, "--limit", 2, "--repeats", 1, "--window", 0.3)
    found = bench("snapshot", *small, "--store", tmp_path.as_uri())
    assert min(found[name]["gib_s"] for name in ("save", "restore")) > 0
    assert found["pause_ms"] > 0
    assert list(found["bytes"]) == ["Full", "MFU", "SSU", "SCAR", "Growth"]
    assert list(tmp_path.iterdir()) == [], "all that was written is gone"


def test_train_measures_each_baseline() -> None:
    options = ("--trainers=2", "--shards=3", "--workers=2", "--rows=1000", "--repeats=1", "--seconds=4")
    found = bench("train", *options)
    assert found["contenders"].keys() == {"single", "single-2", "cprjob"}
    assert all(baseline["samples_per_s"] > 0 for baseline in found["contenders"].values())
    assert all(baseline["share_of_bound"] > 0 for baseline in found["contenders"].values())


def test_train_measures_a_network_of_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "examples" / "own_model"))
    found = bench("train", "--entrypoint=dcn:Dcn", "--rows=1000", "--repeats=1", "--seconds=4")
    assert found["contenders"].keys() == {"single", "cprjob"}, "its batch normalisation needs whole batches"
    assert [each["share_of_bound"] for each in found["contenders"].values()] == [None, None]


def test_scale_measures_each_curve() -> None:
    sizes = ("trainers=1,2", "rows=1e3,1e4", "features=2,26", "shards=1,2", "batch=64,256", "saves=1,2")
    found = bench("scale", *(f"--sizes={each}" for each in (*sizes, "documents=2x1,4x2", "passes=2x1,4x2")))
    jobs = {"shards", "trainers", "rows", "features", "batch"}
    assert found["curves"].keys() == jobs | {"roster", "rosters", "status", "pass", "save", "restore", "verify"}
    assert all(point["cost"] > 0 for curve in found["curves"].values() for point in curve["points"])
    assert found["skipped"] == []


def test_freshness_serves_every_click_and_times_holds() -> None:
    found = bench("freshness", "--seconds=10", "--repeats=1", "--window=4", "--size=8")
    assert (found["clicks"] > 0, found["not_served"]) == (True, 0)
    assert 0 < found["published_s"]["p50"] < found["served_s"]["p50"]
    assert found["samples_per_s"].keys() == {"published", "unpublished"}
    assert found["cpu_us_per_sample"]["published"]["publisher"] > 0
    assert found["hold"]["model_rows"] == 32_768


def test_priority_compares_strategies_under_the_same_failures(tmp_path: Path) -> None:
    rng = random.Random(1)
    lines = ["label\tuser\titem\n"]
    for _ in range(6000):
        user, item = int(rng.paretovariate(0.7)) % 300, int(rng.paretovariate(0.7)) % 200
        lines.append(f"{int((user + item) % 3 == 0)}\tu{user}\ti{item}\n")
    (tmp_path / "ratings.tsv").write_text("".join(lines), "utf-8")
    found = bench("priority", "--data", tmp_path / "ratings.tsv", "--seeds", 2, "--failures", 6, "--interval", "0.25")
    assert set(found["strategies"]) == {"Full", "MFU", "SSU", "SCAR", "Growth", "Anchors"}
    assert found["best"] in found["strategies"]
