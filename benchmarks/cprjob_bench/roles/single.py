"""The reference of `cprjob bench train`: one process of plain torch with all tables in memory.

It is written to be as fast as one process can be: threads prepare batches and their unique ids, the tables are one
matrix, gradients are summed by unique row, and the optimizer updates only these rows. It saves nothing and keeps no
score. Torch reads, updates and adds on all threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from functools import partial
from math import sqrt
from typing import assert_never

import numpy as np
import torch
from torch import Tensor

from cpr_contract.model import SparseOptimizerSpec
from cpr_contract.spec import JobSpec
from cpr_contract.trace import STEP_TRACE
from cpr_trainer.data.loader import Loader
from cpr_trainer.data.open import files_of, open_dataset
from cpr_trainer.data.order import BatchOrder
from cpr_trainer.embedding.access import single_tensor
from cpr_trainer.embedding.optimizers import Assignment, band_shapes
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.embedding.segments import Seeding
from cpr_trainer.model.replica import DenseReplica
from cpr_trainer.rates import rate_at
from cpr_trainer.runtime import Trace, optional_path, read_job
from cpr_trainer.trainer.compute import ComputeWorkers, compute
from cpr_trainer.trainer.prefetch import Feed


class Tables:
    """The rows of a shard, float32 [N, D], and their optimizer state [N, W], by the equations of `cpr_trainer`."""

    def __init__(self, job: JobSpec, placement: Placement, shard: int = 0) -> None:
        seeding, optimizers = Seeding.of(job.model, job.data.seed), Assignment.of(job.model)
        chunks = list(placement.rows_of(shard))
        self.rows = torch.from_numpy(np.concatenate([seeding.values(chunk.tables, chunk.rows) for chunk in chunks]))
        self.state = torch.zeros(len(self.rows), band_shapes(job.model)[0].width)
        self._optimizers = optimizers.distinct
        # The index of each row's optimizer, uint8 [N]; None if there is only one.
        self._which: Tensor | None = None
        if len(self._optimizers) > 1:
            which = np.concatenate([optimizers.of_table[chunk.tables] for chunk in chunks])
            self._which = torch.from_numpy(which.astype(np.uint8))

    def update(self, places: Tensor, gradients: Tensor, step: int) -> None:
        """Take the job's `step` (from 1). places: int64 [u], distinct. gradients: float32 [u, D]."""
        if self._which is None:
            self._update(self._optimizers[0], places, gradients, step)
            return
        which = self._which.index_select(0, places)
        for number, optimizer in enumerate(self._optimizers):
            at = (which == number).nonzero().squeeze(1)
            self._update(optimizer, places.index_select(0, at), gradients.index_select(0, at), step)

    def _update(self, optimizer: SparseOptimizerSpec, places: Tensor, gradients: Tensor, step: int) -> None:
        if optimizer.kind == "SGD":
            self.rows.index_add_(0, places, gradients, alpha=-rate_at(optimizer, step))
            return
        state = self.state.index_select(0, places)
        changes = _changes_of(optimizer, state, gradients, step)
        self.state.index_copy_(0, places, state)
        self.rows.index_add_(0, places, changes)


def _changes_of(optimizer: SparseOptimizerSpec, state: Tensor, gradients: Tensor, step: int) -> Tensor:
    """Return the change of rows by a step, [u, D], and update their state [u, W] in place."""
    rate, dim = rate_at(optimizer, step), gradients.shape[1]
    match optimizer.kind:
        case "SGD":
            return gradients * -rate
        case "RowWiseAdagrad":
            sums = state[:, 0].add_(gradients.square().mean(dim=1))
            return gradients * sums.sqrt().add_(optimizer.epsilon).reciprocal_().mul_(-rate).unsqueeze(1)
        case "Adagrad":
            roots = state[:, :dim].addcmul_(gradients, gradients).sqrt()
            return (gradients / roots.add_(optimizer.epsilon)).mul_(-rate)
        case "Adam":
            means = state[:, :dim].lerp_(gradients, 1 - optimizer.beta1)
            squares = state[:, dim : 2 * dim].lerp_(gradients.square(), 1 - optimizer.beta2)
            size = rate * sqrt(1 - optimizer.beta2**step) / (1 - optimizer.beta1**step)
            return (means / squares.sqrt().add_(optimizer.epsilon)).mul_(-size)
        case _:
            assert_never(optimizer.kind)


def run(environ: Mapping[str, str]) -> None:
    """Train all steps of the job in the environment. Raises TrainerError."""
    with closing(Trace(optional_path(environ, STEP_TRACE))) as trace:
        train(read_job(environ), trace)


def train(job: JobSpec, trace: Trace) -> tuple[DenseReplica, Tables]:
    """Train all steps; return the final network and tables. Raises DataError, DivergedError."""
    dataset = open_dataset(job.data, job.model, files_of(job))
    order = BatchOrder.of(job.data, dataset.layout)
    placement = Placement.of(job.model, 1)
    tables = Tables(job, placement)
    replica = DenseReplica(job.model, job.data.seed, job.device, job.precision, explicit=False)
    loader, workers = Loader(dataset, order, rank=0, trainers=1, first_step=1), ComputeWorkers(job.workers)
    with Feed(loader, placement, split=False) as feed:
        while (prepared := feed.take()) is not None:
            trace.lap("data")
            places = torch.from_numpy(prepared.access.unique.places)
            fetch = partial(tables.rows.index_select, 0, places)
            names = (job.data.seed, 0, prepared.step)
            computed = compute(replica, prepared.batch, prepared.access, fetch, len(prepared.batch), workers, names)
            trace.lap("compute")
            replica.step(prepared.step)
            trace.lap("optimizer")
            tables.update(places, single_tensor(computed.row_gradients).float(), prepared.step)
            trace.lap("update")
            trace.end(prepared.step)
    return replica, tables
