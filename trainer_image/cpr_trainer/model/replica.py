"""One trainer's replica of the dense network: its parameters, gradients and optimizer state in flat tensors.

An all-reduce, a save and a copy to a new trainer each move one tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from cpr_contract.choices import Device, Precision
from cpr_contract.manifests import SavedModel, SavedTable, SavedTensor
from cpr_contract.model import ModelSpec
from cpr_trainer.errors import ModelError
from cpr_trainer.model.dense_optimizer import DenseOptimizer, counts_steps, memory_width, state_kind
from cpr_trainer.model.entrypoint import DLRM, DTYPES, Factory, build_network, state_of
from cpr_trainer.model.passes import Pass, pass_of

#: The names in a save: of the dense state, float32 [k, p], see `DenseReplica.live`; of each buffer of the network; and
#: of the number of steps, float32 [], if the optimizer counts them.
NETWORK, _BUFFER, _OPTIMIZER_STEPS = "network", "buffer.", "optimizer_steps"


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


class DenseReplica:
    """The dense network and its optimizer.

    model: the network; its parameters and their gradients are views of the tensors below.
    parameters, gradients: float32 [p], contiguous, on `device`. Change them in place only. dtype: that of the
    computation, and of embeddings. `computed_buffers`: see `computing`. `serial` is True once a pass of the network
    has drawn random numbers or changed buffers: its parts are then computed one by one. `factory`: see
    `build_network`. Without `explicit` a built-in network is computed by autograd. Raises ModelError if the network
    cannot be built, or the device is missing.
    """

    def __init__(  # noqa: PLR0913 -- the network, and how it is computed
        self,
        spec: ModelSpec,
        seed: int,
        device: Device = "cpu",
        precision: Precision = "fp32",
        factory: Factory | None = None,
        *,
        explicit: bool = True,
    ) -> None:
        self.device = torch.device(device)
        self.dtype = DTYPES[precision]
        self.model = build_network(spec, seed, precision, factory, device)
        size = sum(parameter.numel() for parameter in self.model.parameters())
        self._spec = spec.dense_optimizer
        self.gradients = torch.zeros(size, device=device)
        self._counted = counts_steps(spec.dense_optimizer)
        first = torch.zeros(1 + memory_width(spec.dense_optimizer), size, device=device)
        for place, parameter in self._places():
            first[0, place] = parameter.detach().flatten()
            parameter.grad = self.gradients[place].view_as(parameter)
        self._attach(first)
        self._built_in = explicit and factory is None and spec.entrypoint in {None, DLRM}
        self._outputs = spec.output_shape
        self._passes: list[Pass] = []
        self._of_parts: list[Tensor] = []
        self.serial = False
        self.computed_buffers: tuple[Tensor, ...] = ()
        self._buffers = Buffers(self.model)
        self._buffers_before: tuple[Tensor, ...] = ()

    def move_to(self, state: Tensor) -> None:
        """Use this tensor as the state from now on, float32 [k, p] on the device, with its values."""
        steps = self.optimizer_steps
        self._attach(state)
        self.optimizer_steps = steps

    @property
    def live(self) -> Tensor:
        """Parameters and optimizer state, float32 [k, p] on the device: no copy, it changes with every step.

        The parameters are first, then the optimizer's state: see `DenseOptimizer`. k is 1 for SGD, 2 for SGD with
        momentum and for Adagrad, 3 for Adam and AdamW.
        """
        return self._state

    @property
    def optimizer_steps(self) -> float:
        """The number of steps that the optimizer has taken."""
        return float(self._optimizer.steps)

    @optimizer_steps.setter
    def optimizer_steps(self, steps: float) -> None:
        self._optimizer.steps.fill_(steps)

    def _attach(self, state: Tensor) -> None:
        self._state = state
        self.parameters = state[0]
        self._optimizer = DenseOptimizer(self._spec, self.parameters, self.gradients, state[1:])
        for place, parameter in self._places():
            parameter.data = self.parameters[place].view_as(parameter)

    def _places(self) -> Iterator[tuple[slice, nn.Parameter]]:
        """Yield each parameter of the network with its place in the flat tensors."""
        start = 0
        for parameter in self.model.parameters():
            place = slice(start, start + parameter.numel())
            yield place, parameter
            start = place.stop

    def autocast(self) -> torch.autocast:
        """Return the context to compute the forward pass in."""
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not torch.float32)

    def passes(self, count: int) -> Sequence[Pass]:
        """Return passes of the network, as many as parts are computed at once. They are kept from step to step.

        The first one writes into `gradients`, each other one into a tensor of its own: see `sum_gradients`.
        """
        while len(self._passes) < count:
            flat = torch.zeros_like(self.gradients) if self._passes else self.gradients
            self._of_parts.append(flat)
            of_parameters = [flat[place].view_as(parameter) for place, parameter in self._places()]
            self._passes.append(pass_of(self.model, self.dtype, self._outputs, of_parameters, built_in=self._built_in))
        return self._passes[:count]

    def sum_gradients(self, count: int) -> None:
        """Add those of the passes to `gradients`, one by one."""
        for flat in self._of_parts[1:count]:  # The order is fixed: sums in another order differ in their last bits.
            self.gradients.add_(flat)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Change the network's buffers in this context only. Those at its end are `computed_buffers`.

        A step that is computed again therefore begins with the buffers after the last complete step.
        """
        if not self._buffers:
            yield
            return
        self._buffers_before = self._buffers.copies()
        try:
            yield
            self.computed_buffers = self._buffers.copies()
        finally:
            self._buffers.set(self._buffers_before)

    def reset_buffers(self) -> bool:
        """In `computing`: set the buffers back to those before; return whether they had changed."""
        if all(map(torch.equal, self._buffers.copies(), self._buffers_before)):
            return False
        self._buffers.set(self._buffers_before)
        return True

    def flatten_computed_buffers(self) -> Tensor:
        """Return the bytes of `computed_buffers`, uint8 [n], which are views of these from now on."""
        flat, self.computed_buffers = flatten(self.computed_buffers)
        return flat

    def step(self, step: int) -> None:
        """Apply the optimizer to `gradients`, and take `computed_buffers`, in the job's `step` (from 1)."""
        self._optimizer.step(step)
        if self.computed_buffers:
            self._buffers.set(self.computed_buffers)
            self.computed_buffers = ()

    def tensors(self) -> dict[str, Tensor]:
        """Return copies on the CPU of this replica's tensors: `live`, and the network's buffers by name.

        The number of steps is one of them if the optimizer counts them.
        """
        buffers = {_BUFFER + name: value.detach().cpu().clone() for name, value in self.buffers().items()}
        steps = {_OPTIMIZER_STEPS: self._optimizer.steps.clone()} if self._counted else {}
        return {NETWORK: self._state.clone().cpu(), **buffers, **steps}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load a result of `tensors`. Raises ModelError if it is of another network."""
        state = tensors[NETWORK]
        if state.shape[1:] == self._state.shape[1:] and len(state) != len(self._state):
            raise another_network(
                f"a dense state with {len(state) - 1} values of the optimizer for each parameter does not fit this "
                f"model.denseOptimizer, which has {len(self._state) - 1}"
            )
        if state.shape != self._state.shape or state.dtype != self._state.dtype:
            raise another_network(
                f"a dense state of {state.dtype} {tuple(state.shape)} does not fit a model of "
                f"{self._state.dtype} {tuple(self._state.shape)}"
            )
        self._state.copy_(state)
        steps = tensors.get(_OPTIMIZER_STEPS)
        if (steps is not None) != self._counted:
            raise another_network("it is of another model.denseOptimizer")
        if steps is not None:
            self._optimizer.steps.copy_(steps)
        for name, buffer in self.buffers().items():
            saved = tensors.get(_BUFFER + name)
            if saved is None or saved.shape != buffer.shape:
                found = "missing" if saved is None else tuple(saved.shape)
                raise another_network(f"the buffer {name} is {found}, not {tuple(buffer.shape)}")
            buffer.copy_(saved)

    def parameter_shapes(self) -> tuple[SavedTensor, ...]:
        """Return name and shape of each parameter, in the order of the flat tensors."""
        return tuple(SavedTensor(name, tuple(each.shape)) for name, each in self.model.named_parameters())

    def buffer_shapes(self) -> tuple[SavedTensor, ...]:
        """Return name and shape of each of `buffers`."""
        return tuple(SavedTensor(name, tuple(each.shape)) for name, each in self.buffers().items())

    @torch.no_grad()
    def take(
        self, tensors: Mapping[str, Tensor], pieces: Sequence[tuple[int, int, int]], buffers: Sequence[str]
    ) -> None:
        """Copy parts of a result of `tensors`, of another network with an optimizer of the same `state_kind`.

        pieces: of the flat state, as (first there, first here, size). buffers: the names of those to copy.
        """
        saved = tensors[NETWORK]
        for there, here, size in pieces:
            self._state[:, here : here + size] = saved[:, there : there + size].to(self.device)
        for name in buffers:
            self.buffers()[name].copy_(tensors[_BUFFER + name])
        if pieces and self._counted:
            self._optimizer.steps.copy_(tensors[_OPTIMIZER_STEPS])

    def buffers(self) -> dict[str, Tensor]:
        """Return the network's state without its parameters, such as running statistics; no copies."""
        return buffers_of(self.model)


def saved_model(model: ModelSpec, seed: int, parameters: tuple[SavedTensor, ...]) -> SavedModel:
    """Return the description in a save by which jobs of other models can use it."""
    tables = (
        SavedTable(
            table.name,
            table.rows,
            dim,
            optimizer.kind,
            table.id_scheme,
            precision=table.precision,
            counted=table.dynamic is not None and table.dynamic.min_steps > 1,
            band=None if table.dynamic is None else band,
        )
        for table, dim, optimizer, band in zip(
            model.tables, model.table_dims, model.table_optimizers, model.bands, strict=True
        )
    )
    return SavedModel(seed, tuple(tables), state_kind(model.dense_optimizer), parameters)


def buffers_in(tensors: Mapping[str, Tensor]) -> tuple[SavedTensor, ...]:
    """Return name and shape of the network's buffers in a dense state."""
    buffers = ((name, each) for name, each in tensors.items() if name.startswith(_BUFFER))
    return tuple(SavedTensor(name.removeprefix(_BUFFER), tuple(each.shape)) for name, each in buffers)


def another_network(how: str) -> ModelError:
    """Return the error of a saved state that does not fit."""
    return ModelError(
        f"A saved dense state is of another network: {how}.", "Use the model and the image that wrote it."
    )
