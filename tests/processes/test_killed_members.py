"""Kills leave the same bytes as a run without: jobs of real processes are compared with an undisturbed process.

Each row of the table is a job with one trainer, so that pushes have one order, and faults at some of its steps. The
rows pair features and faults; not every feature meets every fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cpr_contract.env import ROLE_SHARD, ROLE_TRAINER
from cpr_contract.reports import Result
from cpr_contract.roster import AnchorRef
from cpr_contract.spec import JobSpec
from cpr_trainer.checkpoint.format.records import read_anchor
from cpr_trainer.checkpoint.restore.dense_loader import read_tensors
from cpr_trainer.data.open import files_of, open_dataset
from cpr_trainer.evaluate import evaluate
from cpr_trainer.model.replica import buffers_of
from cpr_trainer.notebook import Fitted
from cpr_trainer.store import open_store
from processes.conftest import Reference
from processes.faults import (
    NEVER_S,
    OFTEN_S,
    REPLAY,
    SUPERVISED_PODS,
    Row,
    drained_shard,
    drained_trainer,
    ended_container,
    kill,
    killed_processes,
    killed_shard_and_trainer_process,
    killed_shards,
    promoted_spare,
    reach,
    rolled_back,
    run_without_loss,
    step_past_cuts,
    superseded_shard,
    with_parity,
    without_store,
)
from processes.jobs import BATCH, EVERY, JOBS, SAMPLES, STEPS, evaluated_alone
from support import table_data
from support.local_job import LocalJob
from support.model import assert_fitted, saved_model
from support.resized_job import resized, stop
from support.warm_start import run_held

pytestmark = pytest.mark.dist


@contextmanager
def added_file(running: LocalJob) -> Iterator[None]:
    """The trainer is replaced after a file was added in front of its data; the job continues without the file."""
    rows = table_data.as_text(table_data.clicks(600, seed=9), ",")
    (running.folder / "log" / "day=0.csv").write_bytes(rows)
    with drained_trainer(running):
        yield
    assert running.trainer().total_samples == SAMPLES
    running.wait_for(lambda: running.trainer().new_files == 1, "the leader reports the file that is left out")


TABLE = (
    Row(
        "pods of one and of both shards, and again during replay",
        "plain",
        ((60, killed_shards(1)), (150, killed_shards(0, 1, times=3))),
        REPLAY,
    ),
    Row(
        "spilled pushes, and the process of the trainer",
        "plain",
        ((60, killed_processes(ROLE_TRAINER, 0)), (160, killed_shards(1))),
        {"replay_bytes": 256 << 10, "spill_bytes": 64 << 20},
        environ=SUPERVISED_PODS,
    ),
    Row(
        "a replaced live shard, then a rollback to step 0",
        "plain",
        ((60, superseded_shard), (120, rolled_back(to_anchor=False))),
        REPLAY,
        OFTEN_S,
    ),
    Row(
        "gradients of three workers",
        "three_workers",
        ((60, killed_processes(ROLE_TRAINER, 0)), (140, killed_processes(ROLE_TRAINER, 0))),
        environ=SUPERVISED_PODS,
    ),
    Row(
        "several dims",
        "dims",
        ((60, drained_shard), (140, rolled_back(kills=ROLE_SHARD))),
        interval_s=OFTEN_S,
    ),
    Row(
        "rows in bf16",
        "half_rows",
        ((60, killed_processes(ROLE_SHARD, 0)), (110, killed_shards(1)), (160, rolled_back(kills=ROLE_SHARD))),
        REPLAY,
        OFTEN_S,
        environ=SUPERVISED_PODS,
    ),
    Row(
        "dynamic tables",
        "dynamic",
        ((60, killed_processes(ROLE_SHARD, 0)), (110, killed_shards(1)), (160, rolled_back(kills=ROLE_SHARD))),
        REPLAY,
        OFTEN_S,
        environ=SUPERVISED_PODS,
    ),
    Row(
        "a recipe, in its warm-up",
        "recipe",
        ((40, killed_shards(1)), (120, rolled_back(kills=ROLE_TRAINER))),
        REPLAY,
        OFTEN_S,
    ),
    Row("a recipe, and its moments go with a drained trainer", "recipe", ((60, drained_trainer),)),
    Row(
        "random numbers and buffers",
        "noisy",
        ((60, killed_processes(ROLE_TRAINER, 0)), (110, drained_trainer), (160, killed_shards(1))),
        REPLAY,
        environ=SUPERVISED_PODS,
    ),
    Row("features and a sequence", "features", ((60, killed_shards(1)), (140, drained_shard)), REPLAY),
    Row(
        "two labels",
        "two_labels",
        ((60, killed_processes(ROLE_SHARD, 1)), (140, rolled_back(kills=ROLE_SHARD))),
        interval_s=OFTEN_S,
        environ=SUPERVISED_PODS,
    ),
    Row(
        "bags",
        "bags",
        ((60, ended_container), (110, killed_processes(ROLE_SHARD, 0)), (160, killed_shards(1))),
        REPLAY,
        environ=SUPERVISED_PODS,
        memory=True,
    ),
    Row("a built vocabulary", "vocabulary", ((60, added_file), (140, killed_shards(1))), REPLAY, OFTEN_S),
    Row("rows from code", "code", ((60, killed_shard_and_trainer_process),), REPLAY, environ=SUPERVISED_PODS),
    Row(
        "eighty tables",
        "wide",
        ((60, killed_processes(ROLE_SHARD, 1)), (120, killed_shards(1))),
        REPLAY,
        1.0,
        SUPERVISED_PODS,
    ),
    Row(
        "parity of three shards",
        "plain",
        (
            (40, with_parity(killed_processes(ROLE_SHARD, 1))),
            (80, with_parity(killed_shards(1, rebuilt=True))),
            (120, with_parity(killed_processes(ROLE_SHARD, 0))),
            (160, with_parity(promoted_spare(2))),
        ),
        REPLAY | {"shards": 3, "parity_shards": 2},
        environ=SUPERVISED_PODS,
    ),
    Row(
        "parity while the store is unavailable",
        "plain",
        ((100, with_parity(without_store(killed_shards(1, times=3, rebuilt=True)))),),
        REPLAY | {"parity_shards": 1},
    ),
    Row(
        "both shards of a stripe",
        "plain",
        ((100, with_parity(killed_shards(0, 1, rebuilt=False))),),
        REPLAY | {"parity_shards": 1},
    ),
    Row(
        "an early stop, and both kinds of members",
        "early_stop",
        ((EVERY // BATCH // 2, killed_shards(1)), (2 * EVERY // BATCH + 5, killed_processes(ROLE_TRAINER, 0))),
        REPLAY,
        OFTEN_S,
        environ=SUPERVISED_PODS,
    ),
    Row("a target, and a killed shard", "to_target", ((EVERY // BATCH + 5, killed_shards(1)),), REPLAY, OFTEN_S),
    Row(
        "weights of samples, and rows in their order",
        "weighted",
        ((60, killed_processes(ROLE_TRAINER, 0)), (140, killed_shards(0))),
        REPLAY,
        environ=SUPERVISED_PODS,
    ),
    Row("an early stop after a rollback", "early_stop", ((2 * EVERY // BATCH + 5, rolled_back()),), REPLAY, OFTEN_S),
)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_killed_members_leave_the_bytes_of_a_run_without(row: Row, tmp_path: Path, reference: Reference) -> None:
    undisturbed, expected = reference(row.job)
    job = replace(JOBS[row.job](tmp_path), **row.spec)
    if job.evaluation is None:
        result = run_without_loss(row, job, tmp_path)
        assert result.anchor.samples == SAMPLES
        assert_ended_as(expected, job, result.anchor, tmp_path)
    else:
        last = evaluated_alone(undisturbed)[1].step
        assert_ended_early(job, undisturbed, run_without_loss(row, job, tmp_path, last))


def assert_ended_as(expected: Fitted, job: JobSpec, anchor: AnchorRef, folder: Path) -> None:
    """Compare the saved model with the expected one, bit for bit: rows, parameters, moments, scores."""
    model = saved_model(job, anchor, folder / "model")
    assert_fitted(expected, job, model)
    assert model.metrics == expected.progressive.metrics
    store = open_store(job.snapshots.store, None, None)
    tensors = read_tensors(store, read_anchor(store, anchor))
    for name, buffer in buffers_of(expected.network).items():
        assert torch.equal(tensors[f"buffer.{name}"], buffer), name
    if job.model.dense_optimizer.kind == "Adam":
        assert float(tensors["optimizer_steps"]) == STEPS
        assert len(tensors["network"]) == 3, "the parameters and both moments"
    if expected.held_out is not None:
        scored = evaluate(job, open_dataset(job.data, job.model, files_of(job)), store, anchor.key)
        held_out = expected.held_out
        assert (scored.auc, scored.log_loss, scored.samples) == (held_out.auc, held_out.log_loss, held_out.samples)


def assert_ended_early(job: JobSpec, undisturbed: JobSpec, result: Result) -> None:
    """Compare the end and the best anchor of the job with those of a single process."""
    evaluations, early_stop = evaluated_alone(undisturbed)
    assert job.evaluation is not None
    stop = job.evaluation.early_stop
    assert stop is not None
    assert early_stop.should_stop(stop)
    assert 0 < early_stop.best_step < STEPS
    assert early_stop.step == early_stop.best_step + (stop.patience or 0) * EVERY // BATCH
    assert result.best is not None
    assert (result.anchor.step, result.evaluation) == (early_stop.step, evaluations[-1])
    found = (result.best.anchor.step, result.best.value, result.best.since)
    assert found == (early_stop.best_step, early_stop.best, early_stop.since)
    store, dataset = open_store(job.snapshots.store, None, None), open_dataset(job.data, job.model, files_of(job))
    scored = evaluate(job, dataset, store, result.best.anchor.key)
    assert (scored.step, scored.auc) == (early_stop.best_step, early_stop.best)


@pytest.mark.parametrize("name", ["plain", "dims", "dynamic"])
def test_resharded_job_leaves_the_bytes_of_a_run_without(name: str, tmp_path: Path, reference: Reference) -> None:
    """Two shards, three, and two again; a shard of the three is killed right after the change."""
    _, expected = reference(name)
    job, anchor = JOBS[name](tmp_path), None
    for generation, (shards, until) in enumerate(((2, 60), (3, 140), (2, STEPS)), start=1):
        with resized(replace(job, shards=shards), tmp_path / f"run-{generation}", generation, anchor) as running:
            running.hold_at(until if anchor is None else anchor.step)
            running.start(run_held)
            if generation == 2:
                restored(running, until=60)
                kill(running, 1)
                running.replace_shard(1)
                restored(running, until=60)
            running.hold_at(until)
            running.reach(until * BATCH)
            anchor = running.result() if until == STEPS else stop(running)
            assert (anchor.generation, anchor.samples) == (generation, until * BATCH)
    assert anchor is not None
    assert_ended_as(expected, job, anchor, tmp_path)


def restored(running: LocalJob, until: int) -> None:
    running.wait_for(lambda: running.shard(1).restored_samples == until * BATCH, "the shard has the anchor's rows")


def test_leader_keeps_the_anchors_before_a_rollback(tmp_path: Path) -> None:
    job = JOBS["plain"](tmp_path)
    with LocalJob(job, tmp_path, OFTEN_S) as running:
        running.hold_at(60)
        running.start(run_held)
        running.wait_for(lambda: len(running.trainer().anchors) == job.snapshots.keep, "there are all anchors")
        step_past_cuts(running)
        anchors, running.interval_s = running.trainer().anchors, NEVER_S
        running.roll_back(anchors[-2])
        running.wait_for(lambda: running.shard(0).counters.generation == 2, "the shard has read the roster")
        reach(running, running.held_at)
        assert running.trainer().anchors[-2:] == anchors[:-1]
