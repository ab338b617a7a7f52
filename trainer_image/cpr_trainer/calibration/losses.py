"""Losses at stated places: shards that go back to a copy of an earlier step, as partial recovery takes them back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from cpr_contract.calibration import ShardLoss
from cpr_contract.spec import samples_at
from cpr_trainer.arrays import Ints
from cpr_trainer.calibration.saved_rows import SavedRows
from cpr_trainer.data.order import BatchOrder
from cpr_trainer.placement import Placement
from cpr_trainer.runtime import BadSpecError


@dataclass(frozen=True, slots=True)
class StepLoss:
    """After step `at`, `shard` goes back to how it was after step `back_to`."""

    shard: int
    back_to: int
    at: int


def step_losses(losses: Sequence[ShardLoss], shards: int, steps: int) -> tuple[StepLoss, ...]:
    """Return losses in steps, shard by shard; those too short for a step are left out.

    Raises BadSpecError for a shard or a portion that there is not, and for a shard that goes back behind a loss of its
    own: the account of lost samples would count some of them twice.
    """
    found = []
    for loss in losses:
        if not 0 <= loss.back_to < loss.at <= 1 or not all(0 <= shard < shards for shard in loss.shards):
            raise BadSpecError(f"{loss} does not fit a run over {shards} shards.", "Correct the experiment's losses.")
        back_to, at = round(loss.back_to * steps), round(loss.at * steps)
        found += [StepLoss(shard, back_to, at) for shard in loss.shards if back_to < at]
    found.sort(key=lambda loss: (loss.shard, loss.at))
    for first, second in pairwise(found):
        if first.shard == second.shard and second.back_to < first.at:
            raise BadSpecError(f"{first} and {second} overlap.", "Correct the experiment's losses.")
    return tuple(found)


class InjectedLosses:
    """An `Injection` that saves a shard where a loss goes back to, and restores it where the loss happens.

    lost_row_updates: updates that the restores so far have undone.
    """

    def __init__(self, losses: Sequence[StepLoss], placement: Placement, saved: SavedRows) -> None:
        self._losses = losses
        self._starts = placement.starts.tolist()
        self._saved = saved
        self.lost_row_updates = 0

    def after_step(self, step: int, slots: Ints) -> None:
        """Count the updates of `step`, restore what is lost now, then save what will be lost from now on."""
        self._saved.note(slots)
        for loss in self._losses:
            if loss.at == step:
                self.lost_row_updates += self._saved.restore(self._rows_of(loss.shard))
        for loss in self._losses:
            if loss.back_to == step:
                self._saved.save(self._rows_of(loss.shard))

    def _rows_of(self, shard: int) -> slice:
        return slice(self._starts[shard], self._starts[shard + 1])


def lost_sample_shards(losses: Sequence[StepLoss], order: BatchOrder) -> int:
    """Return the samples that shards lose, summed over shards: the ledger's `spent`."""

    def samples(step: int) -> int:
        return samples_at(step, order.batch_size, order.total_samples)

    return sum(samples(loss.at) - samples(loss.back_to) for loss in losses)
