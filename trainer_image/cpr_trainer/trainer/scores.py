"""Scores of a trainer: progressive validation and training loss, and the early-stop state of held-out evaluations.

Progressive validation has scores of all samples, and of data that arrives also of the segments that ended last.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from math import isnan, nan
from typing import Any, Self

import torch
from torch import Tensor

from cpr_contract.pinned_data import SegmentScores
from cpr_contract.reports import HeldOutScores
from cpr_contract.spec import EarlyStopSpec
from cpr_trainer.errors import DataError
from cpr_trainer.evaluation import ProgressiveValidation

#: Steps between two merges; cuts and the last step merge as well. Segments with fewer are joined with the next one, so
#: that their ends at most double the merges.
MERGE_STEPS = 32
#: The length of `SegmentBoundary.numbers`.
BOUNDARY_NUMBERS = 9
_EARLY_STOP_FIELDS = 4


@dataclass(frozen=True, slots=True, eq=False)
class ScoredSlice:
    """One trainer's slice of `step`, the `trainers`-th part of it.

    logits, labels: float32 [n] or [n, L], the logits before training. first_sample: the global number of the slice's
    first sample. loss_share: its part of the step's mean loss. weights: float32 [n], if samples have weights.
    """

    step: int
    trainers: int
    first_sample: int
    logits: Tensor
    labels: Tensor
    loss_share: float
    weights: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SegmentBoundary:
    """The last step at which a segment of data that arrives ended and was scored; 0 at the beginning.

    counters: int64 [n], the merged counters after it. scores: those of the samples since the boundary before.
    """

    step: int
    counters: Tensor
    scores: SegmentScores | None = None

    def numbers(self) -> Tensor:
        """Return all but the counters as float64 [BOUNDARY_NUMBERS], exactly."""
        known = () if self.scores is None else astuple(self.scores)
        values = [self.step, *(nan if value is None else value for value in known)]
        return torch.tensor(values + [0] * (BOUNDARY_NUMBERS - len(values)), dtype=torch.float64)

    @classmethod
    def of(cls, numbers: Tensor, counters: Tensor) -> Self:
        """Return the boundary with the result of `numbers`."""
        step, pin, first_sample, stop, scored, *others = numbers.tolist()
        if not pin:
            return cls(int(step), counters)
        values = (None if isnan(value) else value for value in others)
        return cls(int(step), counters, SegmentScores(int(pin), int(first_sample), int(stop), int(scored), *values))


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """The state of `Scores` but for `loss`. step: the last one that was scored.

    merged, own, unmerged: int64 [n], see `ProgressiveValidation.counters`, and the counters of an interrupted merge.
    loss_shares: float64 [2].
    """

    merged: Tensor
    own: Tensor
    unmerged: Tensor | None
    loss_shares: Tensor
    step: int
    boundary: SegmentBoundary | None


class Scores:
    """Scores each step once, however often it is computed, and merges in two phases around an all-reduce.

    `loss` is the mean loss of the steps merged last, in nats unless the network has its own; None before the first
    merge. `boundary` is None unless segments are scored, too.
    """

    def __init__(self, validation: ProgressiveValidation, *, by_segment: bool = False) -> None:
        self.validation = validation
        self.loss: float | None = None
        self.boundary = SegmentBoundary(0, validation.state()) if by_segment else None
        self._scored_step = 0
        self._unmerged: Tensor | None = None
        self._loss_shares = torch.zeros(2, dtype=torch.float64)  # of the steps' losses, and of the steps

    def add(self, part: ScoredSlice) -> None:
        """Count this trainer's slice of a step."""
        if part.step <= self._scored_step:
            return  # A group broke in this step: it is computed again, and was scored before.
        self._scored_step = part.step
        self.validation.add(part.logits, part.labels, part.first_sample, part.weights)
        self._loss_shares += torch.tensor((part.loss_share, 1 / part.trainers), dtype=torch.float64)

    def to_merge(self) -> tuple[Tensor, Tensor]:
        """Return copies of the unmerged scores, to be summed over all trainers: int64 counters, float64 [2] losses."""
        delta = self.validation.take_delta()
        self._unmerged = delta if self._unmerged is None else self._unmerged + delta
        return self._unmerged.clone(), self._loss_shares.clone()

    def merge(self, counters: Tensor, loss_shares: Tensor) -> None:
        """Take in the sums over all trainers of their `to_merge`."""
        self.validation.merge(counters)
        self._unmerged = None
        total, steps = loss_shares.tolist()
        self.loss = total / steps if steps else self.loss
        self._loss_shares.zero_()

    def may_end_segment(self, step: int) -> bool:
        """Return whether a segment that ends in the batch of `step` is scored. The step then merges."""
        return self.boundary is not None and step - self.boundary.step >= MERGE_STEPS

    def end_segment(self, step: int, pin: int, batch_size: int) -> None:
        """Score the samples of the steps from the boundary to `step`, right after its merge.

        pin: the number of the last one with its end in this step.
        """
        assert self.boundary is not None, "segments are scored"
        found, first_step = self.validation.since(self.boundary.counters), self.boundary.step
        scores = SegmentScores(
            pin=pin,
            first_sample=first_step * batch_size,
            stop=step * batch_size,
            scored=found.samples,
            auc=found.auc(),
            logloss=found.log_loss(),
            normalised_entropy=found.normalised_entropy(),
            calibration=found.calibration(),
        )
        self.boundary = SegmentBoundary(step, self.validation.state(), scores)

    def report_fields(self) -> dict[str, Any]:
        """Return the merged scores by the fields of a report; None for unknown ones."""
        validation = self.validation
        scores = {"auc": validation.auc(), "logloss": validation.log_loss(), "metrics": validation.metrics()}
        return {"loss": self.loss, **scores, "segment": None if self.boundary is None else self.boundary.scores}

    def scored(self) -> Scored:
        """Return the state without copying: it changes with every step."""
        return Scored(*self.validation.counters(), self._unmerged, self._loss_shares, self._scored_step, self.boundary)

    def resume(self, scored: Scored, loss: float | None) -> None:
        """Restore a state from copies of the tensors of `scored`."""
        self.validation.resume(scored.merged, scored.own)
        self._unmerged, self._loss_shares, self._scored_step = scored.unmerged, scored.loss_shares, scored.step
        self.boundary = scored.boundary
        self.loss = loss

    def merged(self) -> Tensor:
        """Return the merged counters: the same on all trainers after the same step."""
        return self.validation.state()

    def load(self, merged: Tensor, step: int, boundary: SegmentBoundary | None = None) -> None:
        """Take another trainer's state after `step`, or a saved one; drop own counters that are not merged.

        A segment begins after this step if the state has no boundary.
        """
        self.validation.load_state(merged)
        self._unmerged = None
        self._loss_shares.zero_()
        if self.boundary is not None:
            self.boundary = boundary or SegmentBoundary(step, merged.clone())


@dataclass(frozen=True, slots=True)
class EarlyStopState:
    """The evaluations up to and including that of `step` (0: none), as far as they decide when a job ends.

    `best` is the best value of the metric, None without one, and `best_step` the step of its model, 0 without one.
    `since` counts the evaluations after it.
    """

    step: int = 0
    best: float | None = None
    best_step: int = 0
    since: int = 0

    def after(self, scores: HeldOutScores, spec: EarlyStopSpec) -> Self:
        """Return the state after one more evaluation; one that was counted before changes nothing.

        Raises DataError if the metric is undefined. The labels and groups of the samples decide that; they are
        the same at each evaluation, so no later evaluation would have a value.
        """
        if scores.step <= self.step:
            return self
        values = {
            "AUC": scores.auc,
            "GAUC": scores.gauc,
            "LogLoss": scores.logloss,
            "NormalisedEntropy": scores.normalised_entropy,
        }
        value = values[spec.metric]
        if value is None:
            why = f"the {scores.scored} held-out samples all have the same label, 0 or 1"
            if not scores.scored:
                why = "no held-out row is a sample"
            elif scores.logloss is None:
                why = f"the {scores.scored} held-out samples all have the weight 0"
            elif spec.metric == "GAUC":
                why = f"none of the groups of the {scores.scored} held-out samples has both labels, 0 and 1"
            raise DataError(
                f"spec.evaluation.earlyStop cannot judge by {spec.metric}: {why}.",
                "Hold out other or more rows (data.holdOut, evaluation.uri, evaluation.samples), or choose another "
                "metric.",
            )
        better = self.best is None or _improvement(spec, self.best, value) > spec.min_improvement
        if better or _reaches_target(spec, value):
            return type(self)(scores.step, value, scores.step, 0)
        return type(self)(scores.step, self.best, self.best_step, self.since + 1)

    def should_stop(self, spec: EarlyStopSpec | None) -> bool:
        """Return whether training ends here."""
        if spec is None:
            return False
        return (spec.patience is not None and self.since >= spec.patience) or _reaches_target(spec, self.best)

    def tensor(self) -> Tensor:
        """Return the state as float64 [4], exactly."""
        best = nan if self.best is None else self.best
        return torch.tensor((self.step, best, self.best_step, self.since), dtype=torch.float64)

    @classmethod
    def of(cls, tensor: Tensor | None) -> Self:
        """Return the state that `tensor` returned; None is a job without evaluations. Raises ValueError."""
        if tensor is None:
            return cls()
        if tensor.shape != (_EARLY_STOP_FIELDS,) or tensor.dtype != torch.float64:
            found = f"{tensor.dtype} {tuple(tensor.shape)}"
            raise ValueError(f"an early-stop state is float64 [{_EARLY_STOP_FIELDS}], not {found}")
        step, best, best_step, since = tensor.tolist()
        return cls(int(step), None if isnan(best) else best, int(best_step), int(since))


NO_EVALUATION = EarlyStopState()


def _improvement(spec: EarlyStopSpec, before: float, value: float) -> float:
    """Return the improvement of the metric from `before` to `value`, above 0 if it is one."""
    return value - before if spec.metric in {"AUC", "GAUC"} else before - value


def _reaches_target(spec: EarlyStopSpec, value: float | None) -> bool:
    return spec.target is not None and value is not None and _improvement(spec, spec.target, value) >= 0


def next_evaluation(step: int, every: int, batch_size: int, last_step: int) -> int:
    """Return the first step after `step` at which the model is evaluated: each `every` samples, and the last one."""
    due_samples = (step * batch_size // every + 1) * every
    return min(-(-due_samples // batch_size), last_step)
