"""`cprjob bench redundancy` as a user starts it: every mode trains, and loses a shard where it can have it again."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]

CPRJOB = (sys.executable, "-c", "from cpr_operator.cli import main; main()")
OPTIONS = ("--rows=500", "--repeats=1", "--seconds=12", "--size=1", "--runs=1", "--json")


def test_every_mode_is_measured_and_what_must_hold_between_them_does() -> None:
    ran = subprocess.run((*CPRJOB, "bench", "redundancy", *OPTIONS), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    modes = told["modes"]
    assert {name: mode["data_shards"] for name, mode in modes.items()} == {
        "none": 0,
        "replay": 0,
        "parity-1": 1,
        "parity-2": 2,
        "parity-4": 4,
        "eager": 4,
    }
    assert modes["none"]["throughput_of_none"] == 1.0
    assert all(mode["throughput_of_none"] > 0 for mode in modes.values())

    sent = {name: mode["network_bytes_per_sample"] for name, mode in modes.items()}
    # Where a step takes as long as passes between two flushes, lazy parity sends as much as eager parity.
    assert min(sent[name] for name in ("parity-1", "parity-2", "parity-4", "eager")) > sent["none"] > 0

    parity = {name: mode["parity_memory"] for name, mode in modes.items()}
    assert parity["none"] == parity["replay"] == 0
    # All rows once, by k; parts are of the largest shard's size, and a byte of each row says whether it ever changed.
    for k in (1, 2, 4):
        assert 1 / k <= parity[f"parity-{k}"] < 1.2 / k
    assert 1 / 4 <= parity["eager"] < 1.1 / 4
    assert (modes["none"]["log_memory"], modes["eager"]["log_memory"]) == (0, 0)
    assert min(modes[name]["log_memory"] for name in ("replay", "parity-1", "parity-2", "parity-4")) > 0
    assert all(mode["extra_memory"] == mode["parity_memory"] + mode["log_memory"] for mode in modes.values())

    for name, mode in modes.items():
        found, known = mode["recovery"]["1"], name not in {"none", "eager"}
        assert found["kills"] == known
        assert (found["seconds_to_next_step"] is not None) == (found["rebuild_gib_s"] is not None) == known
        nulls = {figure for figure, value in found.items() if value is None}
        assert nulls == set(found["why_null"])
        if name.startswith("parity"):
            assert found["redundant_again_s"] > found["seconds_to_next_step"] > 0
    killed = [line for line in ran.stderr.splitlines() if "kill 1" in line]
    assert [line.partition(",")[0] for line in killed] == ["replay", "parity-1", "parity-2", "parity-4"]
    assert [line.endswith("(Parity)") for line in killed] == [False, True, True, True]
