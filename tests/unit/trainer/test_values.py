"""Tensors and the arrays that travel share their memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cpr_trainer.exchange.encoding import narrow, widen
from cpr_trainer.trainer.prefetch import as_array, as_tensor


@pytest.mark.parametrize(("of", "travels_as"), [(torch.float32, np.float32), (torch.bfloat16, np.uint16)])
def test_values_are_converted_without_a_copy(of: torch.dtype, travels_as: type) -> None:
    values = torch.randn(5, 3).to(of)
    array = as_array(values)
    assert (array.dtype, array.shape) == (travels_as, (5, 3))
    back = as_tensor(array)
    assert back.dtype is of
    values[1, 2] = 7.0
    assert float(back[1, 2]) == 7.0


def test_bits_of_bfloat16_are_kept() -> None:
    values = torch.randn(5, 3)
    assert np.array_equal(as_array(values.bfloat16()), narrow(values.numpy()))
    assert torch.equal(as_tensor(narrow(values.numpy())).float(), torch.from_numpy(widen(narrow(values.numpy()))))


def test_gradients_are_converted_in_row_order() -> None:
    array = as_array(torch.randn(3, 5).T.requires_grad_())
    assert array.flags.c_contiguous
