"""`cprjob bench recovery` as a user starts it: a process and a pod are killed, and both pauses are printed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]

CPRJOB = (sys.executable, "-c", "from cpr_operator.cli import main; main()")


def test_a_pause_is_timed_in_each_tier() -> None:
    options = ("--tier=InPlace", "--tier=Spare", "--tier=NewPod", "--size=2", "--runs=1", "--json")
    ran = subprocess.run((*CPRJOB, "bench", "recovery", *options), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert {tier: {size: each["runs"] for size, each in sizes.items()} for tier, sizes in found.items()} == {
        "InPlace": {"2": 1},
        "Spare": {"2": 1},
        "NewPod": {"2": 1},
    }
    assert all(0 < sizes["2"]["p50_s"] == sizes["2"]["p99_s"] for sizes in found.values())
    told = [line.partition(", ")[0] for line in ran.stderr.splitlines()]
    assert told == ["InPlace", "Spare", "NewPod"]
    assert all(line.endswith(f", {tier})") for line, tier in zip(ran.stderr.splitlines(), told, strict=True))
