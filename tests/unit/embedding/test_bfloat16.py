"""Conversions between float32 and bfloat16."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from cpr_trainer.embedding import bfloat16
from cpr_trainer.embedding.bfloat16 import narrow, widen

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
