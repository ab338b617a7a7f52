"""One shard's rows in one block of memory, with the state of the sparse optimizer beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

import torch
from torch import Tensor

from cpr_contract.spec import JobSpec, OptimizerSpec
from cpr_trainer.placement import Placement
from cpr_trainer.tables.seeding import Seeding

_EPSILON = 1e-8


@dataclass(frozen=True, slots=True, eq=False)
class Arena:
    """rows: float32 [n, D]. accumulator: float32 [n] of row-wise Adagrad, None with SGD.

    Not safe for use by two threads at once: whoever serves owns it.
    """

    rows: Tensor
    accumulator: Tensor | None
    optimizer: OptimizerSpec

    @classmethod
    def empty(cls, job: JobSpec, size: int) -> Arena:
        """Return an arena of `size` rows, all zero."""
        adagrad = job.model.sparse_optimizer.kind == "RowWiseAdagrad"
        rows = torch.zeros(size, job.model.embedding_dim)
        return cls(rows, torch.zeros(size) if adagrad else None, job.model.sparse_optimizer)

    def seed(self, placement: Placement, shard: int, seeding: Seeding) -> None:
        """Give every row its first value and every accumulator zero: the state at step 0."""
        for chunk in placement.rows_of(shard):
            values = torch.from_numpy(seeding.values(chunk.tables, chunk.rows))
            self.rows[chunk.first_slot : chunk.first_slot + len(values)] = values
        if self.accumulator is not None:
            self.accumulator.zero_()

    def copy(self) -> tuple[Tensor, Tensor | None]:
        """Return copies of rows and accumulator, as they are now."""
        return self.rows.clone(), None if self.accumulator is None else self.accumulator.clone()

    def gather(self, slots: Tensor) -> Tensor:
        """Return the rows in `slots` (int64 [k]), float32 [k, D], a copy."""
        return self.rows.index_select(0, slots)

    def apply(self, slots: Tensor, gradients: Tensor) -> None:
        """Take one optimizer step. slots: int64 [k], all different. gradients: float32 [k, D]."""
        match self.optimizer.kind:
            case "SGD":
                self.rows.index_add_(0, slots, gradients, alpha=-self.optimizer.learning_rate)
            case "RowWiseAdagrad":
                self._apply_adagrad(slots, gradients)
            case "Adagrad":
                raise ValueError("Adagrad with an accumulator per value is for dense parameters")
            case _:
                assert_never(self.optimizer.kind)

    def _apply_adagrad(self, slots: Tensor, gradients: Tensor) -> None:
        """Row-wise Adagrad: acc += mean(g^2) over the row; row -= lr g / (sqrt(acc) + eps)."""
        assert self.accumulator is not None  # noqa: S101 -- `empty` gives row-wise Adagrad one
        sums = self.accumulator.index_select(0, slots).add_(gradients.square().mean(dim=1))
        self.accumulator.index_copy_(0, slots, sums)
        steps = sums.sqrt_().add_(_EPSILON).reciprocal_().mul_(-self.optimizer.learning_rate)
        self.rows.index_add_(0, slots, gradients * steps.unsqueeze(1))
