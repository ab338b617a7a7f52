"""`cprjob bench recovery` as a user starts it: a process and a pod are killed, and both pauses are printed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.dist, pytest.mark.timeout(300)]

CPRJOB = (sys.executable, "-c", "from cpr_operator.cli import main; main()")


def test_a_pause_is_timed_in_each_tier() -> None:
    options = ("--tier=InPlace", "--tier=NewPod", "--size=2", "--runs=1", "--json")
    ran = subprocess.run((*CPRJOB, "bench", "recovery", *options), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert {tier: {size: each["runs"] for size, each in sizes.items()} for tier, sizes in found.items()} == {
        "InPlace": {"2": 1},
        "NewPod": {"2": 1},
    }
    assert all(0 < sizes["2"]["p50_s"] == sizes["2"]["p99_s"] for sizes in found.values())
    assert "InPlace, 2 MiB, run 1" in ran.stderr
    assert "InPlace)" in ran.stderr, "the process came back in its pod"
    assert "NewPod)" in ran.stderr
