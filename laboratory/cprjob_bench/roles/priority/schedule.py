"""When a trial saves and how much: every strategy writes as many rows as saves of everything would."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cpr_trainer.access import find_access
from cpr_trainer.arrays import Ints
from cpr_trainer.data.batch import Dataset
from cpr_trainer.data.order import BatchOrder
from cpr_trainer.placement import Placement
from cpr_trainer.runtime import BadSpecError
from cprjob_bench.documents.priority import Saving


@dataclass(frozen=True, slots=True)
class Schedule:
    """Steps from one save of everything to the next, and from one priority save to the next (0: there are none).

    shard_rows: what one priority save of one shard writes.
    """

    anchor_steps: int
    priority_steps: int = 0
    shard_rows: int = 0

    @classmethod
    def of(cls, saving: Saving, order: BatchOrder, dataset: Dataset, placement: Placement) -> Schedule:
        """Return a trial's schedule. Raises BadSpecError if the run is too short for it, DataError."""
        interval = round(saving.interval * order.steps)
        between, anchor = round(saving.fraction * interval), saving.anchors * interval
        saves = sum(is_priority_step(step, between, anchor) for step in range(1, order.steps + 1))
        # What is saved as often as with Full leaves nothing over for priority saves.
        if not 0 < interval <= order.steps or (saving.strategy != "Full" and (not saves or saving.anchors < 2)):  # noqa: PLR2004
            raise BadSpecError(
                f"{saving} does not fit a run of {order.steps} steps.",
                "Use an interval in (0, 1], a fraction of it of a step or more, and 2 anchors or more.",
            )
        if saving.strategy == "Full":
            return cls(interval)
        alone = Placement(placement.rows_per_table, 1)
        full, anchored = changed_rows(slots_of_steps(dataset, order, alone), alone.total, (interval, anchor))
        return cls(anchor, between, (full - anchored) // (saves * placement.shards))


def is_priority_step(step: int, between: int, anchor: int) -> bool:
    """Whether a priority save follows `step`: one in `between` steps, but for those of a save of everything."""
    return between > 0 and step % between == 0 and step % anchor != 0


def slots_of_steps(dataset: Dataset, order: BatchOrder, placement: Placement) -> Iterator[Ints]:
    """Yield the slots of the rows that each step updates, int64 [u]; all tables lie on one shard."""
    for step in range(1, order.steps + 1):
        yield find_access(placement, dataset.take(order.batch_indices(step)).ids).unique.places


def changed_rows(updates: Iterator[Ints], rows: int, windows: Sequence[int]) -> tuple[int, ...]:
    """Count the rows that change in each window of so many steps, and return their sum, for each length of a window.

    updates: the slots of each step, of `rows` in all. A window that the run does not complete counts for nothing.
    """
    last_changed = np.full((len(windows), rows), -1)
    pending, complete = [0] * len(windows), [0] * len(windows)
    for step, slots in enumerate(updates):
        for place, window in enumerate(windows):
            number = step // window
            pending[place] += int(np.count_nonzero(last_changed[place, slots] != number))
            last_changed[place, slots] = number
            if (step + 1) % window == 0:
                complete[place] += pending[place]
                pending[place] = 0
    return tuple(complete)
