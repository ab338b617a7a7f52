"""Learning rates by the job's step: a schedule is a sequence of phases, each starting at the level of the last.

A rate depends only on the step. A push that is sent again, a step that is trained again, and a replaced member all use
the rate of the first time.
"""

from __future__ import annotations

from math import cos, pi
from typing import assert_never

from cpr_contract.model import OptimizerSpec, PhaseSpec, SparseOptimizerSpec


def rate_at(optimizer: OptimizerSpec | SparseOptimizerSpec, step: int) -> float:
    """Return an optimizer's learning rate in the job's `step`, from 1.

    It is `learning_rate` times a level, which is 1 without a schedule. After the last phase it stays where that led.
    """
    level = 1.0
    for phase in optimizer.schedule:
        if step <= phase.steps:
            return optimizer.learning_rate * _level(phase, level, step)
        level, step = 1.0 if phase.kind == "Warmup" else _level(phase, level, phase.steps + 1), step - phase.steps
    return optimizer.learning_rate * level


def _level(phase: PhaseSpec, first: float, number: int) -> float:
    """Return the level in the `number`-th step, from 1, of a phase that begins at the level `first`.

    In the step after its last a phase is where it leads to: so are LinearLR, CosineAnnealingLR, PolynomialLR and StepLR
    of torch. A Warmup is there in its last step, as MLPerf's DLRM has it, or else its first would train nothing.
    """
    done = (number - 1) / phase.steps
    match phase.kind:
        case "Constant":
            return first
        case "Step":
            return float(first * phase.factor ** ((number - 1) // phase.every))
        case "Warmup":
            return phase.start + (1 - phase.start) * number / phase.steps
        case "Linear":
            left = 1 - done
        case "Cosine":
            left = (1 + cos(pi * done)) / 2
        case "Polynomial":
            left = float((1 - done) ** phase.power)
        case _:
            assert_never(phase.kind)
    return phase.end + (first - phase.end) * left
