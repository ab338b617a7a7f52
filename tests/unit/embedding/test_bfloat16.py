"""Conversions between float32 and bfloat16, to nearest and at random."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from cpr_trainer.embedding import bfloat16
from cpr_trainer.embedding.bfloat16 import narrow, round_stochastically, rounding_keys, widen

_FLOATS = arrays(np.float32, array_shapes(min_dims=2, max_dims=2), elements=st.floats(width=32))


def torchs(values: np.ndarray) -> np.ndarray:
    return torch.from_numpy(values).bfloat16().float().numpy()


@given(_FLOATS)
def test_values_are_rounded_as_torch_does(values: np.ndarray) -> None:
    assert np.array_equal(widen(narrow(values)), torchs(values), equal_nan=True)


def test_ties_round_to_even_and_nan_stays_nan() -> None:
    bits = np.array([[0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x80000000]], np.uint32)
    found = narrow(bits.view(np.float32))
    assert found[0, :4].tolist() == [0x3F80, 0x3F82, 0x3F81, 0x7F80]
    assert np.isnan(widen(found)[0, 4:6]).all()
    assert found[0, 6] == 0x8000


def test_more_than_one_block_is_rounded() -> None:
    values = np.random.default_rng(0).standard_normal((2 * bfloat16._BLOCK // 3 + 5, 3), np.float32)
    assert np.array_equal(widen(narrow(values)), torchs(values))


def test_rounding_is_idempotent() -> None:
    halves = np.arange(0x7F81, dtype=np.uint16)[:, np.newaxis]  # all that are not negative, up to infinity
    assert np.array_equal(narrow(widen(halves)), halves)


def rounded(values: np.ndarray, draw: int = 1, numbers: np.ndarray | None = None) -> np.ndarray:
    """Return values [k, D] that are rounded at random, float32."""
    halves = np.empty(values.shape, np.uint16)
    keys = rounding_keys(np.arange(len(values)) if numbers is None else numbers, draw)
    round_stochastically(values.copy(), keys, halves)
    return widen(halves)


def test_one_of_the_two_nearest_values_is_taken() -> None:
    values = np.random.default_rng(1).standard_normal((900, 13), np.float32)
    inward = widen((values.view(np.uint32) >> 16).astype(np.uint16))
    outward = widen(((values.view(np.uint32) >> 16) + 1).astype(np.uint16))
    found = rounded(values)
    assert ((found == inward) | (found == outward)).all()
    assert (found == inward).any()
    assert (found == outward).any()


@pytest.mark.parametrize("portion", [1 / 65536, 0.1, 0.5, 0.9])
def test_the_farther_value_has_the_less_probability(portion: float) -> None:
    value = np.float32(-1.0 - portion / 128)  # the next value of bfloat16 after -1 is -1 - 1/128
    found = rounded(np.full((40_000, 64), value))
    count = found.size
    assert abs((found == -1 - 1 / 128).sum() - portion * count) <= 5 * np.sqrt(portion * (1 - portion) * count)


def test_rows_columns_and_updates_are_rounded_by_themselves() -> None:
    values = np.full((20_000, 64), np.float32(1 + 1 / 256))  # in the middle of two values
    up = rounded(values) > 1
    others = {
        "the row before": up[1:] == up[:-1],
        "the next update": up == (rounded(values, 2) > 1),
        "another rank's": up == (rounded(values, 1 << 8) > 1),
    }
    for name, same in others.items():
        assert abs(same.mean() - 0.5) < 5 * 0.5 / np.sqrt(same.size), name
    of_columns = np.asarray(np.corrcoef(up.T))
    assert np.abs(of_columns[~np.eye(64, dtype=np.bool_)]).max() < 6 / np.sqrt(len(up))


def test_rounding_depends_on_the_row_and_not_on_its_place() -> None:
    values = np.random.default_rng(2).standard_normal((bfloat16._BLOCK // 2, 5), np.float32)
    numbers = np.random.default_rng(3).permutation(10**6)[: len(values)]
    some = np.arange(7, len(values), 3)
    assert np.array_equal(rounded(values, 5, numbers)[some], rounded(values[some], 5, numbers[some]))


def test_bfloat16_infinite_and_invalid_values_stay() -> None:
    exact = widen(np.arange(1 << 16, dtype=np.uint16)[:, np.newaxis])
    assert np.array_equal(rounded(exact), exact, equal_nan=True)
    invalid = np.array([[0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001]], np.uint32).view(np.float32)
    assert np.isnan(rounded(invalid)).all()
