"""Scores by the values of a column: AUC of each group, of the rest together, and their mean weighted by samples.

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

    names: those of the groups, sorted by their size, then by name: they are the same in any order of the samples.
    """

    labels: NDArray[np.bool_]
    codes: Ints
    names: tuple[str, ...]

    @classmethod
    def of(cls, batches: Iterable[tuple[Floats, NDArray[np.object_]]]) -> Self:
        """Return those of labels, float32 [n] or [n, L], and values of the column, str [n], one batch after the other.

        0 and 1 of the first column of labels count.
        """
        parts = [((labels if labels.ndim == 1 else labels[:, 0]) == 1, values) for labels, values in batches]
        labels = np.concatenate([np.empty(0, np.bool_), *(each for each, _ in parts)])
        values = np.concatenate([np.empty(0, np.object_), *(each for _, each in parts)])
        names, codes, counts = np.unique(values.astype(str), return_inverse=True, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        places = np.empty(len(names), np.int64)
        places[order] = np.arange(len(names))
        return cls(labels, places[codes.reshape(-1)], tuple(names[order].tolist()))

    def __len__(self) -> int:
        return len(self.labels)

    def scores(self, logits: Floats) -> ByGroup:
        """Return the scores of logits, float32 [n]."""
        groups = len(self.names)
        aucs, counts = aucs_of(logits, self.labels, self.codes, groups), np.bincount(self.codes, minlength=groups)
        known = ~np.isnan(aucs)
        weights = counts * known
        gauc = float(weights[known] @ aucs[known]) / int(weights.sum()) if weights.any() else None
        shown = min(groups, MAX_GROUPS)
        rest = self.codes >= shown
        groups_shown = (
            self._scores_of(name, self.codes == code, logits) for code, name in enumerate(self.names[:shown])
        )
        return ByGroup(gauc, tuple(groups_shown), self._scores_of(_REST, rest, logits) if rest.any() else None)

    def _scores_of(self, name: str, which: NDArray[np.bool_], logits: Floats) -> GroupScores:
        own, labels = logits[which].astype(np.float64), self.labels[which]
        auc = float(aucs_of(own, labels, np.zeros(len(own), np.int64), 1)[0])
        loss = float(np.mean(np.logaddexp(0, np.where(labels, -own, own))))
        portion, predicted = float(labels.mean()), float(np.mean(1 / (1 + np.exp(-own))))
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
    logits: NDArray[np.floating[Any]], labels: NDArray[np.bool_], codes: Ints, groups: int
) -> NDArray[np.float64]:
    """Return the area under the ROC curve of each group, float64 [groups]; no number where all labels are the same.

    logits [n]; labels: bool [n]; codes: int64 [n] in [0, groups). By ranks, ties counting half, in whole numbers.
    """
    order = np.lexsort((logits, codes))
    logits, labels, codes = logits[order], labels[order], codes[order]
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (codes[1:] != codes[:-1]) | (logits[1:] != logits[:-1])
    first = np.flatnonzero(begins)
    tied = np.diff(np.append(first, len(order)))
    # Twice the mean rank of each run of equal logits, counted from the beginning of its group.
    starts = np.searchsorted(codes, np.arange(groups))
    twice = np.repeat(2 * first + tied - 1, tied) - 2 * starts[codes]
    positives = np.bincount(codes[labels], minlength=groups).astype(np.int64)
    negatives = np.bincount(codes, minlength=groups) - positives
    sums = np.zeros(groups, np.int64)
    np.add.at(sums, codes[labels], twice[labels])
    won = sums - positives * (positives - 1)
    pairs = 2 * positives * negatives
    return np.where(pairs > 0, won / np.maximum(pairs, 1), np.nan)
