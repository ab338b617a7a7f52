from __future__ import annotations

import pytest

from cpr_contract.requests import ShardLoss
from cpr_trainer.calibration import StepLoss, lost_sample_shards, step_losses
from cpr_trainer.data.order import BatchOrder
from cpr_trainer.runtime import BadSpecError


def test_portions_become_steps_shard_by_shard() -> None:
    losses = (ShardLoss((2, 0), 0.5, 0.751), ShardLoss((0,), 0.0, 0.5))
    assert step_losses(losses, shards=3, steps=10) == (StepLoss(0, 0, 5), StepLoss(0, 5, 8), StepLoss(2, 5, 8))
    assert step_losses([ShardLoss((0,), 0.52, 0.54)], shards=1, steps=10) == (), "it is shorter than a step"
    with pytest.raises(BadSpecError, match="overlap"):
        step_losses([ShardLoss((0, 1), 0.1, 0.5), ShardLoss((1, 2), 0.4, 0.6)], shards=3, steps=10)


@pytest.mark.parametrize(
    "losses",
    [
        [ShardLoss((3,), 0.1, 0.2)],
        [ShardLoss((-1,), 0.1, 0.2)],
        [ShardLoss((0,), 0.2, 0.1)],
        [ShardLoss((0,), -0.1, 0.1)],
        [ShardLoss((0,), 0.5, 1.1)],
    ],
)
def test_a_loss_that_cannot_be_is_refused(losses: list[ShardLoss]) -> None:
    with pytest.raises(BadSpecError, match="does not fit a run over 3 shards"):
        step_losses(losses, shards=3, steps=10)


def test_the_last_batch_may_be_smaller_and_so_is_what_is_lost_of_it() -> None:
    order = BatchOrder(rows=95, total_samples=95, batch_size=10, seed=0)
    assert lost_sample_shards([StepLoss(0, 2, 4), StepLoss(1, 9, 10)], order) == 20 + 5
