"""A whole job in one process: one trainer, and all tables in one arena.

The arithmetic is that of a job with any number of shards, because each row is updated separately.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from cpr_contract.spec import MEASURED, JobSpec, samples_at
from cpr_trainer.arrays import Ints
from cpr_trainer.data.dataset import Dataset
from cpr_trainer.data.order import BatchOrder
from cpr_trainer.embedding.access import Rows, as_rows, find_access
from cpr_trainer.embedding.arena import Arena
from cpr_trainer.embedding.bfloat16 import as_floats
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.embedding.segments import Seeding
from cpr_trainer.evaluation import ProgressiveValidation
from cpr_trainer.model.entrypoint import Factory
from cpr_trainer.model.replica import DenseReplica
from cpr_trainer.trainer.compute import ComputeWorkers, compute
from cpr_trainer.trainer.scores import MERGE_STEPS, ScoredSlice, Scores

#: Called with the number of trained samples.
ReportProgress = Callable[[int], None]
#: Called after each step (from 1) with the slots of the rows that it updated, int64 [u], all different.
AfterStep = Callable[[int, Ints], None]
_REPORTS = 100


def read_rows(arena: Arena, slots: Ints) -> Rows:
    """Return copies of rows as tensors, float32."""
    return as_rows(tuple(torch.from_numpy(as_floats(rows)) for rows in arena.read(slots)))


class SingleProcessTrainer:
    """Trains a job's samples, with `seed` in place of `data.seed`; the samples themselves stay the same.

    The slot of a row in the arena is its place: where tables have one dim, shard i of S holds the slots from starts[i]
    to starts[i + 1] of `Placement.of(job.model, S)`. `factory`: see `build_network`. Raises ModelError.
    """

    def __init__(self, job: JobSpec, dataset: Dataset, seed: int, factory: Factory | None = None) -> None:
        self.order = BatchOrder.of(replace(job.data, seed=seed), dataset.layout)
        self.replica = DenseReplica(job.model, seed, job.device, job.precision, factory)
        self.scores = Scores(ProgressiveValidation.of(self.order.total_samples, job.model, self.replica.model))
        self.placement = Placement.of(job.model, 1)
        self.arena = Arena.empty(job, *self.placement.sizes(0))
        self.arena.seed(self.placement, 0, Seeding.of(job.model, seed))
        self._dataset = dataset
        self._seed = seed
        # One worker where a job would measure, so that each run has the same bits.
        self._workers = ComputeWorkers(1 if job.workers == MEASURED else job.workers)

    def train(self, report_progress: ReportProgress, after_step: AfterStep | None = None) -> None:
        """Train and score all steps. Raises DataError, DivergedError."""
        steps = self.order.steps
        for step in range(1, steps + 1):
            # As the trainer's `Stepper` does, without an exchange.
            samples = self.order.slice_of(step)
            batch = self._dataset.take(self.order.indices_of(samples))
            access = find_access(self.placement, batch.ids)
            slots = access.unique.places
            fetch = partial(read_rows, self.arena, slots)
            names = (self._seed, 0, step)  # those of the only trainer of a job
            computed = compute(self.replica, batch, access, fetch, len(samples), self._workers, names)
            self.scores.add(ScoredSlice(step, 1, samples.start, computed.logits, computed.labels, computed.loss_share))
            if step % MERGE_STEPS == 0 or step == steps:
                self.scores.merge(*self.scores.to_merge())
            self.replica.step(step)
            gradients = computed.row_gradients
            by_band = gradients if isinstance(gradients, tuple) else (gradients,)
            self.arena.apply(slots, access.unique.numbers, [each.float().numpy() for each in by_band], step)
            if after_step is not None:
                after_step(step, slots)
            if step * _REPORTS // steps > (step - 1) * _REPORTS // steps:
                report_progress(samples_at(step, self.order.batch_size, self.order.total_samples))
