"""What a trainer scored and has not yet merged with the others: progressive validation and training loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cpr_trainer.evaluation import ProgressiveValidation

#: Steps between two merges; cuts and the last step merge as well.
MERGE_STEPS = 32


@dataclass(frozen=True, slots=True, eq=False)
class ScoredSlice:
    """One trainer's slice of `step`, the `trainers`-th part of it.

    logits, labels: float32 [n] or [n, L], the logits before training. first_sample: the global number of the slice's
    first. loss_share: its part of the mean loss of the step.
    """

    step: int
    trainers: int
    first_sample: int
    logits: Tensor
    labels: Tensor
    loss_share: float


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """All that makes scores but for `loss`. step: the last one that was scored.

    merged, own, unmerged: int64 [n], see `ProgressiveValidation.counters`, and what a merge that did not come about was
    to take in. loss_shares: float64 [2].
    """

    merged: Tensor
    own: Tensor
    unmerged: Tensor | None
    loss_shares: Tensor
    step: int


class Scores:
    """Scores each step once, however often it is computed, and merges in two phases around an all-reduce.

    `loss` is the mean loss of the steps merged last, in nats unless the network has its own; None before the first
    merge.
    """

    def __init__(self, validation: ProgressiveValidation) -> None:
        self.validation = validation
        self.loss: float | None = None
        self._scored_step = 0
        self._unmerged: Tensor | None = None
        self._loss_shares = torch.zeros(2, dtype=torch.float64)  # of the steps' losses, and of the steps

    def add(self, part: ScoredSlice) -> None:
        """Count this trainer's slice of a step."""
        if part.step <= self._scored_step:
            return  # A group broke in this step: it is computed again, and was scored before.
        self._scored_step = part.step
        self.validation.add(part.logits, part.labels, part.first_sample)
        self._loss_shares += torch.tensor((part.loss_share, 1 / part.trainers), dtype=torch.float64)

    def to_merge(self) -> tuple[Tensor, Tensor]:
        """Return copies of what is not merged, to be summed over all trainers: int64 counters, float64 [2] losses."""
        delta = self.validation.take_delta()
        self._unmerged = delta if self._unmerged is None else self._unmerged + delta
        return self._unmerged.clone(), self._loss_shares.clone()

    def merge(self, counters: Tensor, loss_shares: Tensor) -> None:
        """Take in the sums of what all trainers returned from `to_merge`."""
        self.validation.merge(counters)
        self._unmerged = None
        total, steps = loss_shares.tolist()
        self.loss = total / steps if steps else self.loss
        self._loss_shares.zero_()

    def report_fields(self) -> dict[str, Any]:
        """Return what is reported of the merged scores, by the fields of a report; None for what is not known yet."""
        validation = self.validation
        scores = {"auc": validation.auc(), "logloss": validation.log_loss(), "metrics": validation.metrics()}
        return {"loss": self.loss, **scores}

    def scored(self) -> Scored:
        """Return what there is, no copies: it changes with every step."""
        return Scored(*self.validation.counters(), self._unmerged, self._loss_shares, self._scored_step)

    def resume(self, scored: Scored, loss: float | None) -> None:
        """Go to what `scored` returned, and was copied."""
        self.validation.resume(scored.merged, scored.own)
        self._unmerged, self._loss_shares, self._scored_step = scored.unmerged, scored.loss_shares, scored.step
        self.loss = loss

    def merged(self) -> Tensor:
        """Return the merged counters: the same on all trainers after the same step."""
        return self.validation.state()

    def load(self, merged: Tensor) -> None:
        """Take another trainer's merged counters, or saved ones; what is not merged here is dropped."""
        self.validation.load_state(merged)
        self._unmerged = None
        self._loss_shares.zero_()
