"""Saves and failures on the way: shards save by a strategy, and go back to what is saved when they fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cpr_contract.spec import samples_at
from cpr_trainer.arrays import Ints
from cpr_trainer.calibration import SavedRows
from cpr_trainer.data.order import BatchOrder
from cpr_trainer.placement import Placement
from cpr_trainer.runtime import BadSpecError
from cpr_trainer.tables.arena import Arena
from cpr_trainer.tables.priority import Population, Tracker, make_tracker, population_of
from cpr_trainer.tables.segments import Segment
from cprjob_bench.documents.priority import Failure, Saved, Saving
from cprjob_bench.roles.priority.schedule import Schedule, is_priority_step


@dataclass(slots=True, eq=False)
class _Shard:
    """A shard's rows and what it knows of them. since: the step from which a failure now would lose samples."""

    slots: slice
    arena: Arena
    population: Population
    tracker: Tracker | None
    since: int = 0


class SavingShards:
    """An `Injection` in which shards save and fail.

    lost_row_updates, lost_sample_shards: what failures cost so far, as in `Outcome`.
    """

    def __init__(  # noqa: PLR0913, PLR0917 -- a whole job's saves
        self, saving: Saving, schedule: Schedule, arena: Arena, placement: Placement, order: BatchOrder, seed: int
    ) -> None:
        self.lost_row_updates = 0
        self.lost_sample_shards = 0
        self._schedule = schedule
        self._order = order
        self._failing = failing_shards(saving.failures, placement.shards, order.steps)
        self._rows = SavedRows(arena)
        self._shards = [
            _open_shard(saving, schedule, arena, placement, shard, np.random.default_rng((seed, shard)))
            for shard in range(placement.shards)
        ]
        self._starts = placement.starts
        # Since everything was saved last: rows that changed, and rows that priority saves wrote.
        self._changed = np.zeros(placement.total, np.bool_)
        self._fresher = np.zeros(placement.total, np.bool_)
        self._row_updates = 0
        self._rows_written = 0

    @property
    def saved(self) -> Saved:
        """What saving took so far."""
        trackers = (shard.tracker.memory_bytes for shard in self._shards if shard.tracker is not None)
        return Saved(self._rows_written, self._row_updates, sum(trackers))

    def after_step(self, step: int, slots: Ints) -> None:
        """Count the updates of `step`, restore the shards that fail now, then save what is due."""
        self._note(slots)
        for shard in self._failing.get(step, ()):
            self._fail(self._shards[shard], step)
        if step % self._schedule.anchor_steps == 0:
            for each in self._shards:
                self._save_all(each, step)
        elif is_priority_step(step, self._schedule.priority_steps, self._schedule.anchor_steps):
            for each in self._shards:
                self._save_some(each)

    def _note(self, slots: Ints) -> None:
        self._rows.note(slots)
        self._changed[slots] = True
        self._row_updates += len(slots)
        bounds = np.searchsorted(slots, self._starts)
        for shard, first, last in zip(self._shards, bounds, bounds[1:], strict=False):
            if shard.tracker is not None:
                shard.tracker.note(slots[first:last] - shard.slots.start)

    def _fail(self, shard: _Shard, step: int) -> None:
        self.lost_row_updates += self._rows.restore(shard.slots)
        self.lost_sample_shards += self._samples(step) - self._samples(shard.since)
        shard.since = step
        self._changed[shard.slots] = self._fresher[shard.slots]
        if shard.tracker is not None:
            shard.tracker.reset()

    def _save_all(self, shard: _Shard, step: int) -> None:
        self._rows_written += int(np.count_nonzero(self._changed[shard.slots]))
        self._changed[shard.slots] = self._fresher[shard.slots] = False
        self._rows.save(shard.slots)
        shard.since = step
        if shard.tracker is not None:
            shard.tracker.reset()

    def _save_some(self, shard: _Shard) -> None:
        """Save what a claim holds of rows that changed: those of small tables first, within the shard's volume."""
        assert shard.tracker is not None  # noqa: S101 -- a schedule with priority saves is that of a strategy
        pending = self._rows.pending[shard.slots]
        small = int(np.count_nonzero(pending[shard.population.small]))
        claim = shard.tracker.choose(max(self._schedule.shard_rows - small, 0))
        shard.tracker.mark(claim)
        assert claim.slots is not None  # noqa: S101 -- it is not of everything
        written = claim.slots[pending[claim.slots] > 0]
        self._rows.save(written + shard.slots.start)
        self._fresher[written + shard.slots.start] = True
        self._rows_written += len(written)
        shard.tracker.wrote(written, shard.arena.rows[written], shard.arena.state[written])
        shard.tracker.forget(claim)

    def _samples(self, step: int) -> int:
        return samples_at(step, self._order.batch_size, self._order.total_samples)


def failing_shards(failures: Sequence[Failure], shards: int, steps: int) -> dict[int, set[int]]:
    """Return the shards that fail after each step. Raises BadSpecError for a shard or a portion that there is not."""
    found: dict[int, set[int]] = {}
    for failure in failures:
        if not 0 < failure.at <= 1 or not all(0 <= shard < shards for shard in failure.shards):
            raise BadSpecError(f"{failure} does not fit a run over {shards} shards.", "Correct the trial's failures.")
        found.setdefault(max(round(failure.at * steps), 1), set()).update(failure.shards)
    return found


def _open_shard(  # noqa: PLR0913, PLR0917 -- one shard of a whole job
    saving: Saving, schedule: Schedule, arena: Arena, placement: Placement, shard: int, rng: np.random.Generator
) -> _Shard:
    slots = slice(int(placement.starts[shard]), int(placement.starts[shard + 1]))
    view = Arena([Segment(0, arena.rows[slots], arena.state[slots])], arena.optimizers)
    population = population_of(placement, shard)
    if saving.strategy == "Full":
        return _Shard(slots, view, population, None)
    try:
        tracker = make_tracker(saving.strategy, view, population, max(schedule.shard_rows, 1), rng)
    except ValueError as error:
        raise BadSpecError(str(error), "Or leave this strategy out.") from error
    return _Shard(slots, view, population, tracker)
