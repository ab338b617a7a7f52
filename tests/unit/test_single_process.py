"""A whole job in one process, against the oracle; and what losses do to its rows, step by step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cpr_contract.spec import JobSpec
from cpr_trainer.arrays import Ints
from cpr_trainer.calibration import InjectedLosses, SavedRows, StepLoss
from cpr_trainer.data.dataset import Dataset
from cpr_trainer.data.open import files_of, open_dataset
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.single_process import SingleProcessTrainer
from support.local_job import small_job
from support.model import assert_close, single_process_model, train_alone
from support.row_optimizers import Kind

STEPS, BATCH, SHARDS = 30, 100, 3


@pytest.fixture
def job(tmp_path: Path) -> JobSpec:
    return small_job(tmp_path, samples=STEPS * BATCH, shards=SHARDS, batch_size=BATCH)


def samples_of(job: JobSpec) -> Dataset:
    return open_dataset(job.data, job.model, files_of(job))


def shard_rows(job: JobSpec, shard: int) -> slice:
    starts = Placement.of(job.model, SHARDS).starts.tolist()
    return slice(starts[shard], starts[shard + 1])


@pytest.mark.parametrize("kind", ["RowWiseAdagrad", "SGD"])
def test_without_losses_it_is_the_oracle(job: JobSpec, kind: Kind) -> None:
    sparse = replace(job.model.sparse_optimizer, kind=kind)
    job = replace(job, model=replace(job.model, sparse_optimizer=sparse))
    found = single_process_model(job)
    assert_close(found, train_alone(job))
    assert found.scored == STEPS * BATCH * 4 // 5


class NaiveLosses:
    """Losses by copies of everything."""

    def __init__(self, trainer: SingleProcessTrainer, losses: tuple[StepLoss, ...], job: JobSpec) -> None:
        self._arena, self._losses, self._job = trainer.tables.arena, losses, job
        self._copies = {0: (self._arena.rows.copy(), self._arena.state.copy())}
        self.lost_updates = 0
        self._touched: dict[int, Ints] = {}

    def after_step(self, step: int, slots: Ints) -> None:
        self._touched[step] = slots
        for loss in self._losses:
            if loss.at == step:
                rows = shard_rows(self._job, loss.shard)
                old_rows, old_sums = self._copies[loss.back_to]
                self._arena.rows[rows], self._arena.state[rows] = old_rows[rows], old_sums[rows]
                for each in range(loss.back_to + 1, step + 1):
                    touched = self._touched[each]
                    self.lost_updates += int(((touched >= rows.start) & (touched < rows.stop)).sum())
        self._copies[step] = (self._arena.rows.copy(), self._arena.state.copy())


def test_training_continues_from_the_restored_state(job: JobSpec) -> None:
    losses = (
        StepLoss(shard=0, back_to=0, at=4),
        StepLoss(shard=0, back_to=4, at=9),
        StepLoss(shard=0, back_to=20, at=21),
        StepLoss(shard=1, back_to=6, at=9),
        StepLoss(shard=2, back_to=6, at=STEPS),
    )
    naive_trainer = SingleProcessTrainer(job, samples_of(job), job.data.seed)
    naive = NaiveLosses(naive_trainer, losses, job)
    naive_trainer.train(lambda _: None, naive.after_step)
    trainer = SingleProcessTrainer(job, samples_of(job), job.data.seed)
    injected = InjectedLosses(losses, Placement.of(job.model, SHARDS), SavedRows(trainer.tables.arena))
    trainer.train(lambda _: None, injected.after_step)
    assert np.array_equal(trainer.tables.arena.rows, naive_trainer.tables.arena.rows)
    assert np.array_equal(trainer.tables.arena.state, naive_trainer.tables.arena.state)
    assert torch.equal(trainer.replica.parameters, naive_trainer.replica.parameters)
    assert trainer.scores.validation.auc() == naive_trainer.scores.validation.auc()
    assert injected.lost_row_updates == naive.lost_updates > 0


def test_a_seed_is_an_order_and_first_values_over_the_same_samples(job: JobSpec) -> None:
    dataset = samples_of(job)
    one, other = SingleProcessTrainer(job, dataset, 1), SingleProcessTrainer(job, dataset, 2)
    assert not np.array_equal(one.tables.arena.rows, other.tables.arena.rows)
    assert not torch.equal(one.replica.parameters, other.replica.parameters)
    assert one.order.batch_indices(1).tolist() != other.order.batch_indices(1).tolist()
    every = [np.sort(np.concatenate([t.order.batch_indices(s) for s in range(1, STEPS + 1)])) for t in (one, other)]
    assert np.array_equal(every[0], every[1])
