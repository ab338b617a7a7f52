"""A whole job in one process: one trainer, and all tables in one arena.

The arithmetic is that of a job with any number of shards, because each row is updated separately.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from cpr_contract.spec import MEASURED, JobSpec, samples_at
from cpr_trainer.arrays import Floats, Ints
from cpr_trainer.data.dataset import Dataset
from cpr_trainer.data.order import BatchOrder
from cpr_trainer.embedding.access import Rows, as_rows, find_access
from cpr_trainer.embedding.arena import LocalRows
from cpr_trainer.embedding.bfloat16 import as_floats
from cpr_trainer.embedding.dynamic.pages import BandKeys
from cpr_trainer.embedding.merged_rows import BandRows, KeyedRows, plan_changes
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.embedding.unique_rows import UniqueRows
from cpr_trainer.evaluation import ProgressiveValidation
from cpr_trainer.model.entrypoint import Factory
from cpr_trainer.model.replica import DenseReplica
from cpr_trainer.trainer.compute import ComputeWorkers, compute
from cpr_trainer.trainer.scores import MERGE_STEPS, ScoredSlice, Scores
from cprjob_serving.hashes import U64

#: Called with the number of trained samples.
ReportProgress = Callable[[int], None]
#: Called after each step (from 1) with the slots of the rows that it updated, int64 [u], all different.
AfterStep = Callable[[int, Ints], None]
_REPORTS = 100


class LocalTables:
    """All tables of a job in one arena, with first values of `seed`.

    The slot of a static row is its place: where tables have one dim, shard i of S holds the slots from starts[i] to
    starts[i + 1] of `Placement.of(job.model, S)`. step: the last one taken, 0 before the first.
    """

    def __init__(self, job: JobSpec, seed: int) -> None:
        job = replace(job, data=replace(job.data, seed=seed))
        local = LocalRows.of(job, Placement.of(job.model, 1), 0)
        self.placement, self.arena, self.step = local.placement, local.arena, 0
        self.arena.seed(self.placement, 0, local.seeding)
        self._dynamic = local.dynamic
        self._of_band = {each.band: each for each in self._dynamic}

    def read(self, rows: UniqueRows) -> Rows:
        """Return copies of rows as tensors, float32, as of the last step: those of the model."""
        return self._read(rows, self.step)

    def read_next(self, rows: UniqueRows) -> Rows:
        """Return copies of rows as tensors, float32, as the next step reads them: some keys may expire with it."""
        return self._read(rows, self.step + 1)

    def _read(self, rows: UniqueRows, step: int) -> Rows:
        found = []
        for band in range(self.placement.table_bands):
            segment = self.arena.segments[band]
            if band in self._of_band:
                vectors = self._of_band[band].read(self._keys_of(rows, band), step)
            else:
                vectors = segment.rows.take(segment.within(rows.of_band(rows.places, band)), axis=0)
            found.append(torch.from_numpy(as_floats(vectors)))
        return as_rows(tuple(found))

    def keys(self, table: int) -> U64:
        """Return the keys of a dynamic table as of the last step, uint64 [n], ascending."""
        band = self._of_band[int(self.placement.band_of[table])]
        return band.entries.keys(band.place_of(table), self.step)

    def read_keys(self, table: int, keys: U64) -> Floats:
        """Return the vectors of keys of a dynamic table as of the last step, float32 [k, D], a copy."""
        unique, inverse = np.unique(keys, return_inverse=True)
        band = self._of_band[int(self.placement.band_of[table])]
        return as_floats(band.read(band.keys_in(band.place_of(table), unique), self.step))[inverse]

    def apply(self, rows: UniqueRows, gradients: Sequence[Floats]) -> Ints:
        """Take the next step, with gradients float32 [u_b, D_b] of each band; return the slots that it changed."""
        contribution = list[BandRows | KeyedRows]()
        for band, of_band in enumerate(gradients):
            if band in self._of_band:
                contribution.append(KeyedRows(self._keys_of(rows, band), of_band))
            else:
                slots, numbers = (rows.of_band(each, band) for each in (rows.places, rows.numbers))
                contribution.append(BandRows(slots, numbers, of_band))
        self.step += 1
        changes = plan_changes(tuple(contribution), self._dynamic, self.step)
        self.arena.apply(changes.slots, changes.numbers, changes.gradients, self.step, planned=changes.planned)
        return changes.slots

    def _keys_of(self, rows: UniqueRows, band: int) -> BandKeys:
        keys, tables = rows.of_band(rows.numbers, band), rows.tables_of_keys(self.placement, band)
        return self._of_band[band].pages.locate(keys.view(np.uint64), tables)


class SingleProcessTrainer:
    """Trains a job's samples, with `seed` in place of `data.seed`; the samples themselves stay the same.

    `factory`: see `build_network`. Raises ModelError.
    """

    def __init__(self, job: JobSpec, dataset: Dataset, seed: int, factory: Factory | None = None) -> None:
        self.order = BatchOrder.of(replace(job.data, seed=seed), dataset.layout)
        self.replica = DenseReplica(job.model, seed, job.device, job.precision, factory)
        self.scores = Scores(ProgressiveValidation.of(self.order.total_samples, job.model, self.replica.model))
        self.tables = LocalTables(job, seed)
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
            access = find_access(self.tables.placement, batch.ids)
            fetch = partial(self.tables.read_next, access.unique)
            names = (self._seed, 0, step)  # those of the only trainer of a job
            size = self.order.real_samples(step)
            computed = compute(self.replica, batch, access, fetch, size, self._workers, names)
            found = computed.logits, computed.labels, computed.loss_share, computed.weights
            self.scores.add(ScoredSlice(step, 1, samples.start, *found))
            if step % MERGE_STEPS == 0 or step == steps:
                self.scores.merge(*self.scores.to_merge())
            self.replica.step(step)
            gradients = computed.row_gradients
            by_band = gradients if isinstance(gradients, tuple) else (gradients,)
            slots = self.tables.apply(access.unique, [each.float().numpy() for each in by_band])
            if after_step is not None:
                after_step(step, slots)
            if step * _REPORTS // steps > (step - 1) * _REPORTS // steps:
                report_progress(samples_at(step, self.order.batch_size, self.order.total_samples))
