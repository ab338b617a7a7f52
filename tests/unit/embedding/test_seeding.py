from __future__ import annotations

import numpy as np
import pytest

from cpr_contract.model import ModelSpec, OptimizerSpec, SparseOptimizerSpec, TableSpec
from cpr_trainer.embedding.segments import Seeding, initial_rows

GOLDEN = [
    "-0x1.b0abc00000000p-5",
    "0x1.cb2eb40000000p-2",
    "0x1.d53f000000000p-4",
    "-0x1.e856100000000p-4",
    "0x1.5d31d00000000p-3",
    "0x1.99bb800000000p-6",
]
OF_KEYS = [
    "0x1.ef2bac0000000p-2",
    "-0x1.4d73fc0000000p-2",
    "-0x1.2a55e40000000p-2",
    "0x1.9036c00000000p-6",
    "-0x1.c5db800000000p-3",
    "0x1.e5ad100000000p-4",
]


def model(dim: int, *rows: int) -> ModelSpec:
    tables = tuple(TableSpec(f"t{i}", n) for i, n in enumerate(rows))
    return ModelSpec(dim, (dim,), (1,), tables, OptimizerSpec("SGD", 0.1), SparseOptimizerSpec("SGD", 0.1))


def test_first_values_never_change() -> None:
    values = initial_rows(model(3, 100, 4), 7, 1, np.array([0, 3]))
    assert [value.hex() for value in values.ravel().tolist()] == GOLDEN


def test_first_values_of_a_key_are_those_of_its_64_bits() -> None:
    keys = np.array([2**64 - 1, 0x6DE6F5D076D742B9], np.uint64)
    values = Seeding.of(model(3, 100, 4), 7).values(np.ones(2, np.int64), keys.view(np.int64))
    assert [value.hex() for value in values.ravel().tolist()] == OF_KEYS


def test_first_values_depend_on_seed_table_row_and_column_alone() -> None:
    base = initial_rows(model(8, 100, 100), 7, 0, np.arange(100))
    assert np.unique(base).size == base.size
    assert not np.isin(initial_rows(model(8, 100, 100), 7, 1, np.arange(100)), base).any()
    assert not np.isin(initial_rows(model(8, 100, 100), 8, 0, np.arange(100)), base).any()
    # In whatever order and company rows are asked for, and however wide a row is.
    mixed = Seeding.of(model(8, 100, 100), 7).values(np.array([1, 0]), np.array([5, 42]))
    assert (mixed[1] == base[42]).all()
    assert (initial_rows(model(5, 100, 100), 7, 0, np.arange(100)) == base[:, :5]).all()


@pytest.mark.parametrize("rows", [1, 4, 10_000])
def test_first_values_are_uniform_within_the_bound_of_dlrm(rows: int) -> None:
    values = initial_rows(model(2000, rows), 1, 0, np.arange(min(rows, 50))).astype(np.float64)
    bound = (1 / rows) ** 0.5
    assert np.abs(values).max() <= bound
    # Mean and variance of 2000 or more uniform values, five standard errors wide.
    assert abs(values.mean()) < 5 * bound / (3 * values.size) ** 0.5
    assert values.var() == pytest.approx(bound**2 / 3, rel=5 * (0.8 / values.size) ** 0.5)
