"""Learning rates against torch's schedulers."""

from __future__ import annotations

import pytest

from cpr_contract.model import OptimizerSpec, PhaseSpec, SparseOptimizerSpec
from cpr_trainer.rates import rate_at
from support.torch_rates import torch_rates

SCHEDULES: dict[str, tuple[PhaseSpec, ...]] = {
    "none": (),
    "Constant": (PhaseSpec("Constant", 5),),
    "Warmup": (PhaseSpec("Warmup", 10),),
    "Warmup, start": (PhaseSpec("Warmup", 10, start=0.25),),
    "Linear": (PhaseSpec("Linear", 20),),
    "Linear, end": (PhaseSpec("Linear", 20, end=0.1),),
    "Cosine": (PhaseSpec("Cosine", 20),),
    "Cosine, end": (PhaseSpec("Cosine", 20, end=0.3),),
    "Polynomial": (PhaseSpec("Polynomial", 20, power=2.0),),
    "Polynomial, root": (PhaseSpec("Polynomial", 20, power=0.5),),
    "Step": (PhaseSpec("Step", 20, every=6, factor=0.5),),
    "all": (
        PhaseSpec("Warmup", 7, start=0.1),
        PhaseSpec("Constant", 3),
        PhaseSpec("Step", 9, every=3, factor=0.5),
        PhaseSpec("Linear", 5, end=0.1),
        PhaseSpec("Warmup", 4),
        PhaseSpec("Cosine", 6, end=0.2),
        PhaseSpec("Polynomial", 5, power=3.0),
    ),
}


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_each_phase_is_a_scheduler_of_torch(schedule: tuple[PhaseSpec, ...]) -> None:
    for optimizer in (OptimizerSpec("SGD", 0.3, schedule=schedule), SparseOptimizerSpec("SGD", 0.3, schedule=schedule)):
        ours = [rate_at(optimizer, step) for step in range(1, 51)]
        assert ours == pytest.approx(torch_rates(optimizer, 50), rel=1e-12, abs=1e-15)


def test_without_a_schedule_the_rate_is_the_very_number() -> None:
    assert {rate_at(OptimizerSpec("Adam", 0.1), step) for step in (1, 10, 10**12)} == {0.1}


def test_a_rate_is_asked_for_in_any_order() -> None:
    """Pushes are sent again, and ranks of a shadow mode stand at different steps."""
    optimizer = OptimizerSpec("SGD", 0.3, schedule=SCHEDULES["all"])
    forward = [rate_at(optimizer, step) for step in range(1, 51)]
    assert [rate_at(optimizer, step) for step in range(50, 0, -1)] == forward[::-1]
