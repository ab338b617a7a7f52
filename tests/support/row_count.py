"""Row updates of a job, counted by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cpr_contract.reports import ShardReport
from cpr_contract.spec import JobSpec
from cpr_trainer.data.open import files_of, open_dataset
from cpr_trainer.data.order import BatchOrder
from cpr_trainer.embedding.placement import Placement
from support.plain_batches import single_ids


class Count:
    """Counts row updates of shard 1 from the data alone: the distinct rows of each slice that lie there."""

    def __init__(self, job: JobSpec) -> None:
        self._dataset = open_dataset(job.data, job.model, files_of(job))
        self._placement = Placement.of(job.model, job.shards)
        self._trainers = job.trainers
        self.order = BatchOrder.of(job.data, self._dataset.layout)

    def of(self, step: int, rank: int) -> int:
        """Row updates of one push."""
        samples = self.order.slice_of(step, rank, self._trainers)
        ids = single_ids(self._dataset.take(self.order.indices_of(samples)))
        changed = {(table, row) for sample in ids.tolist() for table, row in enumerate(sample)}
        numbers = np.array([self._placement.offsets[table] + row for table, row in changed])
        return int((self._placement.locate(numbers)[0] == 1).sum())

    def by_rank(self, selects: Callable[[int, int], bool]) -> tuple[int, ...]:
        """Row updates of all selected pushes, (step, rank), summed for each rank."""
        steps = range(1, self.order.steps + 1)
        return tuple(sum(self.of(s, rank) for s in steps if selects(s, rank)) for rank in range(self._trainers))

    def all(self) -> tuple[int, ...]:
        """Row updates of the whole job, for each rank."""
        return self.by_rank(lambda _step, _rank: True)

    def lost(self, report: ShardReport) -> int:
        """Row updates in the samples that a shard reports as lost."""

        def lost(step: int, rank: int) -> bool:
            samples = self.order.slice_of(step, rank, self._trainers)
            return any(first <= samples.start and samples.stop <= end for first, end in report.lost)

        return sum(self.by_rank(lost))
