"""Tensors as the arrays that travel, and back, over the same memory. bfloat16 is its bits there: uint16."""

from __future__ import annotations

import torch
from torch import Tensor

from cpr_trainer.exchange.encoding import Values


def as_array(values: Tensor) -> Values:
    """Return values, float32 or bfloat16, as an array, C-ordered; it copies only to put them into this order."""
    values = values.detach().contiguous()
    return (values.view(torch.uint16) if values.dtype is torch.bfloat16 else values).numpy()


def as_tensor(values: Values) -> Tensor:
    """Return values as a tensor of their type."""
    tensor = torch.from_numpy(values)
    return tensor.view(torch.bfloat16) if tensor.dtype is torch.uint16 else tensor
