from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpr_trainer.embedding.placement import Placement
from cpr_trainer.embedding.priority import Population, large_tables, population_of

KAGGLE = [
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
    *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
]
TERABYTE = [
    *(9980333, 36084, 17217, 7378, 20134, 3, 7112, 1442, 61, 9758201, 1333352, 313829, 10),
    *(2208, 11156, 122, 4, 970, 14, 9994222, 7267859, 9946608, 415421, 12420, 101, 36),
]


@pytest.mark.parametrize(("rows", "expected"), [(KAGGLE, 6), (TERABYTE, 7), ([5], 1), ([100, 100], 2), ([990, 10], 1)])
def test_the_large_tables_are_the_fewest_that_hold_99_percent(rows: list[int], expected: int) -> None:
    large = large_tables(rows)
    assert sum(large) == expected
    held = sum(n for n, is_large in zip(rows, large, strict=True) if is_large)
    assert held >= 0.99 * sum(rows)
    smallest = min(n for n, is_large in zip(rows, large, strict=True) if is_large)
    assert held - smallest < 0.99 * sum(rows)
    assert all(n <= smallest for n, is_large in zip(rows, large, strict=True) if not is_large)


@settings(deadline=None)
@given(
    rows=st.lists(st.integers(1, 400), min_size=1, max_size=6),
    shards=st.integers(1, 5),
)
def test_the_small_rows_of_all_shards_are_those_of_small_tables(rows: list[int], shards: int) -> None:
    placement = Placement(rows, min(shards, sum(rows)))
    large = large_tables(rows)
    for shard in range(placement.shards):
        population = population_of(placement, shard)
        expected = [
            chunk.first_slot + i
            for chunk in placement.rows_of(shard)
            for i, table in enumerate(chunk.tables)
            if not large[table]
        ]
        assert population.rows == placement.size(shard)
        assert population.small.tolist() == expected


def test_chunks_cover_all_rows_and_find_their_small_ones() -> None:
    rng = np.random.default_rng(0)
    small = np.sort(rng.choice(600_000, 2000, replace=False))
    population = Population(600_000, small)
    chunks = list(population.chunks())
    assert len(chunks) > 1
    assert np.concatenate([np.arange(c.start, c.stop) for c in chunks]).tolist() == list(range(600_000))
    assert np.concatenate([population.small_in(c) + c.start for c in chunks]).tolist() == small.tolist()


def test_a_quota_is_a_portion_of_the_rows_of_large_tables() -> None:
    population = Population(1080, np.arange(80))
    assert population.quota(0.125) == 125
    assert population.quota(1.0) == 1000
    assert population.quota(1e-9) == 1
