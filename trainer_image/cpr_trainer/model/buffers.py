"""The buffers of a network: its state without its parameters, such as running statistics."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cpr_trainer.model.entrypoint import state_of


def buffers_of(network: nn.Module) -> dict[str, Tensor]:
    """Return the persistent buffers of a network by name; no copies. Raises ModelError."""
    parameters = {name for name, _ in network.named_parameters(remove_duplicate=False)}
    return {name: value for name, value in state_of(network).items() if name not in parameters}


class Buffers:
    """Copies the buffers of a network, and sets them. They are looked up each time: code may replace a tensor.

    Most are attributes of a module, which are found faster than in a whole state_dict.
    """

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._names = [*buffers_of(network)]
        buffers = {name for name, _ in network.named_buffers(remove_duplicate=False)}
        self._attributes: list[tuple[nn.Module, str]] | None = None
        if buffers.issuperset(self._names):
            places = [name.rpartition(".") for name in self._names]
            self._attributes = [(network.get_submodule(module), name) for module, _, name in places]

    def __len__(self) -> int:
        return len(self._names)

    @torch.no_grad()
    def copies(self) -> tuple[Tensor, ...]:
        """Return copies of all buffers."""
        return tuple(buffer.clone() for buffer in self._tensors())

    @torch.no_grad()
    def set(self, values: Sequence[Tensor]) -> None:
        """Set all buffers to values in the order of `copies`."""
        for buffer, value in zip(self._tensors(), values, strict=True):
            buffer.copy_(value)

    def _tensors(self) -> Sequence[Tensor]:
        if self._attributes is None:
            return [*buffers_of(self._network).values()]
        return [getattr(module, name) for module, name in self._attributes]


def flatten(values: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the bytes of tensors of any types, uint8 [n], and views of these in the forms of the tensors.

    Bytes have one sum with zeros, so that an all-reduce copies them exactly.
    """
    # With the largest types first, each tensor begins at a multiple of its type's size, as a view needs.
    order = sorted(range(len(values)), key=lambda place: -values[place].element_size())
    flat = torch.cat([values[place].reshape(-1).view(torch.uint8) for place in order])
    views, start = {}, 0
    for place in order:
        value = values[place]
        views[place] = flat[start : start + value.nbytes].view(value.dtype).view(value.shape)
        start += value.nbytes
    return flat, tuple(views[place] for place in range(len(values)))
