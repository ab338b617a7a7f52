"""The buffers of a network, its state without its parameters, as bytes: running statistics, for example.

Bytes have one sum with zeros, so an all-reduce copies them exactly, whatever their types are.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from cpr_trainer.model.entrypoint import state_of

#: Bytes become values of any type only at a multiple of its size.
_ALIGNMENT = 16


def buffers_of(network: nn.Module) -> dict[str, Tensor]:
    """Return the persistent buffers of a network by name; no copies. Raises ModelError."""
    parameters = {name for name, _ in network.named_parameters(remove_duplicate=False)}
    return {name: value for name, value in state_of(network).items() if name not in parameters}


class BufferBytes:
    """Copies the buffers of `network` to bytes, and back. `size` is the number of bytes, 0 without buffers."""

    def __init__(self, network: nn.Module, device: torch.device) -> None:
        self._network = network
        self._device = device
        self.size = sum(_aligned(buffer) for buffer in buffers_of(network).values())

    @torch.no_grad()
    def read(self) -> Tensor:
        """Return the buffers, uint8 [size], on the device."""
        found = torch.zeros(self.size, dtype=torch.uint8, device=self._device)
        for place, buffer in self._places():
            found[place].view(buffer.dtype).copy_(buffer.detach().reshape(-1))
        return found

    @torch.no_grad()
    def write(self, values: Tensor) -> None:
        """Set the buffers to a result of `read`, from any device."""
        for place, buffer in self._places():
            buffer.copy_(values[place].view(buffer.dtype).view(buffer.shape))

    def _places(self) -> Iterator[tuple[slice, Tensor]]:
        # A network may have replaced a tensor by another one since the last call.
        start = 0
        for buffer in buffers_of(self._network).values():
            yield slice(start, start + buffer.nbytes), buffer
            start += _aligned(buffer)


def _aligned(buffer: Tensor) -> int:
    return -(-buffer.nbytes // _ALIGNMENT) * _ALIGNMENT
