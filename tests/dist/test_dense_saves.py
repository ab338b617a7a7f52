"""The dense state is saved alone between anchors, so that the loss of all trainers costs no more than that interval."""

from dataclasses import replace
from pathlib import Path

import pytest

from support.local_job import LocalJob, small_job

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]
SAMPLES = 60_000


def test_where_there_is_no_anchor_yet_the_only_trainer_goes_on_from_a_dense_save(tmp_path: Path) -> None:
    job = small_job(tmp_path, samples=SAMPLES)
    often = replace(job, snapshots=replace(job.snapshots, dense_interval_s=0.1))
    store, away = tmp_path / "store", tmp_path / "away"
    with LocalJob(often, tmp_path, interval_s=3600) as running:
        running.start()
        running.reach(SAMPLES // 3)
        running.wait_for(lambda: (save := running.trainer().dense_save) and save.samples > 0, "a dense state is saved")
        assert running.trainer().anchors == ()
        store.rename(away)
        store.touch()  # nothing is saved any more, so that the newest save misses something
        running.reach(running.trainer().samples + 5_000)
        running.kill(running.trainers[0])
        running.wait_exit(running.trainers[0])
        store.unlink()
        away.rename(store)
        running.replace_trainers(0, leader=0)
        ((saved, resumed),) = running.wait_for(lambda: running.trainer().lost, "it tells what the dense state misses")
        assert 0 < saved < resumed
        assert running.result().samples == SAMPLES
