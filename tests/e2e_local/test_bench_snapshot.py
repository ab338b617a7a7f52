"""`cprjob bench snapshot` for real, on a small shard: what it answers, and that the answer agrees with itself."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cpr_contract import env
from cpr_contract.choices import Bits
from cpr_trainer.checkpoint.format.quantise import record_bytes
from support.s3_servers import running_minio

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]

CPRJOB = (sys.executable, "-c", "from cpr_operator.cli import main; main()")
ROWS, DIM = 20_000, 16
SMALL = ("--rows", str(ROWS), "--dim", str(DIM), "--limit", "2", "--repeats", "2", "--window", "0.3")
STRATEGIES = ("Full", "MFU", "SSU", "SCAR", "Growth")
BITS: tuple[Bits, ...] = (32, 8, 4, 3, 2)


def bench(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = (*CPRJOB, "bench", "snapshot", *arguments)
    environment: Mapping[str, str] = {**os.environ, **variables}
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, env=environment)


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def check_speeds(found: dict[str, Any]) -> None:
    for name in ("save", "restore"):
        assert {"gib_s", "raw_gib_s", "of_raw", "cpu_s_per_gib", "raw_cpu_s_per_gib"} == found[name].keys()
        assert all(value > 0 for value in found[name].values())
    for name in ("push_p50_ms", "push_p99_ms", "lookup_p50_ms", "lookup_p99_ms"):
        assert {"idle", "saving", "ratio"} == found[name].keys()
        assert all(value > 0 for value in found[name].values())
    for kind in ("push", "lookup"):
        for state in ("idle", "saving"):
            assert found[f"{kind}_p50_ms"][state] <= found[f"{kind}_p99_ms"][state]
    assert found["pause_ms"] > 0


def test_the_answer_agrees_with_itself(tmp_path: Path) -> None:
    found = answer(bench(*SMALL, "--store", tmp_path.as_uri(), "--json"))
    check_speeds(found)
    assert found["shard_mib"] == ROWS * (DIM + 1) * 4 / (1 << 20)
    assert found["extra_memory_mib"] > 0
    assert list(found["bytes"]) == list(STRATEGIES)
    quota = ROWS // 8
    for strategy, sizes in found["bytes"].items():
        rows = found["rows_saved"][strategy]
        assert list(sizes) == [str(bits) for bits in BITS]
        assert quota < rows <= ROWS if strategy == "Full" else 0 < rows <= quota
        for bits in BITS:
            rest = sizes[str(bits)] - rows * (record_bytes(DIM, bits) + 4)  # the state of the optimizer is exact
            assert 0 < rest < 4 * rows + 8192, "places, and the manifest"
    trackers = found["tracker_bytes"]
    assert trackers["Full"] == 0
    assert trackers["MFU"] == trackers["Growth"] == 4 * ROWS
    assert trackers["SCAR"] > 4 * DIM * ROWS
    assert 0 < trackers["SSU"] <= 4 * quota + 32
    assert list(tmp_path.iterdir()) == [], "all that was written is gone"


def test_the_tables_are_for_people(tmp_path: Path) -> None:
    done = bench(*SMALL, "--strategy", "MFU", "--bits", "8", "--bits", "2")
    assert done.returncode == 0, done.stderr
    for words in ("of raw", "lookup, p99", "Pause at a cut", "8 bits", "2 bits", "MFU"):
        assert words in done.stdout
    assert "SCAR" not in done.stdout
    assert "3 bits" not in done.stdout


@pytest.mark.store
def test_a_bucket_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    with running_minio(tmp_path) as server:
        spec = server.new_bucket()
        client = server.client()
        client.put_object(spec.bucket, "mine/before", data=io.BytesIO(b"mine"), length=4)
        options = ("--store", f"s3://{spec.bucket}/mine", "--endpoint", server.endpoint, "--strategy", "Full", "--json")
        found = answer(bench(*SMALL, *options, **{env.CREDENTIALS_DIR: str(server.credentials_dir)}))
        assert [entry.object_name for entry in client.list_objects(spec.bucket, recursive=True)] == ["mine/before"]
    check_speeds(found)
    assert list(found["bytes"]) == ["Full"]


@pytest.mark.store
def test_a_store_that_refuses_says_so(tmp_path: Path) -> None:
    with running_minio(tmp_path) as server:
        options = ("--store", "s3://nowhere", "--endpoint", server.endpoint)
        done = bench(*SMALL, *options, **{env.CREDENTIALS_DIR: str(server.credentials_dir)})
    assert done.returncode == 1
    assert "no bucket nowhere" in done.stderr
