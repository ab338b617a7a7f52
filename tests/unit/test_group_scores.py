"""Scores by group, against pairs counted one by one."""

from __future__ import annotations

from math import log
from operator import attrgetter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpr_contract.limits import MAX_GROUP_NAME, MAX_GROUPS
from cpr_trainer.arrays import Floats
from cpr_trainer.group_scores import Grouped

#: Few different logits, so that there are ties.
SAMPLE = st.tuples(st.sampled_from("abc"), st.booleans(), st.sampled_from([-1.5, -0.0, 0.0, 0.25, 3.0]))


def grouped(samples: list[tuple[str, bool, float]], batches: int = 2) -> tuple[Grouped, Floats]:
    values = np.array([name for name, _, _ in samples], np.object_)
    labels = np.array([label for _, label, _ in samples], np.float32)
    parts = zip(np.array_split(labels, batches), np.array_split(values, batches), strict=True)
    found = Grouped.of((*part, None) for part in parts)
    return found, np.array([logit for _, _, logit in samples], np.float32)


def auc(samples: list[tuple[str, bool, float]]) -> float | None:
    """The share of pairs in the right order, ties counting half."""
    ones, zeros = ([logit for _, label, logit in samples if label is clicked] for clicked in (True, False))
    won = [1.0 if one > zero else 0.5 if one == zero else 0.0 for one in ones for zero in zeros]
    return sum(won) / len(won) if won else None


@given(st.lists(SAMPLE, min_size=1, max_size=40), st.integers(1, 5))
def test_group_aucs_and_their_mean_equal_the_share_of_ordered_pairs(
    samples: list[tuple[str, bool, float]], batches: int
) -> None:
    found, logits = grouped(samples, batches)
    by_group = found.scores(logits)
    assert by_group.rest is None
    assert {each.name for each in by_group.groups} == {name for name, _, _ in samples}
    weighted: list[tuple[int, float]] = []
    for each in by_group.groups:
        own = [sample for sample in samples if sample[0] == each.name]
        assert each.samples == len(own)
        assert each.auc == pytest.approx(auc(own)) if auc(own) is not None else each.auc is None
        if each.auc is not None:
            weighted.append((each.samples, each.auc))
    if weighted:
        total = sum(count for count, _ in weighted)
        assert by_group.gauc == pytest.approx(sum(count * each for count, each in weighted) / total)
    else:
        assert by_group.gauc is None


@given(st.lists(st.tuples(SAMPLE, st.integers(0, 3)), min_size=1, max_size=40))
def test_weights_score_as_repeated_samples_do(weighted: list[tuple[tuple[str, bool, float], int]]) -> None:
    repeated, logits = grouped([sample for sample, weight in weighted for _ in range(weight)])
    expected = repeated.scores(logits)
    names, labels, own = (np.array([sample[place] for sample, _ in weighted], np.object_) for place in range(3))
    weights = np.array([weight for _, weight in weighted], np.float32)
    found = Grouped.of([(labels.astype(np.float32), names, weights)]).scores(own.astype(np.float32))
    assert found.gauc == pytest.approx(expected.gauc)
    for each, other in zip(
        sorted(found.groups, key=attrgetter("name")), sorted(expected.groups, key=attrgetter("name")), strict=True
    ):
        assert each.samples == sum(sample[0] == each.name and weight > 0 for sample, weight in weighted)
        for score in ("auc", "logloss", "normalised_entropy", "calibration"):
            assert getattr(each, score) == pytest.approx(getattr(other, score)), score


@given(st.lists(SAMPLE, min_size=2, max_size=40), st.integers(1, 4))
def test_parts_of_several_trainers_add_up_to_the_same_bits(samples: list[tuple[str, bool, float]], ranks: int) -> None:
    found, logits = grouped(samples)
    summed, first = np.zeros_like(logits), 0
    for part in np.array_split(logits, ranks):
        own = np.zeros_like(logits)
        own[first : first + len(part)] = part
        summed, first = summed + own, first + len(part)
    assert found.scores(summed) == found.scores(logits)


def test_all_scores_of_a_group() -> None:
    name = "shop" * 100
    found, logits = grouped([(name, True, 1.0), (name, False, -1.0), (name, False, 2.0)])
    (shop,) = found.scores(logits).groups
    assert shop.name == name[:MAX_GROUP_NAME], "a report has room for no longer one"
    chances = 1 / (1 + np.exp(-np.array([1.0, -1.0, 2.0])))
    loss = -np.mean(np.log([chances[0], 1 - chances[1], 1 - chances[2]]))
    entropy = -(log(1 / 3) / 3 + 2 * log(2 / 3) / 3)
    assert shop.auc == 0.5
    assert shop.logloss == pytest.approx(loss)
    assert shop.normalised_entropy == pytest.approx(loss / entropy)
    assert shop.calibration == pytest.approx(chances.sum())


def test_largest_groups_are_reported_and_the_others_together() -> None:
    sizes = {f"user-{number:02}": 30 - number for number in range(MAX_GROUPS + 5)}
    rng = np.random.default_rng(1)
    samples = [(name, bool(rng.integers(2)), float(rng.normal())) for name, size in sizes.items() for _ in range(size)]
    found, logits = grouped(samples)
    by_group = found.scores(logits)
    assert [each.name for each in by_group.groups] == sorted(sizes)[:MAX_GROUPS]
    assert by_group.rest is not None
    others = [(name, label, float(np.float32(logit))) for name, label, logit in samples if name >= f"user-{MAX_GROUPS}"]
    assert by_group.rest.samples == len(others)
    assert by_group.rest.auc == pytest.approx(auc(others))
    by_user = [[each for each in samples if each[0] == name] for name in sizes]
    aucs = [(len(own), auc(own)) for own in by_user]
    known = [(count, value) for count, value in aucs if value is not None]
    assert by_group.gauc == pytest.approx(sum(c * v for c, v in known) / sum(c for c, _ in known))


def test_of_several_labels_the_first_counts() -> None:
    labels = np.array([[1, 0], [0, 1]], np.float32)
    found = Grouped.of([(labels, np.array(["a", "a"], np.object_), None)])
    assert found.scores(np.array([1, 0], np.float32)).gauc == 1.0
