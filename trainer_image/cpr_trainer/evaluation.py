"""Progressive validation: each batch is scored before it trains; the first fifth of all samples is left out.

Scores are kept as histograms over the logit, and as sums, all in integers: counts of separate trainers add up in any
order to the same bits, in one all-reduce of one tensor of 256 KiB a label.
"""

from __future__ import annotations

from math import isfinite, log, prod
from typing import Self

import torch
from torch import Tensor, nn

from cpr_contract.model import ModelSpec
from cpr_trainer.arrays import Floats
from cpr_trainer.errors import DivergedError
from cpr_trainer.model.entrypoint import CustomMetrics, count_metric_sums, metric_sums, metrics

#: 1 / 512 of a logit each: samples within one count as ties, which costs less than 1e-3 of AUC for any useful spread.
BINS = 2**14
_HIGHEST_LOGIT = 16.0
_BINS_PER_LOGIT = BINS / (2 * _HIGHEST_LOGIT)
#: Log loss is counted in these parts of a nat: 2**39 nats fit.
_PARTS = 2**24
#: A network's own sum is two counters, of these and of what is left in parts: what 5e8 slices give fits.
_UNIT = 2**10
_LARGEST_SUM = 1e12
#: Sums of weights, and of weighted losses, are two counters, too: in coarse parts, and the rest in fine ones, which are
#: carried beyond a coarse part. Weights from 1e-9 on count to 0.1 %, and 1e17 of them fit.
_COARSE, _FINE, _CARRY_BITS = 2**6, 2**40, 34
_UNSCORED_FRACTION = 5
#: Beyond the logits of any model that learns; small enough that no sum of losses overflows.
_DIVERGED_LOGIT = 1e4
#: The counters of one label.
COUNTERS = 2 * BINS + 1


class ProgressiveValidation:
    """One trainer's view of the scores: those that all trainers have merged, and its part that is not merged yet.

    Counters are int64 [L COUNTERS + 2 k + 1]. Each of the L labels has negatives by bin, positives by bin, and log loss
    in 2**-24 nats. If samples have weights, these are sums of weights and of weighted losses, and each is two counters.
    The k sums of the network's own metrics follow, then the number of scored samples. Targets have scores only by the
    network's own metrics.
    """

    def __init__(
        self,
        total_samples: int,
        labels: tuple[str, ...] = ("label",),
        own: CustomMetrics | None = None,
        sums: int = 0,
        *,
        weighted: bool = False,
    ) -> None:
        self._unscored = total_samples // _UNSCORED_FRACTION
        self._labels = labels
        self._metrics, self._sums = own, sums
        self._weighted = weighted
        self._shape = (len(labels), 2, COUNTERS) if weighted else (len(labels), COUNTERS)
        self._split = prod(self._shape)
        self._merged = torch.zeros(self._split + 2 * sums + 1, dtype=torch.int64)
        self._forget()

    @classmethod
    def of(cls, total_samples: int, spec: ModelSpec, network: nn.Module) -> Self:
        """Return scores of the labels of a model, and by the metrics of its network."""
        if not isinstance(network, CustomMetrics):
            return cls(total_samples, spec.labels, weighted=spec.has_weights)
        return cls(total_samples, spec.labels, network, count_metric_sums(network, spec), weighted=spec.has_weights)

    def add_held_out(self, logits: Tensor, labels: Floats, weights: Floats | None) -> None:
        """Count samples that are never trained. Raises as `add` does."""
        self.add(logits, torch.from_numpy(labels), 0, None if weights is None else torch.from_numpy(weights))

    @torch.no_grad()
    def add(self, logits: Tensor, labels: Tensor, first_sample: int, weights: Tensor | None = None) -> None:
        """Count a slice that is about to be trained.

        logits, labels: float32 [n], or [n, L + targets]. first_sample: global number, from 0, of the slice's first
        sample; the others follow it. weights: float32 [n], if samples have weights. Raises DivergedError if a logit,
        scored or not, is not a sensible number.
        """
        assert (weights is not None) == self._weighted, "of all samples, or of none"  # noqa: S101 -- an invariant
        of_labels = logits if logits.dim() == 1 and self._labels else logits[..., : len(self._labels)]
        sensible = bool((of_labels.abs() < _DIVERGED_LOGIT).all())  # Not a number is not less either.
        if not sensible or (of_labels is not logits and not bool(logits.isfinite().all())):
            raise DivergedError(
                f"A logit is beyond {_DIVERGED_LOGIT:.0e} or no number, near sample {first_sample}.",
                "Start again with a lower learning rate.",
            )
        skipped = max(0, self._unscored - first_sample)
        logits, labels = logits[skipped:].cpu(), labels[skipped:].cpu()
        weights = None if weights is None else weights[skipped:].cpu()
        for counters, scores, truth in zip(self._own_labels, _columns(logits), _columns(labels), strict=False):
            bins = ((scores + _HIGHEST_LOGIT) * _BINS_PER_LOGIT).long().clamp_(0, BINS - 1)
            places = bins + BINS * truth.long()
            of_samples = None if weights is None else weights.double()
            loss = nn.functional.binary_cross_entropy_with_logits(
                scores.double(), truth.double(), of_samples, reduction="sum"
            )
            if of_samples is None:
                counters.index_add_(0, places, torch.ones_like(bins))
                counters[-1] += round(float(loss) * _PARTS)
                continue
            for part, of_places, of_loss in zip(counters, _parts(of_samples), _parts(loss), strict=True):
                part.index_add_(0, places, of_places)
                part[-1] += of_loss
            _carry(counters)
        if self._metrics is not None and len(labels):
            sums = metric_sums(self._metrics, logits, labels, weights, self._sums).double()
            if not bool((sums.abs() < _LARGEST_SUM).all()):
                raise DivergedError(
                    f"metric_sums of the network gives what is beyond {_LARGEST_SUM:.0e} or no number, near sample "
                    f"{first_sample}.",
                    "Correct it, or start again with a lower learning rate.",
                )
            units = (sums / _UNIT).floor()
            parts = ((sums - units * _UNIT) * _PARTS).round()
            self._own[self._split : -1] += torch.stack((units, parts), dim=1).flatten().long()
        self._own_samples += len(labels)

    def take_delta(self) -> Tensor:
        """Return this trainer's counters since the last call, and forget them: to be summed over trainers."""
        delta = self._own
        delta[-1] = self._own_samples
        self._forget()
        return delta

    def merge(self, delta: Tensor) -> None:
        """Add counters that were summed over all trainers."""
        self._merged += delta.to(self._merged)
        if self._weighted:
            _carry(self._by_label(self._merged))

    def state(self) -> Tensor:
        """Return a copy of the merged counters; what is not merged is not part of it."""
        return self._merged.clone()

    def load_state(self, state: Tensor) -> None:
        """Go to a state that `state` returned; own counters are dropped. ValueError if it is none."""
        if state.shape != self._merged.shape or state.dtype != self._merged.dtype:
            shape = list(self._merged.shape)
            raise ValueError(f"an evaluation state is int64 {shape}, not {state.dtype} {tuple(state.shape)}")
        self._merged.copy_(state)
        self._forget()

    def since(self, state: Tensor) -> Self:
        """Return the scores of the samples that were merged after `state`, an earlier result of `state`."""
        later = type(self)(0, self._labels, self._metrics, self._sums, weighted=self._weighted)
        later.merge(self._merged - state)
        return later

    def counters(self) -> tuple[Tensor, Tensor]:
        """Return the merged counters and the own ones, no copies: they change with every step."""
        self._own[-1] = self._own_samples
        return self._merged, self._own

    def resume(self, merged: Tensor, own: Tensor) -> None:
        """Go to what `counters` returned."""
        self._merged.copy_(merged)
        self._forget()
        self._own.copy_(own)
        self._own_samples = int(own[-1])

    @property
    def samples(self) -> int:
        """Merged samples that were scored."""
        return int(self._merged[-1])

    def log_loss(self, label: int = 0) -> float | None:
        """Return a label's mean log loss of the merged samples in nats, weighted if these have weights.

        None before the first sample with a weight above 0, or without labels.
        """
        total = self._total(label)
        return float(self._values(label)[-1]) / total if total else None

    def auc(self, label: int = 0) -> float | None:
        """Return the area under a label's ROC curve of the merged samples; None until it was seen as 0 and as 1.

        The share of (positive, negative) pairs in the right order, ties within a bin counting half: the trapezoids. A
        pair has the product of its samples' weights.
        """
        if not self._labels:
            return None
        negatives, positives = self._values(label)[:-1].view(2, BINS)
        pairs = float(negatives.sum() * positives.sum())
        if not pairs:
            return None
        below = negatives.cumsum(0) - negatives
        return float((positives * (below + negatives / 2)).sum()) / pairs

    def normalised_entropy(self, label: int = 0) -> float | None:
        """Return the log loss by that of the best constant; None unless the label was seen as 0 and as 1.

        He et al., "Practical lessons from predicting clicks on ads at Facebook", ADKDD 2014.
        """
        loss, portion = self.log_loss(label), self._positives(label)
        if loss is None or portion is None or not 0 < portion < 1:
            return None
        return loss / -(portion * log(portion) + (1 - portion) * log(1 - portion))

    def calibration(self, label: int = 0) -> float | None:
        """Return the mean prediction by the portion of ones; None before the first.

        By the middles of the bins, which is within 1e-3 of the exact figure for any logits within their range.
        """
        portion = self._positives(label)
        if not portion:
            return None
        counts = self._values(label)[:-1].view(2, BINS).sum(dim=0)
        middles = (torch.arange(BINS, dtype=torch.float64) + 0.5) / _BINS_PER_LOGIT - _HIGHEST_LOGIT
        return float((counts * middles.sigmoid()).sum()) / self._total(label) / portion

    def _positives(self, label: int) -> float | None:
        """Return the portion of merged samples with the label 1, by their weights if they have any."""
        total = self._total(label)
        return float(self._values(label)[BINS:-1].sum()) / total if total else None

    def _total(self, label: int) -> float:
        """Return the number of merged samples, or the sum of their weights; 0 without labels."""
        return float(self._values(label)[:-1].sum()) if self._labels else 0.0

    def _values(self, label: int) -> Tensor:
        """Return the merged counters of a label as numbers, float64 [COUNTERS]; the last one is in nats."""
        counters = self._by_label(self._merged)[label].double()
        if self._weighted:
            return counters[0] / _COARSE + counters[1] / _FINE
        counters[-1] /= _PARTS
        return counters

    def metrics(self) -> tuple[tuple[str, float], ...]:
        """Return all known scores by name, except the first label's: see `cpr_contract.reports.TrainerReport`."""
        found: dict[str, float | None] = {}
        if len(self._labels) == 1:
            found |= {"calibration": self.calibration()}
        else:
            for place, name in enumerate(self._labels):
                found |= {f"{name}.auc": self.auc(place), f"{name}.logloss": self.log_loss(place)}
                found |= {f"{name}.calibration": self.calibration(place)}
        if self._metrics is not None and self.samples:
            units, parts = self._merged[self._split : -1].view(-1, 2).double().unbind(dim=1)
            found |= metrics(self._metrics, units * _UNIT + parts / _PARTS)
        return tuple((name, value) for name, value in found.items() if value is not None and isfinite(value))

    def _forget(self) -> None:
        """Begin with own counters of zero."""
        self._own = torch.zeros_like(self._merged)
        self._own_labels = self._by_label(self._own).unbind()
        self._own_samples = 0

    def _by_label(self, counters: Tensor) -> Tensor:
        """Return the counters of each label, [L, COUNTERS], or with weights [L, 2, COUNTERS], a view."""
        return counters[: self._split].view(self._shape)


def _parts(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return values, float64, 0 or more, in coarse parts, and what is left of them in fine parts; int64."""
    coarse = (values * _COARSE).floor()
    return coarse.long(), ((values - coarse / _COARSE) * _FINE).round().long()


def _carry(counters: Tensor) -> None:
    """Move whole coarse parts from fine counters to coarse ones, in place. counters: int64 [..., 2, k]."""
    coarse, fine = counters.unbind(dim=-2)
    whole = fine >> _CARRY_BITS
    coarse += whole
    fine -= whole << _CARRY_BITS


def first_of(logits: Tensor) -> Tensor:
    """Return the logits of the first label, [n], of [n] or [n, L]."""
    return logits if logits.dim() == 1 else logits[:, 0]


def _columns(values: Tensor) -> tuple[Tensor, ...]:
    """Return what a tensor, [n] or [n, k], holds of each label and target, [n]."""
    return (values,) if values.dim() == 1 else values.unbind(dim=1)
