"""Evaluation while the job trains: what held-out samples score, each trainer its part of them.

After a step that an evaluation is due at, each trainer scores its part before it takes the next step; the counters add
up in that step's sum. So an evaluation is complete if and only if the next step is, and whoever takes that step again
has what it scored, or scores it again.
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
from cpr_trainer.trainer.prefetch import Slice, Vectors, slice_of
from cpr_trainer.trainer.setup import Setup
from cpr_trainer.trainer.shards import Shards
from cpr_trainer.trainer.store_retry import RetryingReader


class HeldOutEvaluator:
    """This trainer's part of the held-out samples, which it reads once and keeps in memory."""

    def __init__(self, setup: Setup, exchange: Exchange, shards: Shards, reader: RetryingReader) -> None:
        self._setup = setup
        self._exchange = exchange
        self._shards = shards
        self._reading = reader
        self._slices: tuple[Slice, ...] | None = None
        self._grouped: Grouped | None = None
        self._first = 0
        self._counters: tuple[Tensor, ...] = ()
        self._scored_step = 0

    def forget(self) -> None:
        """Score anew what was scored before: the job went back."""
        self._counters, self._scored_step = (), 0

    def due(self, step: int) -> bool:
        """Whether the model of this step is to be scored with the next step. The last one is not: no step follows it.

        Where an evaluation may end the job, all stand for it instead: see `stops`.
        """
        spec = self._setup.job.evaluation
        if spec is None or not spec.every or spec.early_stop is not None or not 0 < step < self._setup.last_step:
            return False
        return self._setup.samples_at(step) // spec.every > self._setup.samples_at(step - 1) // spec.every

    def score(self, step: int, replica: DenseReplica) -> None:
        """Score this trainer's part by the model of this step, where that is due and not done.

        Raises what ends a wait, DataError, DivergedError.
        """
        if self.due(step):
            self._score(step, replica)

    def score_at_barrier(
        self, step: int, replica: DenseReplica, sum_up: Callable[[tuple[Tensor, ...]], None]
    ) -> HeldOutScores:
        """Return what all trainers score by the model of this step, at which they stand; `sum_up` sums in place.

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
        found: list[Tensor] = []
        for wanted, vectors in self._asked_ahead(step):
            fetched = self._shards.fetch(vectors)
            logits = _logits(replica, wanted, fetched)
            scores.add(logits, torch.from_numpy(wanted.batch.labels), 0)
            found.append(first_of(logits))
        self._counters, self._scored_step = (scores.take_delta(), *self._among_all(found)), step

    def _among_all(self, found: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return this trainer's logits at their places among those of all, float32 [n], with 0 elsewhere.

        The sum over trainers is exact, because one of them has each. Nothing without a group column.
        """
        if self._grouped is None:
            return ()
        everybodys = torch.zeros(len(self._grouped))
        own = torch.cat([everybodys[:0], *found])
        everybodys[self._first : self._first + len(own)] = own
        return (everybodys,)

    def counters(self, step: int) -> tuple[Tensor, ...]:
        """Return what is to be summed in the sum of this step: copies, or nothing.

        int64 [n], see `ProgressiveValidation`, and with a group column float32 [n], the logits of all.
        """
        return tuple(each.clone() for each in self._counters) if self.due(step - 1) else ()

    def scores(self, step: int, summed: Sequence[Tensor], replica: DenseReplica) -> HeldOutScores:
        """Return what all trainers scored by the model of this step, from the sum of what each has counted."""
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

    def _asked_ahead(self, step: int) -> Iterator[tuple[Slice, Vectors]]:
        """Yield each slice with its vectors on their way; those of the next one are asked for before."""
        if self._slices is None:
            self._slices = self._read_own()
        ahead: tuple[Slice, Vectors] | None = None
        for wanted in self._slices:
            vectors = Vectors(self._exchange, replace(wanted, step=step + 1))
            vectors.request_all()
            if ahead is not None:
                yield ahead
            ahead = (wanted, vectors)
        if ahead is not None:
            yield ahead

    def _read_own(self) -> tuple[Slice, ...]:
        """Read this trainer's part, and with a group column labels and groups of all parts."""
        setup, own = self._setup, tuple[Slice, ...]()
        spec, rows = setup.job.evaluation, setup.scored.layout.rows
        grouped, first = [], 0
        everybody = spec is not None and spec.group_by is not None
        for rank in range(setup.job.trainers) if everybody else (setup.rank,):
            batches = tuple(map(self._read, parts_of(setup.job, rows, rank)))
            if rank == setup.rank:
                self._first = first
                own = tuple(slice_of(0, batch, setup.placement) for batch in batches)
            grouped += [(batch.labels, batch.groups) for batch in batches if batch.groups is not None]
            first += sum(map(len, batches))
        self._grouped = Grouped.of(grouped) if everybody else None
        return own

    def _read(self, rows: range) -> Batch:
        numbers = np.arange(rows.start, rows.stop, dtype=np.int64)
        return self._reading.read(lambda: self._setup.scored.take(numbers))


def parts_of(job: JobSpec, rows: int, rank: int) -> Iterator[range]:
    """Yield the rows, of a dataset of so many, that a rank scores: about as many at once as it trains."""
    spec, kept = job.evaluation, evaluation_rows(job, rows)
    count = len(kept) if spec is None else min(len(kept), spec.samples)
    first, last = (kept.start + count * edge // job.trainers for edge in (rank, rank + 1))
    size = max(1, job.data.batch_size // job.trainers)
    for begin in range(first, last, size):
        yield range(begin, min(begin + size, last))


@torch.no_grad()
def _logits(replica: DenseReplica, wanted: Slice, vectors: Rows) -> Tensor:
    """Return the logits of a slice, [n] or [n, L], float32 on the CPU. vectors: of its unique rows, on the CPU."""
    dense = torch.from_numpy(wanted.batch.dense).to(replica.device)
    there = map_rows(lambda values: values.to(replica.device, replica.dtype), vectors)
    with replica.autocast():
        begun = start(replica.model, dense, wanted.batch.labels.shape[1:])
        logits = begun(wanted.access.to(replica.device).embeddings(there))
    return logits.float().cpu()
