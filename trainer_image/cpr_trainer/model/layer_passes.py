"""Forward and backward passes of linear layers without autograd, in buffers that are kept between steps.

Autograd allocates each result, reads a layer's gradient once more for ReLU and once more for the bias, and cannot pad
a matrix to whole vector registers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

#: The number of values of a row is padded to a multiple of this: 64 bytes of float32. The products of a backward pass
#: over 368 columns took a tenth less time than those over 367, on a processor with AVX-512.
_ALIGNED = 16


class Workspace:
    """Buffers by name, kept from step to step: fresh memory costs a page fault for every 4 KiB."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def take(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return the buffer of this name in a shape; its values are those of its last use."""
        size = torch.Size(shape).numel()
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < size or buffer.dtype is not dtype:
            buffer = self._buffers[name] = torch.empty(size, dtype=dtype)
        return buffer[:size].view(*shape)


class LinearPass:
    """The products of a linear layer, y = x W^T + b, with x [n, width], and of its gradients.

    width: `layer.in_features`, or with `padded` the next multiple of `_ALIGNED`. In the place of the first extra value
    x has a 1 and W the bias, so that the products include the bias and its gradient; all other extra values are 0.
    dtype: of all of them.
    """

    def __init__(self, layer: nn.Linear, dtype: torch.dtype, *, padded: bool = False) -> None:
        self._layer = layer
        self.outputs, self.inputs = layer.weight.shape
        self.width = max(1, -(-self.inputs // _ALIGNED)) * _ALIGNED if padded else self.inputs
        self._bias_is_column = self.width > self.inputs and layer.bias is not None
        self.parameters = 1 if layer.bias is None else 2
        # Copies of W and its gradient, unless the products can use the parameter's and the result.
        self._copy: Tensor | None = None
        self._product: Tensor | None = None
        if self.width > self.inputs:
            self._copy = torch.zeros(self.outputs, self.width, dtype=dtype)
            self._product = torch.empty(self.outputs, self.width, dtype=dtype)

    def begin(self) -> None:
        """Take the present values of the parameters."""
        weight, bias = self._layer.weight.detach(), self._layer.bias
        if self._copy is not None:
            self._copy[:, : self.inputs].copy_(weight)
            if self._bias_is_column:
                self._copy[:, self.inputs].copy_(bias.detach())
        self._weight = weight if self._copy is None else self._copy
        self._bias = None if bias is None or self._bias_is_column else bias.detach()

    def pad(self, values: Tensor) -> None:
        """Fill the extra columns of x, [n, width]."""
        values[:, self.inputs : self.inputs + 1].fill_(1)
        values[:, self.inputs + 1 :].zero_()

    def forward(self, values: Tensor, out: Tensor) -> None:
        """Write y, [n, outputs], for x."""
        torch.ops.aten.linear.out(values, self._weight, self._bias, out=out)

    def to_inputs(self, gradient: Tensor, out: Tensor) -> None:
        """Write the gradient of x, [n, width], from that of y; its extra columns are meaningless."""
        torch.mm(gradient, self._weight, out=out)

    def to_parameters(self, values: Tensor, gradient: Tensor, of_weight: Tensor, of_bias: Tensor | None = None) -> None:
        """Write the gradients of W and b from x and the gradient of y."""
        if self._product is None:
            torch.mm(gradient.t(), values, out=of_weight)
        else:
            torch.mm(gradient.t(), values, out=self._product)
            of_weight.copy_(self._product[:, : self.inputs])
        if of_bias is not None:
            if self._product is not None and self._bias_is_column:
                of_bias.copy_(self._product[:, self.inputs])
            else:
                torch.sum(gradient, 0, out=of_bias)


class MlpPass:
    """Linear layers with ReLU between them, and behind the last one if the network ends in it."""

    def __init__(self, network: nn.Sequential, workspace: Workspace, name: str, dtype: torch.dtype) -> None:
        self._layers = [LinearPass(each, dtype, padded=True) for each in network if isinstance(each, nn.Linear)]
        self._ends_in_relu = isinstance(network[-1], nn.ReLU)
        self._workspace, self._name, self._dtype = workspace, name, dtype
        self._values: list[Tensor] = []

    def begin(self, samples: int) -> Tensor:
        """Begin a step; return where the inputs of all samples have to be written, [n, inputs]."""
        taken = []
        for number, layer in enumerate(self._layers):
            layer.begin()
            values = self._workspace.take(f"{self._name} {number}", (samples, layer.width), self._dtype)
            layer.pad(values)
            taken.append(values)
        last = self._layers[-1]
        outputs = self._workspace.take(f"{self._name} outputs", (samples, last.outputs), self._dtype)
        self._values = [*taken, outputs]
        return taken[0][:, : self._layers[0].inputs]

    def forward(self) -> Tensor:
        """Return the outputs, [n, outputs], from the inputs."""
        for number, layer in enumerate(self._layers):
            is_last = layer is self._layers[-1]
            out = self._values[number + 1][:, : layer.outputs]
            layer.forward(self._values[number], out)
            if self._ends_in_relu or not is_last:
                out.relu_()
        return self._values[-1]

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        return sum(layer.parameters for layer in self._layers)

    def backward(self, gradient: Tensor, of_parameters: Sequence[Tensor], *, to_inputs: bool) -> Tensor | None:
        """Write the gradients of the parameters from that of the outputs, [n, outputs], which is overwritten.

        Return the gradient of the inputs if it is needed, [n, at least inputs]; other columns are meaningless.
        """
        end = len(of_parameters)
        for number, layer in reversed([*enumerate(self._layers)]):
            if layer is not self._layers[-1] or self._ends_in_relu:
                outputs = self._values[number + 1][:, : layer.outputs]
                gradient = gradient[:, : layer.outputs]
                # The gradient of ReLU is that of its result where this is above 0.
                torch.ops.aten.threshold_backward.grad_input(gradient, outputs, 0, grad_input=gradient)
            values = self._values[number]
            layer.to_parameters(values, gradient, *of_parameters[end - layer.parameters : end])
            end -= layer.parameters
            if number or to_inputs:
                into = self._workspace.take(f"of {self._name} {number}", values.shape, self._dtype)
                layer.to_inputs(gradient, into)
                gradient = into
        return gradient if to_inputs else None
