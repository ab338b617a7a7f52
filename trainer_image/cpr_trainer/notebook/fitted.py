"""What `fit` returns: how well the model scores, and the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import torch
from torch import nn

from cpr_contract.spec import ModelSpec
from cpr_trainer.access import find_access, of_bands
from cpr_trainer.arrays import Floats, Ints
from cpr_trainer.data.batch import Batch, Dataset
from cpr_trainer.evaluate import logits_of
from cpr_trainer.evaluation import ProgressiveValidation
from cpr_trainer.placement import Placement
from cpr_trainer.tables.arena import Arena


@dataclass(frozen=True, slots=True)
class Score:
    """The scores of `samples`.

    auc, log_loss (nats): of the first label; `auc` is None if it is the same in all samples, both without any sample,
    or label. metrics: figures by name, "calibration" or with several labels "LABEL.auc", "LABEL.logloss" and
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

    network: the dense part, in evaluation mode. dataset: the samples, those held out last. arena: the rows of all
    tables by their place.
    """

    samples: int
    samples_per_s: float
    loss: float
    progressive: Score
    held_out: Score | None
    network: nn.Module = field(repr=False)
    dataset: Dataset = field(repr=False)
    model: ModelSpec = field(repr=False)
    arena: Arena = field(repr=False)
    placement: Placement = field(repr=False)

    def rows(self, table: str, ids: Sequence[int] | Ints) -> Floats:
        """Return the embedding vectors of some rows of a table, float32 [len(ids), D], a copy.

        Raises ValueError for a table or a row that there is not.
        """
        names = [each.name for each in self.model.tables]
        if table not in names:
            raise ValueError(f"there is no table {table!r}: use one of {', '.join(names)}")
        place = names.index(table)
        wanted, size = np.asarray(ids, np.int64), self.model.tables[place].rows
        if wanted.size and not (int(wanted.min()) >= 0 and int(wanted.max()) < size):
            raise ValueError(f"the rows of table {table!r} are numbered from 0 to {size - 1}")
        segment = self.arena.segments[int(self.placement.band_of[place])]
        found: Floats = segment.rows[segment.within(self.placement.places(wanted + self.placement.offsets[place]))]
        return found

    def batch(self, rows: Sequence[int]) -> Batch:
        """Return some rows of the dataset, by their numbers from 0. Raises ValueError if there are not so many."""
        wanted, size = np.asarray(rows, np.int64), self.dataset.layout.rows
        if wanted.size and not (int(wanted.min()) >= 0 and int(wanted.max()) < size):
            raise ValueError(f"the rows of the dataset are numbered from 0 to {size - 1}")
        return self.dataset.take(wanted)

    @torch.no_grad()
    def predict(self, batch: Batch) -> Floats:
        """Return what is predicted of each sample, float32 [n] or [n, L]; the labels in `batch` are not looked at.

        Of a label it is the probability of 1, of a target the network's output as it is.
        Computed in float32 and in the mode of `network`, as `cprjob evaluate` does.
        """
        access = find_access(self.placement, batch.ids)
        vectors = of_bands(tuple(map(torch.from_numpy, self.arena.read(access.unique.places))))
        outputs = logits_of(self.network, batch, access, vectors)
        if not self.model.targets:
            outputs = torch.sigmoid(outputs)
        elif self.model.labels:
            outputs[:, : len(self.model.labels)].sigmoid_()
        predicted: Floats = outputs.numpy()
        return predicted
