"""`cprjob bench recovery --cluster`: pods and processes of a cluster are killed, and the pauses are printed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cluster.harness import Cluster, Space, until
from cluster.jobs import manifest

pytestmark = pytest.mark.timeout(600, func_only=True)

CPRJOB = (sys.executable, "-c", "from cpr_operator.cli import main; main()")


class TestBenchRecovery:
    def test_a_pause_is_timed_in_each_tier_and_nothing_stays(
        self, cluster: Cluster, space: Space, tmp_path: Path
    ) -> None:
        like = tmp_path / "like.yaml"
        like.write_text(yaml.safe_dump(manifest("like")), "utf-8")
        where = ("--cluster", like, "--kubeconfig", cluster.kubectl.kubeconfig, "-n", space.name)
        command = (*CPRJOB, "bench", "recovery", "--size=2", "--runs=1", "--json", *where)
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        found = json.loads(ran.stdout)
        assert {tier: {size: each["runs"] for size, each in sizes.items()} for tier, sizes in found.items()} == {
            tier: {"2": 1} for tier in ("InPlace", "Spare", "NewPod", "Trainer")
        }
        assert all(sizes["2"]["p50_s"] > 0 for sizes in found.values())
        told = [(line.partition(", ")[0], line.rpartition(", ")[2]) for line in ran.stderr.splitlines()]
        assert told == [
            (tier, f"{way})") for tier, way in zip(found, ("InPlace", "Spare", "NewPod", "InPlace"), strict=True)
        ]
        until("nothing is left", lambda: not space.kubectl("get", "cprjobs,pods", "-o", "name").split(), 60)
