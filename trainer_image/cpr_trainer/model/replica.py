"""One trainer's replica of the dense network: its parameters, gradients and optimizer state in flat buffers.

Flat, so that an all-reduce, a save and a copy to a newcomer each move one tensor.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from cpr_contract.spec import Device, ModelSpec, Precision
from cpr_trainer.errors import ModelError
from cpr_trainer.model.entrypoint import DTYPES, Factory, build_network

#: The epsilon of torch.optim.Adagrad.
_ADAGRAD_EPSILON = 1e-10
#: How the dense state is named in a save: float32 [k, p], see `DenseReplica.state`; and each buffer of the network.
NETWORK, _BUFFER = "network", "buffer."
#: Flat tensors in the state of each kind of dense optimizer: the parameters, then what it remembers.
_STATE_TENSORS = {"SGD": 1, "Adagrad": 2}


class DenseReplica:
    """The dense network and its optimizer; `spec.dense_optimizer` is SGD or Adagrad, else ValueError.

    model: the network; its parameters and their gradients are views of the buffers below.
    parameters, gradients: float32 [p], contiguous, on `device`. Change them in place only. dtype: what the network
    computes with, and takes embeddings in. `factory`: see `build_network`. Raises ModelError if the network cannot be
    built, or there is no such device.
    """

    def __init__(
        self,
        spec: ModelSpec,
        seed: int,
        device: Device = "cpu",
        precision: Precision = "fp32",
        factory: Factory | None = None,
    ) -> None:
        self._optimizer = spec.dense_optimizer
        self.device = torch.device(device)
        self.dtype = DTYPES[precision]
        self.model = build_network(spec, seed, precision, factory, device)
        size = sum(parameter.numel() for parameter in self.model.parameters())
        self._state = torch.zeros(_STATE_TENSORS[self._optimizer.kind], size, device=device)
        self.parameters = self._state[0]
        self.gradients = torch.zeros(size, device=device)
        start = 0
        for parameter in self.model.parameters():
            place = slice(start, start + parameter.numel())
            self.parameters[place] = parameter.detach().flatten()
            parameter.data = self.parameters[place].view_as(parameter)
            parameter.grad = self.gradients[place].view_as(parameter)
            start = place.stop

    def autocast(self) -> torch.autocast:
        """Return the context to compute the forward pass in."""
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not torch.float32)

    def zero_gradients(self) -> None:
        """Set all gradients to zero in place: backward adds to them."""
        self.gradients.zero_()

    @torch.no_grad()
    def step(self) -> None:
        """Apply the optimizer to `gradients`; the same arithmetic as torch.optim's, on one tensor."""
        rate = self._optimizer.learning_rate
        match self._optimizer.kind:
            case "SGD":
                self.parameters.add_(self.gradients, alpha=-rate)
            case "Adagrad":
                squares = self._state[1].addcmul_(self.gradients, self.gradients)
                self.parameters.addcdiv_(self.gradients, squares.sqrt().add_(_ADAGRAD_EPSILON), value=-rate)

    def tensors(self) -> dict[str, Tensor]:
        """Return copies on the CPU of all that makes this replica: `state`, and the network's buffers by name."""
        buffers = {_BUFFER + name: value.detach().cpu().clone() for name, value in self._buffers().items()}
        return {NETWORK: self.state().cpu(), **buffers}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Go to what `tensors` returned. Raises ModelError if that is of another network."""
        try:
            self.load_state(tensors[NETWORK])
        except ValueError as error:
            raise another_network(str(error)) from error
        for name, buffer in self._buffers().items():
            saved = tensors.get(_BUFFER + name)
            if saved is None or saved.shape != buffer.shape:
                found = "missing" if saved is None else tuple(saved.shape)
                raise another_network(f"the buffer {name} is {found}, not {tuple(buffer.shape)}")
            buffer.copy_(saved)

    def _buffers(self) -> dict[str, Tensor]:
        """What a state of the network has besides parameters, such as running statistics."""
        parameters = {name for name, _ in self.model.named_parameters(remove_duplicate=False)}
        return {name: value for name, value in self.model.state_dict().items() if name not in parameters}

    def state(self) -> Tensor:
        """Return a copy of parameters and optimizer state, float32 [k, p] on the device.

        k is 1 for SGD (parameters), 2 for Adagrad (then the sums of squared gradients).
        """
        return self._state.clone()

    @torch.no_grad()
    def load_state(self, state: Tensor) -> None:
        """Go to a state that `state` returned, from any device. Raises ValueError if its shape or type differs."""
        if state.shape != self._state.shape or state.dtype != self._state.dtype:
            raise ValueError(
                f"a dense state of {state.dtype} {tuple(state.shape)} does not fit a model of "
                f"{self._state.dtype} {tuple(self._state.shape)}"
            )
        self._state.copy_(state)


def another_network(how: str) -> ModelError:
    """Return the error of a saved state that does not fit."""
    return ModelError(
        f"A saved dense state is of another network: {how}.", "Use the model and the image that wrote it."
    )
