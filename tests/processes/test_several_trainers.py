"""Jobs of two trainers with killed members: every push is applied once, and nothing is lost.

The pushes of two trainers come in any order, so bits cannot be compared. The row updates that a shard has applied are
counted from the data.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cpr_contract import CONTRACT_VERSION
from cpr_contract.choices import DenseSync
from cpr_contract.codec import from_json
from cpr_contract.env import ROLE_TRAINER
from cpr_contract.manifests import RowUpdates, ShardManifest, WorkersManifest
from cpr_contract.reports import Result, TrainerState
from cpr_contract.roster import AnchorRef
from cpr_contract.spec import MEASURED, EarlyStopSpec, EvaluationSpec, JobSpec
from cpr_trainer.checkpoint.format.records import freeze, is_even, read_anchor
from cpr_trainer.checkpoint.restore.dense_loader import read_tensors
from cpr_trainer.store import open_store
from cpr_trainer.trainer.scores import MERGE_STEPS
from processes.faults import (
    NEVER_S,
    OFTEN_S,
    REPLAY,
    SUPERVISED_PODS,
    Row,
    drained_shard,
    killed_processes,
    killed_shards,
    killed_trainer,
    killed_trainers_and_shard,
    reach,
    rolled_back,
    run_without_loss,
    stopped_trainer,
    with_parity,
)
from processes.jobs import BATCH, EVERY, JOBS, SAMPLES, STEPS, evaluated_alone
from support.local_job import LocalJob, small_job
from support.model import saved_model, train_alone
from support.resized_job import resized, stop
from support.row_count import Count
from support.warm_start import run_held

pytestmark = pytest.mark.dist

TABLE = (
    Row("a leader's pod, then a shard", "two_trainers", ((60, killed_trainer(0)), (150, killed_shards(0))), REPLAY),
    Row("a follower's pod, then the leader's", "two_trainers", ((60, killed_trainer(1)), (140, killed_trainer(0)))),
    Row(
        "the processes of both", "two_trainers", ((60, killed_processes(ROLE_TRAINER, 0, 1)),), environ=SUPERVISED_PODS
    ),
    Row("both shards together, and again", "two_trainers", ((60, killed_shards(0, 1, times=2)),), REPLAY),
    Row("a drained shard, and its successor", "two_trainers", ((60, drained_shard), (140, killed_shards(1))), REPLAY),
    Row("the leader of averages", "two_trainers", ((60, killed_trainer(0)),), {"dense_sync": "ShadowMA"}),
    Row("a stopped leader", "two_trainers", ((60, stopped_trainer(0)),), {"dense_sync": "ShadowBMUF"}),
    Row("a stopped follower", "two_trainers", ((60, stopped_trainer(1)),), {"dense_sync": "ShadowEASGD"}),
    Row("a rollback of averages", "two_trainers", ((120, rolled_back()),), {"dense_sync": "ShadowBMUF"}, OFTEN_S),
    Row("all trainers and a shard", "dense_saves", ((100, killed_trainers_and_shard),), {"dense_sync": "ShadowMA"}),
)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_killed_members_of_two_trainers_lose_no_push(row: Row, tmp_path: Path) -> None:
    job = replace(JOBS[row.job](tmp_path), **row.spec)
    anchor = run_without_loss(row, job, tmp_path).anchor
    assert anchor.samples == SAMPLES
    store = open_store(job.snapshots.store, None, None)
    saved = from_json(ShardManifest, store.get(read_anchor(store, anchor).shards[1].key))
    assert saved.row_updates == RowUpdates(Count(job).all(), 0, exact=True)


@contextmanager
def with_replaced(job: JobSpec, folder: Path, *victims: int, last: int = STEPS) -> Iterator[LocalJob]:
    """Train up to step `last`; each of these trainers is killed and replaced in turn, 40 steps apart."""
    with LocalJob(job, folder, NEVER_S) as running:
        running.hold_at(60)
        running.start(run_held)
        running.reach(40 * BATCH)
        for place, victim in enumerate(victims, start=1):
            with killed_trainer(victim)(running):
                running.hold_at(60 + 40 * place)
        running.hold_at(last)
        yield running


def test_ipv6_addresses_work_for_two_trainers(tmp_path: Path) -> None:
    """Status pages, trainers' control port, Gloo, shards' data port and parity between shards."""
    job = replace(JOBS["two_trainers"](tmp_path), replay_bytes=64 << 20, parity_shards=1)
    with LocalJob(job, tmp_path, NEVER_S, host="::1") as running:
        running.hold_at(40)
        running.start(run_held)
        running.reach(20 * BATCH)
        with with_parity(killed_shards(1, rebuilt=True))(running):
            running.hold_at(STEPS)
        assert running.result().samples == SAMPLES


def test_two_trainers_in_lockstep_match_one_despite_a_killed_leader(tmp_path: Path) -> None:
    """The AUC of fewer steps depends more on the order of the pushes."""
    steps = 600
    job = replace(JOBS["two_trainers"](tmp_path), data=small_job(tmp_path, samples=steps * BATCH).data)
    with with_replaced(job, tmp_path, 0, last=steps) as running:
        model, expected = saved_model(job, running.result(), tmp_path / "model"), train_alone(job)
    assert model.auc is not None
    assert abs(model.auc - expected.auc) < 0.002
    # The scores of a process since the last merge are lost with it.
    unmerged = MERGE_STEPS * BATCH // 2
    assert steps * BATCH * 4 // 5 - unmerged <= model.scored <= steps * BATCH * 4 // 5


def test_replaced_trainers_receive_the_moments(tmp_path: Path) -> None:
    """The second leader has a copy of the state; its count of steps differs from that of fresh moments."""
    job = replace(JOBS["recipe"](tmp_path), trainers=2)
    with with_replaced(job, tmp_path, 1, 0) as running:
        anchor = running.result()
    tensors = read_tensors(store := open_store(job.snapshots.store, None, None), read_anchor(store, anchor))
    assert float(tensors["optimizer_steps"]) == STEPS
    model, expected = saved_model(job, anchor, tmp_path / "model"), train_alone(job)
    assert model.auc is not None
    assert abs(model.auc - expected.auc) < 0.02


def test_two_trainers_score_each_held_out_sample_once_though_one_is_replaced(tmp_path: Path) -> None:
    job = JOBS["two_trainers"](tmp_path)
    job = replace(job, data=replace(job.data, hold_out=0.1), evaluation=EvaluationSpec(EVERY, 10**6))
    with with_replaced(job, tmp_path, 1) as running:
        first = running.wait_for(lambda: running.trainer().evaluation, "the model is scored")
        running.result()
        found = from_json(Result, running.trainers[0].termination_message).evaluation
    assert found is not None
    evaluations, _ = evaluated_alone(job)
    alone = next(each for each in evaluations if each.step == found.step)
    assert first.scored == found.scored == alone.scored
    assert found.step == (STEPS - 1) // (EVERY // BATCH) * (EVERY // BATCH)
    assert found.auc == pytest.approx(alone.auc, abs=0.02)
    assert found.logloss == pytest.approx(alone.logloss, abs=0.02)


def test_replaced_trainers_have_the_measured_workers(tmp_path: Path) -> None:
    """The first leader has measured, and was lost since. No trainer here would measure that many."""
    job = replace(JOBS["two_trainers"](tmp_path), workers=MEASURED)
    found = WorkersManifest(CONTRACT_VERSION, job.job_uid, 3, "measured before")
    freeze(open_store(job.snapshots.store, None, None), found)
    with with_replaced(job, tmp_path, 1, 0, last=120) as running:
        assert [running.trainer(rank).workers for rank in (0, 1)] == [3, 3]


def test_killed_trainers_leave_bytes_and_early_stop_of_a_calm_run(tmp_path: Path) -> None:
    """Shards merge the pushes of a step. The network has random numbers and buffers."""

    def ended(folder: Path, *victims: int) -> tuple[Result, dict[object, Tensor]]:
        folder.mkdir()
        job = JOBS["noisy"](folder)
        evaluation = EvaluationSpec(EVERY, 10**6, EarlyStopSpec("AUC", 4, 0.02))
        data = replace(job.data, hold_out=0.1)
        job = replace(job, trainers=2, sparse_updates="PerStep", data=data, evaluation=evaluation)
        with with_replaced(job, folder, *victims) as running:
            anchor = running.result()
            result = from_json(Result, running.trainers[running.leader].termination_message)
        tensors = read_tensors(store := open_store(job.snapshots.store, None, None), read_anchor(store, anchor))
        # The scores of training since the last merge are lost with a trainer.
        tables = dict(enumerate(saved_model(job, anchor, folder / "model").tables))
        return result, tables | {name: each for name, each in tensors.items() if name != "evaluation"}

    (calm, expected), (result, tensors) = ended(tmp_path / "calm"), ended(tmp_path / "killed", 1, 0)
    assert result.evaluation == calm.evaluation
    assert 120 < result.anchor.step == calm.anchor.step < STEPS
    for found in (result, calm):
        assert found.best is not None
        assert (found.best.anchor.step, found.best.since) == (found.anchor.step - 4 * EVERY // BATCH, 4)
    assert {"network", "buffer.bottom.1.running_var", "verdict"} <= tensors.keys() == expected.keys()
    for name, each in tensors.items():
        assert torch.equal(each, expected[name]), name


def meet(running: LocalJob) -> AnchorRef:
    """Bring trainers without lockstep to one step; return its anchor."""
    running.meet = True
    running.publish()
    anchor = running.wait_for(lambda: running.trainer(running.leader).met, "all have met")
    assert isinstance(anchor, AnchorRef)
    assert is_even(open_store(running.job.snapshots.store, None, None), anchor)
    return anchor


@pytest.mark.parametrize("sync", ["AllReduce", "ShadowEASGD"])
def test_changed_number_of_trainers_trains_every_sample_once(tmp_path: Path, sync: DenseSync) -> None:
    """Two, three, and two again. Without lockstep the leader of the three is killed before the common step."""
    job, anchor = replace(JOBS["two_trainers"](tmp_path), dense_sync=sync), None
    for generation, (trainers, until) in enumerate(((2, 60), (3, 140)), start=1):
        part = replace(job, trainers=trainers)
        with resized(part, tmp_path / f"run-{generation}", generation, anchor) as running:
            running.hold_at(until + 20)
            running.start(run_held)
            reach(running, until)
            if not job.lockstep:
                if generation == 2:
                    running.kill(running.trainers[1], signal.SIGSTOP)
                    running.meet = True
                    running.publish()
                    running.wait_for(lambda r=running: r.trainer().state is TrainerState.MEETING, "the leader waits")
                    running.kill(running.trainers[0])
                    running.kill(running.trainers[1], signal.SIGCONT)
                    running.replace_trainers(0, leader=1)
                there = meet(running)
            anchor = stop(running)
            assert until <= anchor.step < STEPS
            assert job.lockstep or anchor == there
    with resized(job, tmp_path / "run-3", 3, anchor) as running:
        running.start()
        result = running.result()
        shards = [running.shard(index) for index in (0, 1)]
    assert result.samples == SAMPLES
    assert [shard.lost for shard in shards] == [(), ()]
    assert [shard.row_updates.lost for shard in shards if shard.row_updates] == [0, 0]
