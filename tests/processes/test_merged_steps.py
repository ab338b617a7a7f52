"""Jobs whose shards merge steps: several trainers are one, and kills leave the bytes of a calm run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from cpr_contract.codec import from_json
from cpr_contract.env import ROLE_SHARD, ROLE_TRAINER
from cpr_contract.model import RowOptimizer
from cpr_contract.reports import Result
from cpr_contract.spec import EvaluationSpec, JobSpec
from processes.faults import (
    ENCRYPTED,
    NEVER_S,
    OFTEN_S,
    REPLAY,
    SUPERVISED_PODS,
    Row,
    drained_shard,
    killed_processes,
    killed_shards,
    killed_trainer,
    reach,
    rolled_back,
    run_without_loss,
    with_parity,
)
from processes.jobs import BATCH, EVERY, JOBS, evaluated_alone, with_rows_by
from support.local_job import LocalJob
from support.model import SavedModel, assert_norms_close, saved_model, train_alone
from support.resized_job import resized, stop
from support.warm_start import run_held

pytestmark = pytest.mark.dist

Calm = Callable[[str, int], SavedModel]

TABLE = (
    Row("a leader's pod, then a shard", "merged_steps", ((60, killed_trainer(0)), (150, killed_shards(0))), REPLAY),
    Row(
        "a follower's pod, then the leader's, of three",
        "merged_steps",
        ((60, killed_trainer(2)), (140, killed_trainer(0))),
        {"trainers": 3},
    ),
    Row(
        "the processes of all three, then of the shards",
        "merged_steps",
        ((60, killed_processes(ROLE_TRAINER, 0, 1, 2)), (140, killed_processes(ROLE_SHARD, 0, 1))),
        {"trainers": 3},
        environ=SUPERVISED_PODS,
    ),
    Row(
        "both shards together, and again, of three",
        "merged_steps",
        ((60, killed_shards(0, 1, times=2)),),
        REPLAY | {"trainers": 3},
    ),
    Row(
        "a drained shard and its successor, then a follower",
        "merged_steps",
        ((60, drained_shard), (110, killed_shards(1)), (160, killed_trainer(1))),
        REPLAY,
    ),
    Row(
        "parity of three shards, then a rollback",
        "merged_steps",
        ((80, with_parity(killed_shards(1, rebuilt=True))), (140, rolled_back())),
        REPLAY | {"shards": 3, "parity_shards": 1},
        OFTEN_S,
    ),
    Row(
        "encrypted: a follower's process, then its pod, and a shard, from parity",
        "merged_steps",
        (
            (60, killed_processes(ROLE_TRAINER, 1)),
            (110, killed_trainer(1)),
            (150, with_parity(killed_shards(1, rebuilt=True))),
        ),
        REPLAY | {"trainers": 3, "shards": 3, "parity_shards": 1},
        environ=SUPERVISED_PODS | ENCRYPTED,
    ),
    Row(
        "dynamic tables: a leader's pod, then a shard, from parity",
        "dynamic",
        ((60, killed_trainer(0)), (140, with_parity(killed_shards(1, rebuilt=True)))),
        REPLAY | {"trainers": 2, "shards": 3, "parity_shards": 1},
        OFTEN_S,
    ),
    Row(
        "spilled pushes",
        "merged_steps",
        ((60, killed_processes(ROLE_TRAINER, 1)), (160, killed_shards(1))),
        {"replay_bytes": 256 << 10, "spill_bytes": 64 << 20},
        environ=SUPERVISED_PODS,
    ),
)


def run_calmly(job: JobSpec, folder: Path) -> SavedModel:
    """Train the job without a fault."""
    with LocalJob(job, folder, NEVER_S) as running:
        running.start()
        anchor = running.result()
    return saved_model(job, anchor, folder / "model")


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Calm:
    """Return the model of a calm run, by the name of a job and the number of trainers."""

    @cache
    def trained(name: str, trainers: int) -> SavedModel:
        folder = tmp_path_factory.mktemp(name)
        return run_calmly(replace(JOBS[name](folder), trainers=trainers), folder)

    return trained


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_killed_members_leave_the_bytes_of_a_calm_run(row: Row, calm: Calm, tmp_path: Path) -> None:
    job = replace(JOBS[row.job](tmp_path), **row.spec)
    anchor = run_without_loss(row, job, tmp_path).anchor
    found, expected = saved_model(job, anchor, tmp_path / "model"), calm(row.job, job.trainers)
    assert torch.equal(found.dense, expected.dense)
    for table, rows in zip(found.tables, expected.tables, strict=True):
        assert torch.equal(table, rows)


@pytest.mark.parametrize(
    ("name", "kind", "trainers"),
    [("merged_steps", "RowWiseAdagrad", 3), ("merged_steps", "Adam", 2), ("weighted", "RowWiseAdagrad", 2)],
)
def test_several_trainers_are_plain_torch_on_the_global_batch(
    name: str, kind: RowOptimizer, trainers: int, tmp_path: Path
) -> None:
    """Other optimizers and numbers: `make soak PART=processes`."""
    job = with_rows_by(replace(JOBS[name](tmp_path), trainers=trainers), kind)
    found = run_calmly(job, tmp_path)
    assert_norms_close(found, job)
    expected = train_alone(job)
    assert found.scored == len(expected.losses) * BATCH * 4 // 5
    assert found.auc == pytest.approx(expected.auc, abs=1e-3)
    assert found.log_loss == pytest.approx(expected.log_loss, abs=1e-4)


def test_changed_number_of_trainers_trains_the_model_of_a_fixed_number(tmp_path: Path) -> None:
    """One trainer, then three, then two: the global batch and the rates stay, and the curve continues."""
    job, anchor = JOBS["merged_steps"](tmp_path), None
    job = replace(job, data=replace(job.data, hold_out=0.1), evaluation=EvaluationSpec(EVERY, 10**6))
    for generation, (trainers, until) in enumerate(((1, 60), (3, 140)), start=1):
        with resized(replace(job, trainers=trainers), tmp_path / f"run-{generation}", generation, anchor) as running:
            running.hold_at(until + 20)
            running.start(run_held)
            reach(running, until)
            anchor = stop(running)
    with resized(job, tmp_path / "run-3", 3, anchor) as running:
        running.start()
        anchor = running.result()
        found = from_json(Result, running.trainers[running.leader].termination_message).evaluation
    assert_norms_close(saved_model(job, anchor, tmp_path / "model"), job)
    assert found is not None
    evaluations, _ = evaluated_alone(job)
    alone = next(each for each in evaluations if each.step == found.step)
    assert found.auc == pytest.approx(alone.auc, abs=0.0005)
