from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpr_trainer.embedding.priority.tracker import Population, largest

SCORES = st.one_of(
    st.floats(0, 8, width=32),
    st.integers(0, 4).map(float),
    st.floats(0, allow_infinity=True, width=32),
)


@settings(deadline=None)
@given(
    scores=st.lists(SCORES, min_size=1, max_size=60),
    small=st.sets(st.integers(0, 59)),
    count=st.integers(1, 60),
    seed=st.integers(0, 9),
)
def test_the_rows_taken_are_the_largest(scores: list[float], small: set[int], count: int, seed: int) -> None:
    values = np.array(scores, np.float32)
    population = Population(len(values), np.array(sorted(s for s in small if s < len(values)), np.int64))
    slots = largest(population, values.__getitem__, count, np.random.default_rng(seed))
    allowed = [v for s, v in enumerate(values.tolist()) if s not in small and v > 0]
    assert slots.tolist() == sorted(set(slots.tolist()))
    assert small.isdisjoint(slots.tolist())
    assert len(slots) == min(count, len(allowed))
    left = [v for s, v in enumerate(values.tolist()) if s not in small and v > 0 and s not in slots]
    # Scores in the same 256th may pass for equal; the smallest of all are spaced evenly.
    assert not left or max(left) <= min(values[slots].tolist()) * (1 + 1 / 256) + 2.0**-134


def test_scores_of_several_chunks_are_ranked_together() -> None:
    scores = np.random.default_rng(1).random(700_000, np.float32)
    slots = largest(Population(len(scores), np.empty(0, np.int64)), scores.__getitem__, 1000, np.random.default_rng(0))
    best = np.sort(scores)[-1000:]
    assert len(slots) == 1000
    assert scores[slots].min() >= best.min() / (1 + 1 / 256)
    assert (np.diff(slots) > 0).all()


def test_nan_ranks_first() -> None:
    scores = np.array([1.0, np.nan, np.inf, -np.nan, 2.0], np.float32)
    slots = largest(Population(5, np.empty(0, np.int64)), scores.__getitem__, 3, np.random.default_rng(0))
    assert slots.tolist() == [1, 2, 3]


def test_equal_scores_are_drawn_from_evenly() -> None:
    scores = np.ones(40, np.float32)
    population = Population(40, np.empty(0, np.int64))
    rng = np.random.default_rng(2)
    taken = np.zeros(40)
    for _ in range(2000):
        taken[largest(population, scores.__getitem__, 10, rng)] += 1
    # Binomial(2000, 1/4): mean 500, deviation 19; five of them.
    assert taken.min() > 400
    assert taken.max() < 600


@pytest.mark.parametrize("count", [1, 50, 99])
def test_scores_that_rise_between_the_passes_do_not_make_more_rows(count: int) -> None:
    calls = 0

    def score(chunk: slice) -> np.ndarray:
        nonlocal calls
        calls += 1
        return np.arange(100, dtype=np.float32)[chunk] + (1000.0 if calls > 1 else 0.0)

    slots = largest(Population(100, np.empty(0, np.int64)), score, count, np.random.default_rng(0))
    assert len(slots) == count
    assert calls == 2
