"""`cprjob bench recovery --cluster`: pods and processes of a cluster are killed, and the pauses are printed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cluster.harness import Cluster, Space, until
from cluster.jobs import manifest

CPRJOB = (sys.executable, "-c", "from cpr_operator.cli import main; main()")


@pytest.mark.timeout(600, func_only=True)
def test_pause_is_timed_in_each_tier_and_nothing_stays(cluster: Cluster, space: Space, tmp_path: Path) -> None:
    like = tmp_path / "like.yaml"
    like.write_text(yaml.safe_dump(manifest("like")), "utf-8")
    where = ("--cluster", like, "--kubeconfig", cluster.kubectl.kubeconfig, "-n", space.name)
    command = (*CPRJOB, "bench", "recovery", "--size=2", "--runs=1", "--json", *where)
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert {tier: sizes["2"]["runs"] for tier, sizes in found.items()} == dict.fromkeys(
        ("InPlace", "Spare", "NewPod", "Trainer"), 1
    )
    assert all(sizes["2"]["p50_s"] > 0 for sizes in found.values())
    until("nothing is left", lambda: not space.kubectl("get", "cprjobs,pods", "-o", "name").split(), 60)
