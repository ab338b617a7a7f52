"""`cprjob bench train` as a user starts it: every contender trains the very job that the options ask for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cpr_contract.codec import from_json
from cpr_contract.processor import is_emulated, read_cpuinfo
from cpr_contract.spec import JobSpec

pytestmark = [
    pytest.mark.dist,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        is_emulated("bf16", "cpu", read_cpuinfo()), reason="this processor has no instructions for bf16"
    ),
]

CPRJOB = (sys.executable, "-c", "from cpr_operator.cli import main; main()")
SMALL = ("--rows=1000", "--precision=bf16", "--repeats=1", "--seconds=4")
PEER = """
import os, sys, time
open(sys.argv[1], "w").write(os.environ["CPR_SPEC"])
for step in range(1, 10**6):
    with open(os.environ["CPR_STEP_TRACE"], "a") as trace:
        trace.write('{"step": %d, "ended_s": %f, "stages_s": {}}\\n' % (step, time.monotonic()))
    time.sleep(0.02)
"""


def test_the_options_reach_every_contender_and_all_are_measured(tmp_path: Path) -> None:
    (tmp_path / "peer.py").write_text(PEER)
    peer = f"peer={sys.executable} {tmp_path}/peer.py {tmp_path}/job.json"
    numbers = {"trainers": 2, "shards": 3, "workers": 2}
    options = [f"--{name}={value}" for name, value in numbers.items()]
    done = subprocess.run(
        [*CPRJOB, "bench", "train", *options, *SMALL, "--peer", peer, "--json"],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert {name: told[name] for name in numbers} == numbers
    assert told["contenders"].keys() == {"single", "single-2", "cprjob", "peer"}
    assert all(found["samples_per_s"] > 0 for found in told["contenders"].values())
    job = from_json(JobSpec, (tmp_path / "job.json").read_text())
    assert {name: getattr(job, name) for name in numbers} == numbers
    assert job.precision == told["precision"] == "bf16"
    assert max(table.rows for table in job.model.tables) == told["rows"] == 1000
