"""The forward and backward passes of a network over some samples: by autograd, or by the network's own equations.

A pass belongs to one thread and one step at a time. `begin` computes what needs no embeddings, `finish` all else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from cpr_trainer.embedding.feature_vectors import Embeddings, tensors_of
from cpr_trainer.errors import ModelError
from cpr_trainer.model.dlrm import Dlrm
from cpr_trainer.model.dlrm_pass import DlrmPass
from cpr_trainer.model.entrypoint import calls, gradients, require_shape, start

#: Returns the share of the loss, a scalar in the autograd graph of logits, float32 [n] or [n, L].
LossOf = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Passed:
    """The results of both passes. logits: float32 [n] or [n, L]; they hold until the next step of the same pass."""

    logits: Tensor
    loss: float


class Pass(Protocol):
    """Computes a network and its gradients for n samples. Raises ModelError.

    spare: the places before each sample's vectors that a tensor of embeddings [n, spare + T, D] has for values of the
    pass; other forms of embeddings have none.
    """

    spare: int

    def begin(self, dense: Tensor) -> None:
        """Compute what needs no embeddings. dense: float32 [n, N]."""

    def finish(self, embeddings: Embeddings, loss_of: LossOf, of_embeddings: Sequence[Tensor]) -> Passed:
        """Compute all else; write the gradients of the parameters, and of the tensors of the embeddings."""


class ExplicitPass(Protocol):
    """The equations of a network, in the place of autograd. It is called without autograd, in this order."""

    def begin(self, dense: Tensor, /) -> None:
        """Compute what needs no embeddings. dense: float32 [n, N]."""

    def logits(self, embeddings: Embeddings, /) -> Tensor:
        """Return logits, [n] or [n, L], from embeddings, as the network's `forward` takes them."""

    def gradients(self, of_logits: Tensor, of_embeddings: Sequence[Tensor], of_parameters: Sequence[Tensor], /) -> None:
        """Write the gradients of the embeddings' tensors, and of the network's parameters in their order.

        of_logits: float32 [n] or [n, L]. The others have the shapes of what they are the gradients of, and any values.
        """


@runtime_checkable
class Explicit(Protocol):
    """A network with an `ExplicitPass`."""

    def explicit_pass(self, dtype: torch.dtype, /) -> ExplicitPass:
        """Return a new pass that computes in float32 or bfloat16, the type of embeddings. Each worker has its own."""


def pass_of(
    network: nn.Module,
    dtype: torch.dtype,
    outputs: Sequence[int],
    of_parameters: Sequence[Tensor],
    *,
    built_in: bool,
) -> Pass:
    """Return a pass of a network with logits [n, *outputs]. Raises ModelError.

    of_parameters: where each step writes the gradients of the network's parameters, on their device. built_in: the
    network is a `Dlrm` that no code of a user has changed. Its passes are explicit in float32 on a processor. In
    bf16 they were slower with two workers: their operations share the interpreter's lock.
    """
    if isinstance(network, Explicit):
        with calls(network, "explicit_pass"):
            return _OwnPass(network, network.explicit_pass(dtype), outputs, of_parameters)
    if built_in and dtype is torch.float32 and all(each.device.type == "cpu" for each in of_parameters):
        own = DlrmPass(cast(Dlrm, network), dtype)
        return _OwnPass(network, own, outputs, of_parameters, own.spare)
    return _AutogradPass(network, dtype, outputs, of_parameters)


class _AutogradPass:
    """A pass by autograd, and autocast for types other than float32."""

    spare = 0

    def __init__(
        self, network: nn.Module, dtype: torch.dtype, outputs: Sequence[int], of_parameters: Sequence[Tensor]
    ) -> None:
        self._dtype = dtype
        self._network, self._outputs, self._of_parameters = network, outputs, of_parameters

    def begin(self, dense: Tensor) -> None:
        with self._autocast(dense.device):
            self._end = start(self._network, dense, self._outputs)

    def finish(self, embeddings: Embeddings, loss_of: LossOf, of_embeddings: Sequence[Tensor]) -> Passed:
        leaves = [leaf.requires_grad_() for leaf in tensors_of(embeddings)]
        with self._autocast(leaves[0].device):
            logits = self._end(embeddings).float()
        del self._end  # with what it needs of the graph
        loss = loss_of(logits)
        pairs = [*zip(self._network.parameters(), self._of_parameters, strict=True)]
        trained = [parameter for parameter, _ in pairs if parameter.requires_grad]
        found = gradients(self._network, loss, (*leaves, *trained))
        if all(gradient is None for gradient in found[: len(leaves)]):
            raise ModelError(
                "The network does not use its embeddings in a batch.",
                "No table can learn without them; correct its forward.",
            )
        into = (*of_embeddings, *(gradient for parameter, gradient in pairs if parameter.requires_grad))
        for gradient, target in zip(found, into, strict=True):
            if gradient is None:
                target.zero_()
            else:
                target.copy_(gradient)
        return Passed(logits.detach(), float(loss.detach()))

    def _autocast(self, device: torch.device) -> torch.autocast:
        return torch.autocast(device.type, self._dtype, enabled=self._dtype is not torch.float32)


class _OwnPass:
    """A pass by the equations of a network; only the loss has autograd."""

    def __init__(
        self,
        network: nn.Module,
        own: ExplicitPass,
        outputs: Sequence[int],
        of_parameters: Sequence[Tensor],
        spare: int = 0,
    ) -> None:
        self.spare = spare
        self._network, self._own, self._outputs, self._of_parameters = network, own, outputs, of_parameters

    @torch.no_grad()
    def begin(self, dense: Tensor) -> None:
        self._samples = len(dense)
        with calls(self._network, "begin of its explicit pass"):
            self._own.begin(dense)

    @torch.no_grad()
    def finish(self, embeddings: Embeddings, loss_of: LossOf, of_embeddings: Sequence[Tensor]) -> Passed:
        with calls(self._network, "logits of its explicit pass"):
            logits = self._own.logits(embeddings)
        require_shape(self._network, "logits of its explicit pass", logits, (self._samples, *self._outputs))
        logits = logits.float()
        with torch.enable_grad():
            loss = loss_of(logits.requires_grad_())
            (of_logits,) = gradients(self._network, loss, (logits,))
        if of_logits is None:
            of_logits = torch.zeros_like(logits)
        with calls(self._network, "gradients of its explicit pass"):
            self._own.gradients(of_logits, of_embeddings, self._of_parameters)
        for parameter, gradient in zip(self._network.parameters(), self._of_parameters, strict=True):
            if not parameter.requires_grad:
                gradient.zero_()  # it is not trained
        return Passed(logits.detach(), float(loss.detach()))
