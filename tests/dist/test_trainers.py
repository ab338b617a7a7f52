"""Trainers of real processes that are killed, told to stop, or hang, one of them or all."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract.choices import DenseSync
from cpr_contract.reports import TrainerState
from cpr_trainer.trainer.scores import MERGE_STEPS
from support.local_job import LocalJob, small_job, small_steps
from support.model import SavedModel, assert_same, saved_model, train_alone
from support.shard_job import hasty

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]
SAMPLES = 60_000


@pytest.mark.parametrize("victim", [0, 1], ids=["leader", "follower"])
def test_a_killed_trainer_costs_nothing(tmp_path: Path, victim: int) -> None:
    job = small_steps(small_job(tmp_path, samples=SAMPLES, trainers=2))
    with LocalJob(job, tmp_path) as running:
        running.start()
        running.reach(SAMPLES // 3)
        running.kill(running.trainers[victim])
        running.wait_exit(running.trainers[victim])
        running.replace_trainers(victim, leader=1 - victim if victim == 0 else 0)
        anchor = running.result()
        lost = [running.shard(index).lost for index in range(2)]
    assert lost == [(), ()]
    model, expected = saved_model(job, anchor, tmp_path / "model"), train_alone(job)
    assert model.auc is not None
    assert abs(model.auc - expected.auc) < 0.002
    # What its process had scored since the last merge died with it; training itself lost nothing.
    unmerged = MERGE_STEPS * job.data.batch_size // 2
    assert SAMPLES * 4 // 5 - unmerged <= model.scored <= SAMPLES * 4 // 5


@pytest.mark.parametrize("sync", ["AllReduce", "ShadowMA"])
def test_trainers_that_begin_before_their_leader_has_an_address_find_it(tmp_path: Path, sync: DenseSync) -> None:
    job = replace(small_job(tmp_path, samples=SAMPLES, trainers=2), dense_sync=sync)
    with LocalJob(job, tmp_path) as running:
        running.addressed = False
        running.start()
        running.wait_for(lambda: running.trainer(1).state is TrainerState.JOINING, "the follower looks for its leader")
        running.addressed = True
        running.publish()
        running.result()


def test_the_only_trainer_told_to_stop_goes_on_where_it_was(tmp_path: Path, calm: SavedModel) -> None:
    job = small_job(tmp_path, samples=SAMPLES)
    with LocalJob(job, tmp_path) as running:
        running.start()
        running.reach(SAMPLES // 3)
        running.drain_only_trainer()
        anchor = running.result()
    assert_same(saved_model(job, anchor, tmp_path / "model"), calm)


def test_the_only_trainer_killed_loses_what_the_dense_state_misses(tmp_path: Path) -> None:
    job = hasty(small_job(tmp_path, samples=SAMPLES))
    with LocalJob(job, tmp_path) as running:
        running.start()
        running.reach(SAMPLES // 3)
        running.train_unsaved()
        running.kill(running.trainers[0])
        running.wait_exit(running.trainers[0])
        for index in range(2):
            running.wait_for(lambda i=index: "trainer/0" in running.shard(i).silent, "what it sent is read to the end")
        applied = max(running.shard(index).applied_step for index in range(2)) * job.data.batch_size
        running.replace_trainers(0, leader=0)
        lost = running.wait_for(lambda: running.trainer().lost, "it tells what the dense state misses")
        anchor = running.result()
    assert len(lost) == 1
    assert lost[0][0] < lost[0][1] == applied
    assert anchor.samples == SAMPLES


def test_a_hung_trainer_is_called_silent(tmp_path: Path) -> None:
    job = hasty(small_job(tmp_path, samples=SAMPLES, trainers=2))
    with LocalJob(job, tmp_path) as running:
        running.start()
        running.reach(SAMPLES // 4)
        running.kill(running.trainers[0], signal.SIGSTOP)
        running.wait_for(lambda: "trainer/0" in running.trainer(1).silent, "the follower misses it")
        running.wait_for(lambda: "trainer/0" in running.shard(0).silent, "a shard misses it")
        running.leader = 1
        running.kill(running.trainers[0])
        running.replace_trainers(0, leader=1)
        assert running.result().samples == SAMPLES
