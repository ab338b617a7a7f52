"""Buffers of networks as copies and as bytes, of any type and shape."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cpr_trainer.model.replica import Buffers, buffers_of, flatten

VALUES = (
    torch.tensor(-0.0),
    torch.tensor([True, False, True]),
    torch.tensor([[1.5], [torch.nan]], dtype=torch.float64),
    torch.tensor([], dtype=torch.int64),
    torch.arange(5, dtype=torch.bfloat16),
    torch.tensor(7),
)


def test_bytes_of_rank_0_and_zeros_of_the_others_add_up_to_its_buffers() -> None:
    """A sum of values would lose the sign of a zero."""
    first, _ = flatten(VALUES)
    flat, views = flatten([torch.ones_like(value) for value in VALUES])
    flat.zero_()
    flat += first
    for view, value in zip(views, VALUES, strict=True):
        assert (view.dtype, view.shape) == (value.dtype, value.shape)
        assert torch.equal(view.reshape(-1).view(torch.uint8), value.reshape(-1).view(torch.uint8))


class Replaces(nn.Module):
    """A network whose code replaces the tensor of a buffer, and that has one that is not saved."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def forward(self, given: Tensor) -> Tensor:
        self.mean = self.mean + given
        return self.mean


class ExtraState(nn.Module):
    """A network with a state that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.state = Replaces(), torch.zeros(1)

    def get_extra_state(self) -> Tensor:
        return self.state

    def set_extra_state(self, state: Tensor) -> None:
        self.state = state


def test_replaced_tensor_is_set_to_its_value_before() -> None:
    network = Replaces()
    buffers = Buffers(network)
    before = buffers.copies()
    network(torch.ones(2))
    assert len(buffers) == 1
    assert torch.equal(buffers.copies()[0], torch.ones(2))
    buffers.set(before)
    assert torch.equal(network.mean, torch.zeros(2))


def test_state_that_is_no_buffer_is_copied_with_them() -> None:
    network = ExtraState()
    buffers = Buffers(network)
    before = buffers.copies()
    network.inner(torch.ones(2))
    network.state += 5
    assert len(buffers) == len(buffers_of(network)) == 2
    buffers.set(before)
    assert [each.tolist() for each in buffers_of(network).values()] == [each.tolist() for each in before]
    assert network.state.item() == 0.0
