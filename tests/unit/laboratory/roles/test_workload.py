from __future__ import annotations

import numpy as np

from cpr_trainer.placement import Placement
from cprjob_bench.roles.snapshot.saves import STEP_IDS, gradients_for, step_rows


def test_few_rows_are_asked_for_often_and_most_seldom() -> None:
    placement, rng = Placement([100_000], 1), np.random.default_rng(0)
    seen = np.zeros(100_000, np.int64)
    for _ in range(50):
        rows = step_rows(placement, rng)
        assert 1000 < len(rows) < STEP_IDS
        seen[rows.numbers] += 1
    assert (seen[:10] == 50).all()
    assert 0 < np.count_nonzero(seen[50_000:]) < 25_000
    assert seen[50_000:].max() < 10


def test_a_table_of_one_row_is_asked_for_it() -> None:
    rows = step_rows(Placement([1], 1), np.random.default_rng(0))
    assert rows.numbers.tolist() == [0]


def test_gradients_differ_from_row_to_row() -> None:
    rows = step_rows(Placement([1000], 1), np.random.default_rng(0))
    gradients = gradients_for(rows, 3)
    assert gradients.shape == (len(rows), 3)
    assert gradients.dtype == np.float32
    assert (gradients > 0).all()
    assert len(np.unique(gradients[:, 0])) == 97
