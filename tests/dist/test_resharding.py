"""Jobs of real processes that stop, and go on with other shards: nothing is lost, and nothing is trained twice."""

from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract.roster import AnchorRef
from cpr_contract.spec import JobSpec
from cpr_trainer.trainer.scores import MERGE_STEPS
from support.local_job import LocalJob, small_job, small_steps
from support.model import SavedModel, assert_same, saved_model, train_alone
from support.resized_job import resized, stop
from support.warm_start import run_slowly

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]
SAMPLES = 60_000


def with_shards(job: JobSpec, shards: int, folder: Path, generation: int, anchor: AnchorRef | None) -> LocalJob:
    """The same job as so many shards, which begin this generation with the anchor."""
    return resized(replace(job, shards=shards), folder, generation, anchor)


def test_one_trainer_over_two_three_and_two_shards_ends_where_it_would_have_ended(
    tmp_path: Path, calm: SavedModel
) -> None:
    job = small_job(tmp_path, samples=SAMPLES)
    anchor, trained = None, []
    for generation, (shards, until) in enumerate(((2, SAMPLES // 4), (3, SAMPLES // 2)), start=1):
        with with_shards(job, shards, tmp_path / f"run-{generation}", generation, anchor) as running:
            running.start(run_slowly)
            running.reach(until)
            anchor = stop(running)
            trained.append((anchor.generation, anchor.samples))
    assert [generation for generation, _ in trained] == [1, 2]
    assert SAMPLES // 4 <= trained[0][1] < SAMPLES // 2 <= trained[1][1] < SAMPLES
    with with_shards(job, 2, tmp_path / "run-3", 3, anchor) as running:
        running.start(run_slowly)
        result = running.result()
        assert [running.shard(index).lost for index in range(2)] == [(), ()]
    assert_same(saved_model(job, result, tmp_path / "model"), calm)


def unmerged_steps(job: JobSpec, anchor: AnchorRef, model: SavedModel) -> range:
    """The steps that were not scored because several trainers stopped at this anchor.

    What they scored since their last merge is not in it; training itself lost nothing. The model predicts these early
    samples worse than later ones: AUC without them is higher, by up to 0.002.
    """
    unmerged = SAMPLES * 4 // 5 - model.scored
    assert 0 <= unmerged <= MERGE_STEPS * job.data.batch_size
    return range(anchor.step - unmerged // job.data.batch_size + 1, anchor.step + 1)


def test_several_trainers_stop_at_one_anchor(tmp_path: Path) -> None:
    job = small_steps(small_job(tmp_path, samples=SAMPLES, trainers=2))
    with with_shards(job, 2, tmp_path / "run-1", 1, None) as running:
        running.start(run_slowly)
        running.reach(SAMPLES // 3)
        anchor = stop(running)
    with with_shards(job, 3, tmp_path / "run-2", 2, anchor) as running:
        running.start(run_slowly)
        result = running.result()
    model = saved_model(job, result, tmp_path / "model")
    expected = train_alone(job, unscored=unmerged_steps(job, anchor, model))
    assert model.auc is not None
    assert abs(model.auc - expected.auc) < 0.002


def test_a_shard_killed_right_after_the_change_starts_from_the_same_anchor(tmp_path: Path, calm: SavedModel) -> None:
    job = small_job(tmp_path, samples=SAMPLES)
    with with_shards(job, 2, tmp_path / "run-1", 1, None) as running:
        running.start()
        running.reach(SAMPLES // 3)
        anchor = stop(running)
    with with_shards(job, 3, tmp_path / "run-2", 2, anchor) as running:
        running.interval_s = 3600.0
        running.start()
        running.wait_for(lambda: running.shard(1).restored_samples == anchor.samples, "the shard is there")
        running.kill(running.shards[1])
        running.replace_shard(1)
        report = running.wait_for(
            lambda: (r := running.shard(1)).resumed_samples is not None and r, "all ranks push again"
        )
        lost = report.resumed_samples - anchor.samples
        assert report.restored_samples == anchor.samples
        assert report.lost == (((anchor.samples, report.resumed_samples),) if lost else ())
        result = running.result()
    assert result.samples == SAMPLES
    if not lost:
        assert_same(saved_model(job, result, tmp_path / "model"), calm)


def test_one_trainer_then_three_then_two_train_every_sample_once(tmp_path: Path) -> None:
    job = small_steps(small_job(tmp_path, samples=SAMPLES))
    anchor = None
    for generation, (trainers, until) in enumerate(((1, SAMPLES // 4), (3, SAMPLES // 2)), start=1):
        part = replace(job, trainers=trainers)
        with resized(part, tmp_path / f"run-{generation}", generation, anchor) as running:
            running.start(run_slowly)
            running.reach(until)
            anchor = stop(running)
    with resized(replace(job, trainers=2), tmp_path / "run-3", 3, anchor) as running:
        running.start(run_slowly)
        result = running.result()
        shards = [running.shard(index) for index in range(2)]
    assert [shard.lost for shard in shards] == [(), ()]
    assert [shard.row_updates.lost for shard in shards if shard.row_updates] == [0, 0]
    assert anchor is not None
    model = saved_model(job, result, tmp_path / "model")
    expected = train_alone(job, unscored=unmerged_steps(job, anchor, model))
    assert model.auc is not None
    assert abs(model.auc - expected.auc) < 0.002


def test_a_shard_killed_after_the_trainers_became_more_loses_what_no_save_holds(tmp_path: Path) -> None:
    job = small_steps(small_job(tmp_path, samples=SAMPLES))
    with resized(job, tmp_path / "run-1", 1, None) as running:
        running.start()
        running.reach(SAMPLES // 3)
        anchor = stop(running)
    with resized(replace(job, trainers=2), tmp_path / "run-2", 2, anchor) as running:
        running.interval_s = 3600.0
        running.start()
        running.reach(SAMPLES // 2)
        running.kill(running.shards[1])
        running.replace_shard(1)
        report = running.wait_for(
            lambda: (r := running.shard(1)).resumed_samples is not None and r, "all ranks push again"
        )
        result = running.result()
    assert report.restored_samples == anchor.samples
    assert report.resumed_samples is not None
    start, resumed = anchor.samples, report.resumed_samples
    batch = job.data.batch_size
    middle, end = resumed + batch // 2, resumed + batch
    # The shard may die after it has applied one rank's half of the next batch: that is lost with it.
    assert report.lost in {((start, resumed),), ((start, middle),), ((start, resumed), (middle, end))}
    assert result.samples == SAMPLES
