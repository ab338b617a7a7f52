"""The optimizers of the dense network: those of torch.optim, on the flat tensor that its parameters are.

They are torch's own functions. Its optimizer objects would do the same, but the first of them loads torch's compiler,
which takes seconds at the start of each trainer.
"""

from __future__ import annotations

from typing import assert_never

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.adagrad import adagrad
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from cpr_contract.model import OptimizerSpec
from cpr_trainer.rates import rate_at


def memory_width(spec: OptimizerSpec) -> int:
    """Return how many values an optimizer keeps of each parameter; first values are zero."""
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
    """Return whether steps are counted: Adam's moments begin at zero, which the first steps make up for.

    Those of SGD with momentum are counted, too: so a save tells its momentum from what Adagrad keeps.
    """
    return spec.kind in {"Adam", "AdamW"} or spec.momentum > 0


def state_kind(spec: OptimizerSpec) -> str:
    """Return a name of what an optimizer keeps of each parameter: those of one name can go on from each other."""
    if spec.kind == "SGD" and spec.momentum:
        return "SGD with momentum"
    return "Adam" if spec.kind == "AdamW" else spec.kind


class DenseOptimizer:
    """Steps `parameters`, float32 [p], by `gradients`, float32 [p], both on one device and changed in place.

    memory: float32 [m, p] with m = `memory_width`, changed in place: the momentum of SGD, the sums of squares of
    Adagrad, the means of gradients and of their squares of Adam. steps: how many were taken, float32 []
    on the CPU, as torch counts them.
    """

    def __init__(self, spec: OptimizerSpec, parameters: Tensor, gradients: Tensor, memory: Tensor) -> None:
        self.steps = torch.zeros(())
        self._spec = spec
        self._parameters = nn.Parameter(parameters)
        self._parameters.grad = gradients
        self._memory = memory.unbind()

    @torch.no_grad()
    def step(self, step: int) -> None:
        """Take the job's `step` (from 1). The gradients are clipped in place first, if the spec says so."""
        spec, parameters = self._spec, self._parameters
        if spec.clip_norm is not None:
            clip_grad_norm_(parameters, spec.clip_norm)
        assert parameters.grad is not None  # noqa: S101 -- it is set once and for all
        ours: tuple[list[Tensor], list[Tensor]] = ([parameters], [parameters.grad])
        memory = list(self._memory)
        rate, decay = rate_at(spec, step), spec.weight_decay
        match spec.kind:
            case "SGD":
                self.steps += 1
                sgd(
                    *ours,
                    list[Tensor | None](memory) or [None],
                    foreach=False,
                    lr=rate,
                    momentum=spec.momentum,
                    nesterov=spec.nesterov,
                    dampening=0.0,
                    weight_decay=decay,
                    maximize=False,
                )
            case "Adagrad":
                adagrad(
                    *ours,
                    memory,
                    [self.steps],
                    foreach=False,
                    lr=rate,
                    lr_decay=0.0,
                    eps=spec.epsilon,
                    weight_decay=decay,
                    maximize=False,
                )
            case "Adam" | "AdamW":
                means, squares = memory
                adam(
                    *ours,
                    [means],
                    [squares],
                    [],
                    [self.steps],
                    foreach=False,
                    decoupled_weight_decay=spec.kind == "AdamW",
                    lr=rate,
                    beta1=spec.beta1,
                    beta2=spec.beta2,
                    eps=spec.epsilon,
                    weight_decay=decay,
                    amsgrad=False,
                    maximize=False,
                )
            case _:
                assert_never(spec.kind)
