"""Where the rows of a shard stand: which pushes they hold, what was lost, and when they are cut."""

from __future__ import annotations

from dataclasses import dataclass

from cpr_contract.manifests import RowUpdates
from cpr_trainer.checkpoint.write.decisions import Cuts
from cpr_trainer.shard.losses import Losses
from cpr_trainer.shard.replay_barrier import ReplayBarrier


@dataclass(slots=True)
class Progress:
    """Where the rows stand, in one generation. `dirty` says that no save holds what was applied last.

    `replayed` samples were pushed again since the restore, as ranks had promised in `catch_up`: from `replay_began` on
    (None: none yet), in `replay_s` seconds (None: not all yet). `order` is the place of the last push among those of
    all ranks; `in_order` says that none was applied after one that came later before.
    """

    generation: int
    applied: tuple[int, ...]
    losses: Losses
    row_updates: RowUpdates
    total_samples: int = 0
    cuts: Cuts = Cuts()  # noqa: RUF009 -- frozen
    dirty: bool = False
    catch_up: ReplayBarrier = ReplayBarrier()  # noqa: RUF009 -- frozen
    replayed: int = 0
    replay_began: float | None = None
    replay_s: float | None = None
    order: int = 0
    in_order: bool = True

    @property
    def step(self) -> int:
        """The step that a save made now is named after.

        The last that any rank's push was applied of; where cuts are loose, one that all ranks have reached.
        """
        if not self.cuts.loose:
            return max(self.applied)
        return self.cuts.pending if self.cuts.due(self.applied) else min(self.applied)

    @property
    def resumed(self) -> bool:
        """Whether every rank pushes again, and has sent what it kept: so what is lost since the restore is known."""
        return self.losses.resumed and self.catch_up.over
