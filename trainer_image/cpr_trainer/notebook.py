"""Training in a notebook: a job in one Python process, by the code of its trainers and in memory.

`cprjob.fit` reads the job and calls `fit`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Self

import numpy as np
import torch
from torch import nn

from cpr_contract.model import ModelSpec
from cpr_contract.spec import JobSpec
from cpr_trainer.arrays import Floats, Ints
from cpr_trainer.data.dataset import Batch, Dataset
from cpr_trainer.data.open import (
    FindVocabularies,
    evaluation_data,
    evaluation_rows,
    files_of,
    open_dataset,
    open_evaluation,
)
from cpr_trainer.data.vocabularies import Vocabularies
from cpr_trainer.embedding.access import find_access
from cpr_trainer.errors import ModelError
from cpr_trainer.evaluate import logits_of, score_held_out
from cpr_trainer.evaluation import ProgressiveValidation
from cpr_trainer.model.entrypoint import Factory, build_network
from cpr_trainer.single_process import LocalTables, SingleProcessTrainer

_WIDTH = 40


@dataclass(frozen=True, slots=True)
class Score:
    """The scores of `samples`.

    auc, log_loss (nats): of the first label; `auc` is None if it is the same in all samples, both without any sample,
    or label. metrics: values by name, "calibration" or with several labels "LABEL.auc", "LABEL.logloss" and
    "LABEL.calibration", and those of the network's own.
    """

    samples: int
    auc: float | None
    log_loss: float | None
    metrics: Mapping[str, float]

    @classmethod
    def of(cls, scores: ProgressiveValidation) -> Self:
        """Return what was merged so far."""
        return cls(scores.samples, scores.auc(), scores.log_loss(), dict(scores.metrics()))


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """A trained model and its scores.

    progressive: of each batch before it was trained, without the first fifth. held_out: of the rows that were held out,
    None if none were. loss: nats, or what the network's own loss gives; the mean of the last steps, 32 at most.
    samples_per_s: while it trained; the data was open by then.

    network: the dense part, in evaluation mode. dataset: the samples, those held out last.
    """

    samples: int
    samples_per_s: float
    loss: float
    progressive: Score
    held_out: Score | None
    network: nn.Module = field(repr=False)
    dataset: Dataset = field(repr=False)
    model: ModelSpec = field(repr=False)
    tables: LocalTables = field(repr=False)

    def rows(self, table: str, ids: Sequence[int] | Ints) -> Floats:
        """Return the embedding vectors of some rows of a table, float32 [len(ids), D], a copy.

        `ids` are row numbers, or the keys of a dynamic table, uint64. Raises ValueError for a table or a row that there
        is not.
        """
        names = [each.name for each in self.model.tables]
        if table not in names:
            raise ValueError(f"there is no table {table!r}: use one of {', '.join(names)}")
        place = names.index(table)
        if self.model.tables[place].dynamic is not None:
            return self.tables.read_keys(place, np.asarray(ids, np.uint64))
        arena, placement = self.tables.arena, self.tables.placement
        numbers = _checked(ids, self.model.tables[place].rows, f"table {table!r}")
        segment = arena.segments[int(placement.band_of[place])]
        return segment.read(segment.within(placement.places(numbers + placement.offsets[place])))

    def batch(self, rows: Sequence[int]) -> Batch:
        """Return some rows of the dataset, by their numbers from 0. Raises ValueError for other numbers."""
        return self.dataset.take(_checked(rows, self.dataset.layout.rows, "the dataset"))

    @torch.no_grad()
    def predict(self, batch: Batch) -> Floats:
        """Return the prediction for each sample, float32 [n] or [n, L]; the labels in `batch` are ignored.

        A label gets the probability of 1, a target the network's output.
        Computed in float32 and in the mode of `network`, as `cprjob evaluate` does.
        """
        access = find_access(self.tables.placement, batch.ids)
        outputs = logits_of(self.network, batch, access, self.tables.read(access.unique))
        if not self.model.targets:
            outputs = torch.sigmoid(outputs)
        elif self.model.labels:
            outputs[:, : len(self.model.labels)].sigmoid_()
        predicted: Floats = outputs.numpy()
        return predicted


def _checked(numbers: Sequence[int] | Ints, size: int, what: str) -> Ints:
    found = np.asarray(numbers, np.int64)
    if found.size and not (int(found.min()) >= 0 and int(found.max()) < size):
        raise ValueError(f"the rows of {what} are numbered from 0 to {size - 1}")
    return found


def train(job: JobSpec, factory: Factory | None, *, progress: bool) -> Fitted:
    """Train a job to its end in this process and in memory, as its trainer would, and return the model.

    factory: see `build_network`. progress: write a bar to the standard error. The job's numbers of trainers and shards
    are ignored, and nothing is saved. Raises ModelError, DataError, StoreError, DivergedError.
    """
    if factory is not None:
        if isinstance(factory, nn.Module) or not callable(factory):
            raise ModelError(
                f"network is of type {type(factory).__name__}, not what makes one.",
                "Give the network's class, or a function of (spec, seed) that returns it.",
            )
        name = f"{factory.__module__}:{getattr(factory, '__qualname__', type(factory).__name__)}"
        job = replace(job, model=replace(job.model, entrypoint=name))
    # Raise errors of the network before the data is indexed.
    build_network(job.model, job.data.seed, job.precision, factory, job.device)
    vocabularies: Vocabularies = {}

    def build(find: FindVocabularies) -> Vocabularies:
        vocabularies.update(find(lambda: None))
        return vocabularies

    dataset = open_dataset(job.data, job.model, files_of(job), vocabularies=build)
    trainer = SingleProcessTrainer(job, dataset, job.data.seed, factory)
    samples, began = trainer.order.total_samples, perf_counter()

    def show(trained: int) -> None:
        """Write a line on the standard error again, with the samples trained so far."""
        done, speed = trained * _WIDTH // samples, trained / (perf_counter() - began)
        bar, end = "#" * done + "." * (_WIDTH - done), "\n" if trained == samples else ""
        sys.stderr.write(f"\r[{bar}] {trained} of {samples} samples, {speed:.0f} a second{end}")
        sys.stderr.flush()

    trainer.train(show if progress else lambda _samples: None)
    took_s = perf_counter() - began
    network = trainer.replica.model.cpu().eval()  # `predict` computes on the device of the rows.
    scored, held_out = dataset, None
    if evaluation_data(job) is not None:
        scored = open_evaluation(job, files_of(job), vocabularies=lambda _: vocabularies)
    if evaluation_rows(job, scored.layout.rows):
        scores = score_held_out(network, job, scored, trainer.tables.placement, trainer.tables.read)
        held_out = Score.of(scores)
    loss = trainer.scores.loss
    assert loss is not None  # noqa: S101 -- the last step was scored
    return Fitted(
        samples=samples,
        samples_per_s=samples / took_s,
        loss=loss,
        progressive=Score.of(trainer.scores.validation),
        held_out=held_out,
        network=network,
        dataset=dataset,
        model=job.model,
        tables=trainer.tables,
    )
