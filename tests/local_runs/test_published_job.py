"""A job of this machine publishes models while its members and its publisher are killed, and a follower has them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cpr_contract import env
from cpr_trainer.store import open_store
from cprjob_serving import Follower
from support.served_models import ServedModels
from support.streamed_files import job_of, prepare, train_and_kill

pytestmark = pytest.mark.dist

KILLS = ((env.ROLE_SHARD, 1), (env.ROLE_PUBLISHER, 0), (env.ROLE_TRAINER, 0))


def test_follower_has_models_of_anchors_while_processes_are_killed(tmp_path: Path) -> None:
    clicks, manifest = prepare(tmp_path, "published")
    spec = manifest["spec"]
    spec["model"]["tables"][0] |= {"rows": 4096, "ttlSteps": 50}
    spec["failurePolicy"] = {"silenceSeconds": 60}
    spec["snapshots"]["keep"] = 64  # a copied model is compared a moment later
    with Follower(spec["publish"]["to"], tmp_path / "followed", every_s=0.1) as follower:
        served = ServedModels(follower, tmp_path / "copies")
        status = asyncio.run(train_and_kill(tmp_path / "work", clicks, served, manifest, KILLS))
        assert status.result is not None
        while not served.copy(1, {status.result.key}):
            time.sleep(0.1)
        assert status.published is not None
        assert (status.published.sequence, status.published.anchor) == (follower.sequence, status.result.key)
        second = ("follow", "file:///nowhere/at/all", str(tmp_path / "followed"))
        command = (sys.executable, "-m", "cprjob_serving", *second)
        refused = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (refused.returncode, "another process follows into" in refused.stderr) == (1, True)
    assert len(served.copies) == 2 + len(KILLS)
    served.check(job_of(status), open_store(job_of(status).snapshots.store, None, None))
