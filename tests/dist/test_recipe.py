"""Adam on the dense network, and learning rates that change from step to step, where a shard and trainers are lost.

The kills come inside the warm-up, where a step that is taken at another rate, or with other moments, shows most.
"""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract.choices import DenseSync
from cpr_contract.model import OptimizerSpec, PhaseSpec, SparseOptimizerSpec
from cpr_contract.spec import JobSpec
from cpr_trainer.checkpoint.format.records import read_anchor
from cpr_trainer.checkpoint.restore.dense import read_tensors
from cpr_trainer.store import open_store
from support.local_job import LocalJob, small_job
from support.model import SavedModel, assert_close, assert_same, saved_model, train_alone
from support.warm_start import run_slowly

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]
SAMPLES = 60_000
STEPS = 600
PHASES = (
    PhaseSpec("Warmup", 400),
    PhaseSpec("Constant", 50),
    PhaseSpec("Polynomial", 200, power=2.0),
)
ADAM = OptimizerSpec("Adam", 0.005, epsilon=1e-8, weight_decay=1e-4, clip_norm=0.5, schedule=PHASES)


def warming_up(folder: Path, trainers: int = 1) -> JobSpec:
    """Each table has an optimizer of its own, all with the schedule."""
    job = small_job(folder, samples=SAMPLES, trainers=trainers)
    kinds = (
        SparseOptimizerSpec("RowWiseAdagrad", 0.02, schedule=PHASES),
        SparseOptimizerSpec("Adam", 0.002, schedule=PHASES),
        SparseOptimizerSpec("SGD", 0.5, schedule=PHASES),
        SparseOptimizerSpec("Adagrad", 0.02, schedule=PHASES),
    )
    tables = tuple(replace(table, optimizer=kind) for table, kind in zip(job.model.tables, kinds, strict=True))
    return replace(job, model=replace(job.model, dense_optimizer=ADAM, tables=tables), replay_bytes=64 << 20)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> SavedModel:
    folder = tmp_path_factory.mktemp("undisturbed")
    job = warming_up(folder)
    with LocalJob(job, folder) as running:
        running.start()
        anchor = running.result()
    return saved_model(job, anchor, folder / "model")


def test_an_undisturbed_job_is_torchs_optimizer_and_schedulers(undisturbed: SavedModel, tmp_path: Path) -> None:
    assert_close(undisturbed, train_alone(warming_up(tmp_path)))


def test_a_shard_and_the_trainer_killed_in_the_warm_up_leave_no_trace(tmp_path: Path, undisturbed: SavedModel) -> None:
    """Bit for bit: the shard is sent again what it lost; the trainer goes back to an anchor, and all others with it."""
    job = warming_up(tmp_path)
    with LocalJob(job, tmp_path) as running:
        running.start(run_slowly)
        running.reach(SAMPLES // 10)
        running.kill(running.shards[1])
        running.wait_exit(running.shards[1])
        running.replace_shard(1)
        running.wait_for(lambda: running.shard(1).resumed_samples is not None, "all pushes are there again")
        replayed = running.shard(1).replayed_samples
        running.wait_for(lambda: running.trainer().anchors, "there is an anchor")
        running.reach(SAMPLES // 3)
        anchor = running.trainer().anchors[-1]
        running.kill(running.trainers[0])
        running.wait_exit(running.trainers[0])
        running.roll_back(anchor)
        running.replace_trainers(0, leader=0)
        last = running.result()
    assert replayed > 0
    assert 0 < anchor.step < PHASES[0].steps, "it goes on in the warm-up"
    assert_same(saved_model(job, last, tmp_path / "model"), undisturbed)
    tensors = read_tensors(store := open_store(job.snapshots.store, None, None), read_anchor(store, last))
    assert float(tensors["optimizer_steps"]) == STEPS
    assert len(tensors["network"]) == 3, "the parameters and both moments"


def test_the_only_trainer_told_to_stop_takes_its_moments_along(tmp_path: Path, undisturbed: SavedModel) -> None:
    job = warming_up(tmp_path)
    with LocalJob(job, tmp_path) as running:
        running.start()
        running.reach(SAMPLES // 4)
        running.drain_only_trainer()
        anchor = running.result()
    assert_same(saved_model(job, anchor, tmp_path / "model"), undisturbed)


@pytest.mark.parametrize("sync", ["AllReduce", "ShadowMA"])
def test_a_trainer_that_joins_is_sent_the_moments(tmp_path: Path, sync: DenseSync) -> None:
    """Both are replaced, one after the other. So what the second leader saves has come through a copy.

    Its count of steps tells a copy from moments that begin anew: in lockstep no step is missing.
    """
    job = replace(warming_up(tmp_path, trainers=2), dense_sync=sync, replay_bytes=0)
    with LocalJob(job, tmp_path) as running:
        running.start()
        running.reach(SAMPLES // 6)
        for victim, leader in ((1, 0), (0, 1)):
            running.kill(running.trainers[victim], signal.SIGKILL)
            running.wait_exit(running.trainers[victim])
            running.replace_trainers(victim, leader=leader)
            joined_at = running.trainer(leader).samples
            running.wait_for(lambda v=victim, s=joined_at: running.trainer(v).samples > s, "the new one trains")
        anchor = running.result()
        lost = [running.shard(index).lost for index in range(2)]
    assert lost == [(), ()]
    tensors = read_tensors(store := open_store(job.snapshots.store, None, None), read_anchor(store, anchor))
    steps = float(tensors["optimizer_steps"])
    if sync == "AllReduce":
        assert steps == STEPS
    assert steps > STEPS * 2 // 3
    model, expected = saved_model(job, anchor, tmp_path / "model"), train_alone(warming_up(tmp_path))
    assert model.auc is not None
    assert abs(model.auc - expected.auc) < 0.02
