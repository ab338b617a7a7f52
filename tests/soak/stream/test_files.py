"""Clicks come as files while shards, the trainer and the publisher are killed in turn, and a follower has the models.

Days are compressed into minutes: a file, a look, a save and a publication are each due within a second. The store is a
folder, which no test can kill; `tests/soak/stores` has servers.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

import pytest

from cpr_contract import env
from cpr_trainer.store import open_store
from cprjob_serving import Follower
from support.pins import Pins
from support.served_models import ServedModels
from support.streamed_files import CLICKS, job_of, prepare, train_and_kill

pytestmark = [pytest.mark.dist, pytest.mark.timeout(1800, func_only=True)]

KILLS = 2 * ((env.ROLE_SHARD, 0), (env.ROLE_PUBLISHER, 0), (env.ROLE_TRAINER, 0), (env.ROLE_SHARD, 1))


def test_stream_of_clicks_is_trained_once_and_served_while_processes_are_killed(tmp_path: Path) -> None:
    clicks, manifest = prepare(tmp_path, "stream")
    spec = manifest["spec"]
    spec["accuracyBudget"] = {"portionOfLostSamples": 0}
    spec["failurePolicy"] = {"silenceSeconds": 60, "restartLimit": {"count": 1000}}
    spec["snapshots"]["keep"] = 128  # a copied model is compared a moment later
    with Follower(spec["publish"]["to"], tmp_path / "followed", every_s=0.2) as follower:
        served = ServedModels(follower, tmp_path / "copies")
        status = asyncio.run(train_and_kill(tmp_path / "work", clicks, served, manifest, KILLS))
        assert status.result is not None
        while not served.copy(1, {status.result.key}):
            time.sleep(0.1)
    pins = Pins(job_of(status))
    pins.read()
    assert pins.trained()[0] == Counter(range(clicks.files * CLICKS))
    assert not any(status.ledger.ranges), "nothing is lost"
    assert len(served.copies) == 2 + len(KILLS)
    served.check(job_of(status), open_store(job_of(status).snapshots.store, None, None))
