"""Progressive validation: each batch is scored before it trains; the first fifth of all samples is left out.

Scores are kept as a histogram over the logit, in integers: what trainers counted apart adds up in any order to the
same bits, in one all-reduce of one tensor of 256 KiB.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cpr_trainer.errors import DivergedError

#: 1 / 512 of a logit each: samples within one count as ties, which costs less than 1e-3 of AUC for any useful spread.
BINS = 2**14
_HIGHEST_LOGIT = 16.0
_BINS_PER_LOGIT = BINS / (2 * _HIGHEST_LOGIT)
#: Log loss is summed in these parts of a nat: 2**39 nats fit.
_PARTS_PER_NAT = 2**24
_UNSCORED_FRACTION = 5
#: No model that learns comes near; small enough that no sum of losses overflows.
_DIVERGED_LOGIT = 1e4
COUNTERS = 2 * BINS + 1


class ProgressiveValidation:
    """One trainer's view of the score: what all trainers have merged, and its own part that is not merged yet.

    A tensor of counters is int64 [COUNTERS]: negatives by bin, positives by bin, log loss in 2**-24 nats.
    """

    def __init__(self, total_samples: int) -> None:
        self._unscored = total_samples // _UNSCORED_FRACTION
        self._merged = torch.zeros(COUNTERS, dtype=torch.int64)
        self._own = torch.zeros(COUNTERS, dtype=torch.int64)

    @torch.no_grad()
    def add(self, logits: Tensor, labels: Tensor, first_sample: int) -> None:
        """Count a slice that is about to be trained.

        logits, labels: float32 [n]. first_sample: global number, from 0, of the slice's first sample; the others
        follow it. Raises DivergedError if a logit, scored or not, is no sensible number.
        """
        if not bool((logits.abs() < _DIVERGED_LOGIT).all()):  # Not a number is not less either.
            raise DivergedError(
                f"A logit is beyond {_DIVERGED_LOGIT:.0e} or no number, near sample {first_sample}.",
                "Start again with a lower learning rate.",
            )
        skipped = max(0, self._unscored - first_sample)
        logits, labels = logits[skipped:].cpu(), labels[skipped:].cpu()
        bins = ((logits + _HIGHEST_LOGIT) * _BINS_PER_LOGIT).long().clamp_(0, BINS - 1)
        self._own.index_add_(0, bins + BINS * labels.long(), torch.ones_like(bins))
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits.double(), labels.double(), reduction="sum")
        self._own[-1] += round(float(loss) * _PARTS_PER_NAT)

    def take_delta(self) -> Tensor:
        """Return this trainer's counters since the last call, and forget them: to be summed over trainers."""
        delta, self._own = self._own, torch.zeros_like(self._own)
        return delta

    def merge(self, delta: Tensor) -> None:
        """Add counters that were summed over all trainers."""
        self._merged += delta.to(self._merged)

    def state(self) -> Tensor:
        """Return a copy of the merged counters; what is not merged is not part of it."""
        return self._merged.clone()

    def load_state(self, state: Tensor) -> None:
        """Go to a state that `state` returned; own counters are dropped. ValueError if it is none."""
        if state.shape != self._merged.shape or state.dtype != self._merged.dtype:
            raise ValueError(f"an evaluation state is int64 [{COUNTERS}], not {state.dtype} {tuple(state.shape)}")
        self._merged.copy_(state)
        self._own.zero_()

    @property
    def samples(self) -> int:
        """Merged samples that were scored."""
        return int(self._merged[:-1].sum())

    def log_loss(self) -> float | None:
        """Return the mean log loss of the merged samples in nats; None before the first."""
        return float(self._merged[-1]) / _PARTS_PER_NAT / self.samples if self.samples else None

    def auc(self) -> float | None:
        """Return the area under the ROC curve of the merged samples; None until both labels were seen.

        The share of (positive, negative) pairs in the right order, ties within a bin counting half: the trapezoids.
        """
        negatives, positives = self._merged[:-1].view(2, BINS).double()
        pairs = float(negatives.sum() * positives.sum())
        if not pairs:
            return None
        below = negatives.cumsum(0) - negatives
        return float((positives * (below + negatives / 2)).sum()) / pairs
