"""When a job ends early: a pure function of what its evaluations scored, one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan, nan
from typing import Self

import torch
from torch import Tensor

from cpr_contract.reports import HeldOutScores
from cpr_contract.spec import EarlyStopSpec
from cpr_trainer.errors import DataError

_FIELDS = 4


@dataclass(frozen=True, slots=True)
class EarlyStopState:
    """What the evaluations up to and with that of `step` (0: none) say.

    `best` is the best value of the metric, None without one, and `best_step` the step of its model, 0 without one.
    `since` counts the evaluations after it.
    """

    step: int = 0
    best: float | None = None
    best_step: int = 0
    since: int = 0

    def after(self, scores: HeldOutScores, spec: EarlyStopSpec) -> Self:
        """Return the verdict after one more evaluation; one that counts already changes nothing.

        Raises DataError if the metric has no value. Whether it has one follows from the labels and groups of the
        samples alone, which are the same at each evaluation, so that no evaluation would ever decide.
        """
        if scores.step <= self.step:
            return self
        value = value_of(scores, spec)
        if value is None:
            raise _undefined(scores, spec)
        if self.best is None or _gain(value, self.best, spec) > spec.min_improvement:
            return type(self)(scores.step, value, scores.step, 0)
        return type(self)(scores.step, self.best, self.best_step, self.since + 1)

    def ends(self, spec: EarlyStopSpec | None) -> bool:
        """Whether no more is to be trained."""
        return spec is not None and self.since >= spec.patience

    def tensor(self) -> Tensor:
        """Return it as float64 [4], exactly."""
        best = nan if self.best is None else self.best
        return torch.tensor((self.step, best, self.best_step, self.since), dtype=torch.float64)

    @classmethod
    def of(cls, tensor: Tensor | None) -> Self:
        """Return what `tensor` returned; none is that of a job which was never evaluated. Raises ValueError."""
        if tensor is None:
            return cls()
        if tensor.shape != (_FIELDS,) or tensor.dtype != torch.float64:
            raise ValueError(f"a verdict is float64 [{_FIELDS}], not {tensor.dtype} {tuple(tensor.shape)}")
        step, best, best_step, since = tensor.tolist()
        return cls(int(step), None if isnan(best) else best, int(best_step), int(since))


NO_EVALUATION = EarlyStopState()


def value_of(scores: HeldOutScores, spec: EarlyStopSpec) -> float | None:
    """Return the figure that counts, None where it is not defined."""
    match spec.metric:
        case "AUC":
            return scores.auc
        case "GAUC":
            return scores.gauc
        case "LogLoss":
            return scores.logloss
        case "NormalisedEntropy":
            return scores.normalised_entropy


def _undefined(scores: HeldOutScores, spec: EarlyStopSpec) -> DataError:
    if not scores.scored:
        why = "no held-out row is a sample"
    elif spec.metric == "GAUC":
        why = f"none of the groups of the {scores.scored} held-out samples has both labels, 0 and 1"
    else:
        why = f"the {scores.scored} held-out samples have one label alone, of 0 and 1"
    return DataError(
        f"spec.evaluation.earlyStop cannot judge by {spec.metric}: {why}.",
        "Hold out other or more rows (data.holdOut, evaluation.uri, evaluation.samples), or choose another metric.",
    )


def _gain(value: float, before: float, spec: EarlyStopSpec) -> float:
    """Return by how much a value is better."""
    return value - before if spec.metric in {"AUC", "GAUC"} else before - value


def next_evaluation(step: int, every: int, batch_size: int, last_step: int) -> int:
    """Return the first step after `step` at which the model is evaluated: each `every` samples, and the last one."""
    wanted = (step * batch_size // every + 1) * every
    return min(-(-wanted // batch_size), last_step)
