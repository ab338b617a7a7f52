"""What one save takes in the store, by strategy and bit width, all after the same stretch of training."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cpr_contract.spec import Bits, Strategy
from cpr_trainer.runtime import BadSpecError
from cpr_trainer.tables.capture import Capture
from cpr_trainer.tables.priority import Tracker, make_tracker, population_of
from cprjob_bench.documents.snapshot import Cut
from cprjob_bench.roles.snapshot.saves import BenchShard
from cprjob_bench.roles.snapshot.workload import STEP_IDS, gradients_for, step_rows


class TrainedShard:
    """A shard that was saved, and then trained under the eyes of each strategy's tracker.

    `Full` saves every row that changed since; another strategy the portion `snapshots.fraction` of the rows, those that
    it holds for the most important. Training draws as many ids as there are rows.
    """

    def __init__(self, shard: BenchShard, strategies: Sequence[Strategy]) -> None:
        self._shard = shard
        arena, rng = shard.home.arena, np.random.default_rng(2)
        population = population_of(shard.home.placement, 0)
        self._quota = population.quota(shard.job.snapshots.fraction)
        self._since = arena.epochs.end()
        self._trackers: dict[Strategy, Tracker] = {}
        for strategy in strategies:
            if strategy != "Full":
                try:
                    self._trackers[strategy] = make_tracker(strategy, arena, population, self._quota, rng)
                except ValueError as error:
                    raise BadSpecError(str(error), "Or leave this strategy out.") from error
        self._train(rng)

    def tracker_bytes(self, strategy: Strategy) -> int:
        """Memory that ranking rows takes; none for `Full`."""
        tracker = self._trackers.get(strategy)
        return 0 if tracker is None else tracker.memory_bytes

    def cuts(self, strategy: Strategy, bits: Sequence[Bits]) -> Iterator[Cut]:
        """Save what a strategy would, once for each width. Raises StoreError."""
        chosen = self._choose(strategy)
        for step, width in enumerate(bits, start=1):
            kind: Literal["Anchor", "Priority"] = "Anchor" if chosen is None else "Priority"
            started_s = time.perf_counter()
            saved = self._shard.save(self._capture(chosen), step, kind=kind, bits=width)
            wall_s = time.perf_counter() - started_s
            yield Cut(strategy, width, saved.manifest.rows, sum(self._shard.stored().values()), wall_s)
            self._shard.clear()

    def _train(self, rng: np.random.Generator) -> None:
        arena, placement = self._shard.home.arena, self._shard.home.placement
        for step in range(1, -(-placement.total // STEP_IDS) + 1):
            rows = step_rows(placement, rng)
            arena.apply(rows.places, rows.numbers, gradients_for(rows, arena.rows.shape[1]), step)
            for tracker in self._trackers.values():
                tracker.note(rows.places)

    def _choose(self, strategy: Strategy) -> NDArray[np.int64] | None:
        """Return the slots that a strategy saves, int64 [k]; None for all that changed."""
        if strategy == "Full":
            return None
        slots = self._trackers[strategy].choose(self._quota).slots
        assert slots is not None  # noqa: S101 -- only an anchor claims everything
        return slots[self._shard.home.arena.epochs.of[slots] > self._since]

    def _capture(self, chosen: NDArray[np.int64] | None) -> Capture:
        arena = self._shard.home.arena
        return arena.capture_changes(self._since) if chosen is None else arena.capture_rows(chosen)
