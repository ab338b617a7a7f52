"""Where the rows of a shard live: its arena, and which rows of the model lie in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from cpr_contract.spec import JobSpec
from cpr_trainer.placement import Placement
from cpr_trainer.tables.arena import Arena
from cpr_trainer.tables.memory import Memory
from cpr_trainer.tables.seeding import Seeding


@dataclass(frozen=True, slots=True, eq=False)
class Home:
    """A shard's arena, and which rows lie in it."""

    arena: Arena
    placement: Placement
    index: int
    seeding: Seeding

    @classmethod
    def of(cls, job: JobSpec, placement: Placement, index: int, memory: Memory | None = None) -> Self:
        """Return an arena for shard `index` of a job, empty where `memory` is new."""
        arena = Arena.empty(job, *placement.sizes(index), memory=memory)
        return cls(arena, placement, index, Seeding.of(job.model, job.data.seed))

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """The places of each segment of the arena: the first, and that after the last."""
        return self.placement.spans(self.index)
