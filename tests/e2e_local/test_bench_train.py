"""`cprjob bench train` for real: both contenders train, CPRJob saves meanwhile, and the figures come out."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.dist, pytest.mark.timeout(300)]

CPRJOB = (sys.executable, "-c", "from cpr_operator.cli import main; main()")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_both_contenders_are_measured(precision: str) -> None:
    options = ("--rows", "500", "--repeats", "1", "--seconds", "6", "--precision", precision, "--json")
    done = subprocess.run(
        (*CPRJOB, "bench", "train", *options), capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["precision"] == precision
    assert list(found["contenders"]) == ["single", "cprjob"]
    for figures in found["contenders"].values():
        assert figures["samples_per_s"] > 0
        assert 0 < figures["step_p50_ms"] <= figures["step_p99_ms"]
        assert figures["rss_mib"] > 0
    single, ours = (found["contenders"][name] for name in ("single", "cprjob"))
    assert found["ratio_to_single"] == {"cprjob": ours["samples_per_s"] / single["samples_per_s"]}
    assert set(ours["cpu_ms"]) == {"cprjob", "trainer", "shard"}
    assert found["windows"]["cprjob"][0]["saves"] >= 1
