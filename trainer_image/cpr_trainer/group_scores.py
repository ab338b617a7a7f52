"""Scores by the values of a column: AUC of each group, of the rest together, and their mean weighted by samples.

Samples may have weights; the mean is then weighted by their sums.

Logits are compared as they are, without bins: groups are small, and there ties within a bin would count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import log
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cpr_contract.limits import MAX_GROUP_NAME, MAX_GROUPS
from cpr_contract.reports import GroupScores
from cpr_trainer.arrays import Floats, Ints

_REST = "(rest)"


@dataclass(frozen=True, slots=True)
class ByGroup:
    """See `HeldOutScores`."""

    gauc: float | None
    groups: tuple[GroupScores, ...]
    rest: GroupScores | None


@dataclass(frozen=True, slots=True, eq=False)
class Grouped:
    """Samples in groups. labels: bool [n], of the first label. codes: int64 [n], the group of each.

    weights: float64 [n], above 0. counted: bool [m], which of all samples these are: a weight of 0 is in no group.
    names: those of the groups, sorted by their size, then by name: they are the same in any order of the samples.
    """

    labels: NDArray[np.bool_]
    codes: Ints
    weights: NDArray[np.float64]
    counted: NDArray[np.bool_]
    names: tuple[str, ...]

    @classmethod
    def of(cls, batches: Iterable[tuple[Floats, NDArray[np.object_], Floats | None]]) -> Self:
        """Return those of batches, one after the other: labels, values of the column, and weights.

        Labels are float32 [n] or [n, L]: 0 and 1 of the first column count. Values are str [n]. Weights are float32
        [n], or None if all are 1.
        """
        labels, values, weights = [np.empty(0, np.bool_)], [np.empty(0, np.object_)], [np.empty(0)]
        for of_batch, groups, own in batches:
            labels.append((of_batch if of_batch.ndim == 1 else of_batch[:, 0]) == 1)
            values.append(groups)
            weights.append(np.ones(len(groups)) if own is None else own.astype(np.float64))
        every = np.concatenate(weights)
        counted = every > 0
        names, codes, counts = np.unique(
            np.concatenate(values)[counted].astype(str), return_inverse=True, return_counts=True
        )
        order = np.argsort(-counts, kind="stable")
        places = np.empty(len(names), np.int64)
        places[order] = np.arange(len(names))
        ones = np.concatenate(labels)[counted]
        return cls(ones, places[codes.reshape(-1)], every[counted], counted, tuple(names[order].tolist()))

    def __len__(self) -> int:
        """Return the number of all samples, with those that have no weight."""
        return len(self.counted)

    def scores(self, logits: Floats) -> ByGroup:
        """Return the scores of the logits of all samples, float32 [m]."""
        groups, logits = len(self.names), logits[self.counted]
        aucs = aucs_of(logits, self.labels, self.codes, groups, self.weights)
        sums = np.bincount(self.codes, self.weights, minlength=groups)
        known = ~np.isnan(aucs)
        gauc = float(sums[known] @ aucs[known]) / float(sums[known].sum()) if known.any() else None
        shown = min(groups, MAX_GROUPS)
        rest = self.codes >= shown
        groups_shown = (
            self._scores_of(name, self.codes == code, logits) for code, name in enumerate(self.names[:shown])
        )
        return ByGroup(gauc, tuple(groups_shown), self._scores_of(_REST, rest, logits) if rest.any() else None)

    def _scores_of(self, name: str, which: NDArray[np.bool_], logits: Floats) -> GroupScores:
        own, labels, weights = logits[which].astype(np.float64), self.labels[which], self.weights[which]
        auc = float(aucs_of(own, labels, np.zeros(len(own), np.int64), 1, weights)[0])
        loss = float(np.average(np.logaddexp(0, np.where(labels, -own, own)), weights=weights))
        portion = float(np.average(labels, weights=weights))
        predicted = float(np.average(1 / (1 + np.exp(-own)), weights=weights))
        entropy = -(portion * log(portion) + (1 - portion) * log(1 - portion)) if 0 < portion < 1 else None
        return GroupScores(
            name=name[:MAX_GROUP_NAME],
            samples=len(own),
            auc=None if np.isnan(auc) else auc,
            logloss=loss,
            normalised_entropy=None if entropy is None else loss / entropy,
            calibration=predicted / portion if portion else None,
        )


def aucs_of(
    logits: NDArray[np.floating[Any]],
    labels: NDArray[np.bool_],
    codes: Ints,
    groups: int,
    weights: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the area under the ROC curve of each group, float64 [groups]; no number where all labels are the same.

    logits [n]; labels: bool [n]; codes: int64 [n] in [0, groups); weights: float64 [n], above 0. It is the share of
    (positive, negative) pairs in the right order, ties counting half, each by the product of its weights. With weights
    of 1 all sums are exact.
    """
    order = np.lexsort((logits, codes))
    logits, labels, codes, weights = logits[order], labels[order], codes[order], weights[order]
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (codes[1:] != codes[:-1]) | (logits[1:] != logits[:-1])
    run = np.cumsum(begins) - 1  # samples of one group with equal logits
    runs = int(begins.sum())
    positives, negatives = (np.bincount(run, weights * each, minlength=runs) for each in (labels, ~labels))
    of_run = codes[begins]
    of_group = [np.bincount(of_run, each, minlength=groups) for each in (positives, negatives)]
    # The negatives below a run: all before it, without those of earlier groups.
    earlier = np.cumsum(of_group[1]) - of_group[1]
    below = np.cumsum(negatives) - negatives - earlier[of_run]
    won = np.bincount(of_run, positives * (below + negatives / 2), minlength=groups)
    pairs = of_group[0] * of_group[1]
    return np.where(pairs > 0, won / np.where(pairs > 0, pairs, 1), np.nan)
