"""Learning rates by torch's own schedulers: one for each phase, begun at the rate that the phase before led to."""

from __future__ import annotations

from typing import assert_never

import torch
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from cpr_contract.model import OptimizerSpec, PhaseSpec, SparseOptimizerSpec


def torch_rates(optimizer: OptimizerSpec | SparseOptimizerSpec, steps: int) -> list[float]:
    """Return the rates of the steps from 1 on."""
    rates, rate = list[float](), optimizer.learning_rate
    for phase in optimizer.schedule:
        if phase.kind == "Warmup":
            rate = optimizer.learning_rate
        steppable = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)
        scheduler = _scheduler(phase, steppable, phase.end * optimizer.learning_rate)
        for _ in range(phase.steps):
            rates.append(steppable.param_groups[0]["lr"])
            steppable.step()
            scheduler.step()
        rate = steppable.param_groups[0]["lr"]
    return (rates + steps * [rate])[:steps]


def _scheduler(phase: PhaseSpec, steppable: torch.optim.Optimizer, end: float) -> LRScheduler:
    first: float = steppable.param_groups[0]["lr"]
    match phase.kind:
        case "Constant":
            return lr_scheduler.ConstantLR(steppable, factor=1.0)
        case "Warmup":
            # Torch reaches the end after that many steps, and cannot begin at 0.
            begin = phase.start + (1 - phase.start) / phase.steps
            return lr_scheduler.LinearLR(steppable, begin, 1.0, total_iters=phase.steps - 1)
        case "Linear":
            return lr_scheduler.LinearLR(steppable, 1.0, end / first, total_iters=phase.steps)
        case "Cosine":
            return lr_scheduler.CosineAnnealingLR(steppable, phase.steps, end)
        case "Polynomial":
            assert not end, "torch's ends in 0"
            return lr_scheduler.PolynomialLR(steppable, phase.steps, phase.power)
        case "Step":
            return lr_scheduler.StepLR(steppable, phase.every, phase.factor)
        case _:
            assert_never(phase.kind)
