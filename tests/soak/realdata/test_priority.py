"""`cprjob bench priority` on real click logs."""

from __future__ import annotations

import json
import subprocess

import pytest

from support.realdata import click_log
from support.runs import CPRJOB

pytestmark = [pytest.mark.realdata, pytest.mark.timeout(600)]


@pytest.mark.parametrize("name", ["anime_420k.tsv.gz", "criteo_80k.tsv.gz"])
def test_priority_takes_real_data_as_it_is(name: str) -> None:
    options = ("--seeds", "2", "--failures", "6", "--set", "data.samples=10000", "--set", "data.epochs=null", "--json")
    command = (*CPRJOB, "bench", "priority", "--data", str(click_log(name)), *options)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["data"] == name
    assert all(each["auc_drop"]["mean"] != 0 for each in found["strategies"].values())
