"""The optimizers of the dense network: those of torch.optim, on the flat tensor of its parameters.

They call torch's own functions. Its optimizer objects would compute the same, but the first of them loads torch's
compiler, which takes seconds at the start of each trainer.
"""

from __future__ import annotations

from typing import Any, assert_never

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.adagrad import adagrad
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from cpr_contract.model import OptimizerSpec
from cpr_trainer.rates import rate_at


def memory_width(spec: OptimizerSpec) -> int:
    """Return the number of values that an optimizer has for each parameter; first values are zero."""
    match spec.kind:
        case "SGD":
            return 1 if spec.momentum else 0
        case "Adagrad":
            return 1
        case "Adam" | "AdamW":
            return 2
        case _:
            assert_never(spec.kind)


def counts_steps(spec: OptimizerSpec) -> bool:
    """Return True if the optimizer counts steps: Adam's first steps correct moments that begin at zero.

    SGD with momentum counts them, too, to distinguish its saved momentum from the sums of Adagrad.
    """
    return spec.kind in {"Adam", "AdamW"} or spec.momentum > 0


def state_kind(spec: OptimizerSpec) -> str:
    """Return the name of an optimizer's state: optimizers of one name can continue from each other's state."""
    if spec.kind == "SGD" and spec.momentum:
        return "SGD with momentum"
    return "Adam" if spec.kind == "AdamW" else spec.kind


class DenseOptimizer:
    """Steps `parameters`, float32 [p], by `gradients`, float32 [p], both on one device and changed in place.

    memory: float32 [m, p] with m = `memory_width`, changed in place: the momentum of SGD, the sums of squares of
    Adagrad, the means of gradients and of their squares of Adam. steps: the number of steps taken, float32 [] on the
    CPU, as torch counts them.
    """

    def __init__(self, spec: OptimizerSpec, parameters: Tensor, gradients: Tensor, memory: Tensor) -> None:
        self.steps = torch.zeros(())
        self._spec = spec
        self._parameters = nn.Parameter(parameters)
        self._parameters.grad = gradients
        self._memory = memory.unbind()

    @torch.no_grad()
    def step(self, step: int) -> None:
        """Take the job's `step` (from 1). The gradients are clipped in place first, if the spec has `clip_norm`."""
        spec, parameters = self._spec, self._parameters
        if spec.clip_norm is not None:
            clip_grad_norm_(parameters, spec.clip_norm)
        assert parameters.grad is not None  # noqa: S101 -- set once, by the constructor
        ours: tuple[list[Tensor], list[Tensor]] = ([parameters], [parameters.grad])
        memory = list(self._memory)
        common: dict[str, Any] = {
            "foreach": False,
            "lr": rate_at(spec, step),
            "weight_decay": spec.weight_decay,
            "maximize": False,
        }
        match spec.kind:
            case "SGD":
                self.steps += 1
                momenta = list[Tensor | None](memory) or [None]
                sgd(*ours, momenta, momentum=spec.momentum, nesterov=spec.nesterov, dampening=0.0, **common)
            case "Adagrad":
                adagrad(*ours, memory, [self.steps], lr_decay=0.0, eps=spec.epsilon, **common)
            case "Adam" | "AdamW":
                means, squares = memory
                adam(
                    *ours,
                    [means],
                    [squares],
                    [],
                    [self.steps],
                    decoupled_weight_decay=spec.kind == "AdamW",
                    beta1=spec.beta1,
                    beta2=spec.beta2,
                    eps=spec.epsilon,
                    amsgrad=False,
                    **common,
                )
            case _:
                assert_never(spec.kind)
