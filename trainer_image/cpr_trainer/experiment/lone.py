"""A whole job in one process: one trainer, and all tables in one arena.

The arithmetic is the product's own, and shard for shard the same as that of a job: each row is updated on its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import torch

from cpr_contract.spec import JobSpec, samples_at
from cpr_trainer.access import find_access
from cpr_trainer.arrays import Ints
from cpr_trainer.data.batch import Dataset
from cpr_trainer.data.order import BatchOrder
from cpr_trainer.evaluation import ProgressiveValidation
from cpr_trainer.model.replica import DenseReplica
from cpr_trainer.placement import Placement
from cpr_trainer.tables.arena import Arena
from cpr_trainer.tables.seeding import Seeding
from cpr_trainer.trainer.compute import compute

#: Told now and then how many samples are trained.
Tell = Callable[[int], None]
_TELLS = 100


class Injection(Protocol):
    """What failures, and the saves against them, do to the rows of a `LoneTrainer`."""

    def after_step(self, step: int, slots: Ints) -> None:
        """Act once `step` (from 1) is trained; it updated the rows in `slots`, int64 [u], all different."""


class LoneTrainer:
    """Trains a job's samples, with `seed` in the place of `data.seed`; the samples themselves stay the same.

    The slot of a row in the arena is its place: shard i of S holds the slots from starts[i] to starts[i + 1] of
    `Placement.of(job.model, S)`.
    """

    def __init__(self, job: JobSpec, dataset: Dataset, seed: int) -> None:
        self.order = BatchOrder.of(replace(job.data, seed=seed), dataset.layout)
        self.validation = ProgressiveValidation(self.order.total_samples)
        self.replica = DenseReplica(job.model, seed)
        self._dataset = dataset
        self._placement = Placement.of(job.model, 1)
        self.arena = Arena.empty(job, self._placement.total)
        self.arena.seed(self._placement, 0, Seeding(job.model, seed))

    def train(self, injection: Injection | None, tell: Tell) -> None:
        """Train and score all steps. Raises DataError, DivergedError."""
        steps = self.order.steps
        for step in range(1, steps + 1):
            slots = self._train_step(step)
            if injection is not None:
                injection.after_step(step, slots)
            if step * _TELLS // steps > (step - 1) * _TELLS // steps:
                tell(samples_at(step, self.order.batch_size, self.order.total_samples))
        self.validation.merge(self.validation.take_delta())

    def _train_step(self, step: int) -> Ints:
        """Train one step; return the slots of the rows that it updated."""
        batch = self._dataset.take(self.order.batch_indices(step))
        access = find_access(self._placement, batch.ids)
        slots = access.unique.places
        computed = compute(self.replica, batch, access, lambda: torch.from_numpy(self.arena.gather(slots)), len(batch))
        self.validation.add(computed.logits, computed.labels, self.order.slice_of(step).start)
        self.replica.step()
        self.arena.apply(slots, computed.row_gradients.numpy())
        return slots
