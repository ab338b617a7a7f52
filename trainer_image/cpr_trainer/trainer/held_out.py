"""Evaluation during training: each trainer scores a part of the held-out samples.

After the step of an evaluation each trainer scores its part before it takes the next step, and the counters are summed
with that step's gradients. An evaluation is therefore complete if and only if the next step is; a trainer that takes
the step again uses its scores again, or scores again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from cpr_contract.reports import HeldOutScores
from cpr_contract.spec import JobSpec
from cpr_trainer.data.dataset import Batch
from cpr_trainer.data.open import evaluation_rows
from cpr_trainer.embedding.access import Rows, map_rows
from cpr_trainer.evaluation import ProgressiveValidation, first_of
from cpr_trainer.exchange import Exchange
from cpr_trainer.group_scores import Grouped
from cpr_trainer.model.entrypoint import set_training, start
from cpr_trainer.model.replica import DenseReplica
from cpr_trainer.trainer.compute import seed_draws
from cpr_trainer.trainer.prefetch import Slice, Vectors, slice_of
from cpr_trainer.trainer.setup import Setup
from cpr_trainer.trainer.shards import Shards
from cpr_trainer.trainer.store_retry import RetryingReader


class HeldOutEvaluator:
    """Scores this trainer's part of the held-out samples, which is read once and kept in memory."""

    def __init__(self, setup: Setup, exchange: Exchange, shards: Shards, reader: RetryingReader) -> None:
        self._setup = setup
        self._exchange = exchange
        self._shards = shards
        self._reader = reader
        self._slices: tuple[Slice, ...] | None = None
        self._grouped: Grouped | None = None
        self._first = 0
        self._counters: tuple[Tensor, ...] = ()
        self._scored_step = 0

    def reset(self) -> None:
        """Discard the scores: the job was rolled back."""
        self._counters, self._scored_step = (), 0

    def due(self, step: int) -> bool:
        """Return whether the model of this step is scored with the next step. The last step has no next one.

        If an evaluation may end the job, all trainers wait for it instead: see `barriers`.
        """
        spec = self._setup.job.evaluation
        if spec is None or not spec.every or spec.early_stop is not None or not 0 < step < self._setup.last_step:
            return False
        return self._setup.samples_at(step) // spec.every > self._setup.samples_at(step - 1) // spec.every

    def score(self, step: int, replica: DenseReplica) -> None:
        """Score this trainer's part by the model of this step, if that is due and not done. See `score_at_barrier`."""
        if self.due(step):
            self._score(step, replica)

    def score_at_barrier(
        self, step: int, replica: DenseReplica, sum_up: Callable[[tuple[Tensor, ...]], None]
    ) -> HeldOutScores:
        """Return the scores of all trainers by the model of this step, at which they wait; `sum_up` sums in place.

        Raises what ends a wait, DataError, DivergedError.
        """
        self._score(step, replica)
        counters = tuple(each.clone() for each in self._counters)
        sum_up(counters)
        return self.scores(step, counters, replica)

    def _score(self, step: int, replica: DenseReplica) -> None:
        if self._scored_step == step:
            return
        scores = self._fresh(replica)
        set_training(replica.model, on=False)
        seed_draws(replica.device, self._setup.job.data.seed, self._setup.rank, step)
        found: list[Tensor] = []
        for batch_slice, vectors in self._prefetched(step):
            fetched = self._shards.fetch(vectors)
            logits = _logits(replica, batch_slice, fetched)
            scores.add_held_out(logits, batch_slice.batch.labels, batch_slice.batch.sample_weights)
            found.append(first_of(logits))
        self._counters, self._scored_step = (scores.take_delta(),), step
        if self._grouped is not None:
            # This trainer's logits at their places among those of all, with 0 elsewhere: the sum over trainers is
            # exact, because only one of them has each logit.
            of_all = torch.zeros(len(self._grouped))
            own = torch.cat([of_all[:0], *found])
            of_all[self._first : self._first + len(own)] = own
            self._counters += (of_all,)

    def counters(self, step: int) -> tuple[Tensor, ...]:
        """Return copies of the counters to be summed in this step, if there are any.

        int64 [n], see `ProgressiveValidation`, and with a group column float32 [n], the logits of all.
        """
        return tuple(each.clone() for each in self._counters) if self.due(step - 1) else ()

    def scores(self, step: int, summed: Sequence[Tensor], replica: DenseReplica) -> HeldOutScores:
        """Return the scores of all trainers by the model of this step, from the sum of their counters."""
        merged = self._fresh(replica)
        merged.merge(summed[0])
        by_group = None if self._grouped is None else self._grouped.scores(summed[1].numpy())
        return HeldOutScores(
            step=step,
            samples=self._setup.samples_at(step),
            scored=merged.samples,
            auc=merged.auc(),
            logloss=merged.log_loss(),
            normalised_entropy=merged.normalised_entropy(),
            calibration=merged.calibration(),
            gauc=None if by_group is None else by_group.gauc,
            groups=() if by_group is None else by_group.groups,
            rest=None if by_group is None else by_group.rest,
        )

    def _fresh(self, replica: DenseReplica) -> ProgressiveValidation:
        return ProgressiveValidation.of(0, self._setup.job.model, replica.model)

    def _prefetched(self, step: int) -> Iterator[tuple[Slice, Vectors]]:
        """Yield each slice with its vectors, after those of the next slice were requested, too."""
        if self._slices is None:
            self._slices = self._read_own()
        requested: tuple[Slice, Vectors] | None = None
        for batch_slice in self._slices:
            vectors = Vectors(self._exchange, replace(batch_slice, step=step + 1))
            vectors.request_all()
            if requested is not None:
                yield requested
            requested = (batch_slice, vectors)
        if requested is not None:
            yield requested

    def _read_own(self) -> tuple[Slice, ...]:
        """Read this trainer's part; with a group column also the labels and groups of all parts."""
        setup, own = self._setup, tuple[Slice, ...]()
        spec, rows = setup.job.evaluation, setup.evaluation_data.layout.rows
        grouped, first = [], 0
        has_groups = spec is not None and spec.group_by is not None
        for rank in range(setup.job.trainers) if has_groups else (setup.rank,):
            batches = tuple(map(self._read, parts_of(setup.job, rows, rank)))
            if rank == setup.rank:
                self._first = first
                own = tuple(slice_of(0, batch, setup.placement) for batch in batches)
            grouped += [(each.labels, each.groups, each.sample_weights) for each in batches if each.groups is not None]
            first += sum(map(len, batches))
        self._grouped = Grouped.of(grouped) if has_groups else None
        return own

    def _read(self, rows: range) -> Batch:
        numbers = np.arange(rows.start, rows.stop, dtype=np.int64)
        return self._reader.read(lambda: self._setup.evaluation_data.take(numbers))


def parts_of(job: JobSpec, rows: int, rank: int) -> Iterator[range]:
    """Yield the rows, of the `rows` of a dataset, that a rank scores, in batches of about its slice's size."""
    spec, held_out = job.evaluation, evaluation_rows(job, rows)
    count = len(held_out) if spec is None else min(len(held_out), spec.samples)
    first, last = (held_out.start + count * edge // job.trainers for edge in (rank, rank + 1))
    size = max(1, job.data.batch_size // job.trainers)
    for begin in range(first, last, size):
        yield range(begin, min(begin + size, last))


@torch.no_grad()
def _logits(replica: DenseReplica, batch_slice: Slice, vectors: Rows) -> Tensor:
    """Return the logits of a slice, [n] or [n, L], float32 on the CPU. vectors: of its unique rows, on the CPU."""
    dense = torch.from_numpy(batch_slice.batch.dense).to(replica.device)
    on_device = map_rows(lambda values: values.to(replica.device, replica.dtype), vectors)
    with replica.autocast():
        begun = start(replica.model, dense, batch_slice.batch.labels.shape[1:])
        logits = begun(batch_slice.access.to(replica.device).embeddings(on_device))
    return logits.float().cpu()
