"""`python -m cprjob_bench priority`: a whole job in one process, with shards that save by a strategy and fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TextIO

import numpy as np

from cpr_contract.codec import to_json
from cpr_contract.requests import TrialReport
from cpr_contract.spec import JobSpec, samples_at
from cpr_trainer.arrays import Ints
from cpr_trainer.calibration import SavedRows, open_data, outcome_of, place
from cpr_trainer.data.dataset import Dataset
from cpr_trainer.data.order import BatchOrder
from cpr_trainer.embedding.access import find_access
from cpr_trainer.embedding.arena import Arena
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.embedding.priority import Population, Tracker, make_tracker, population_of
from cpr_trainer.embedding.segments import Segment
from cpr_trainer.runtime import BadSpecError, read_job, read_request
from cpr_trainer.single_process import SingleProcessTrainer
from cprjob_bench.bench_documents import Failure, Saved, Saving, SavingExperiment, SavingReport


@dataclass(frozen=True, slots=True)
class Schedule:
    """The steps between full saves, and between priority saves (0: none). All strategies write equally many rows.

    shard_rows: the rows of one priority save of one shard.
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
        # With full saves as often as those of Full, no rows are left for priority saves.
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
    """Return whether a priority save follows `step`: one in `between` steps, except the steps of full saves."""
    return between > 0 and step % between == 0 and step % anchor != 0


def slots_of_steps(dataset: Dataset, order: BatchOrder, placement: Placement) -> Iterator[Ints]:
    """Yield the slots of the rows that each step updates, int64 [u]; all tables are on one shard."""
    for step in range(1, order.steps + 1):
        yield find_access(placement, dataset.take(order.batch_indices(step)).ids).unique.places


def changed_rows(updates: Iterator[Ints], rows: int, windows: Sequence[int]) -> tuple[int, ...]:
    """Count the rows that change in each window of steps, and return the sum over windows for each length of a window.

    updates: the slots of each step, out of `rows`. Incomplete windows do not count.
    """
    last_changed = np.full((len(windows), rows), -1)
    pending, complete = [0] * len(windows), [0] * len(windows)
    for step, slots in enumerate(updates):
        for index, window in enumerate(windows):
            number = step // window
            pending[index] += int(np.count_nonzero(last_changed[index, slots] != number))
            last_changed[index, slots] = number
            if (step + 1) % window == 0:
                complete[index] += pending[index]
                pending[index] = 0
    return tuple(complete)


@dataclass(slots=True, eq=False)
class _Shard:
    """A shard's rows and their tracker. since: the step from which a failure now would lose samples."""

    slots: slice
    arena: Arena
    population: Population
    tracker: Tracker | None
    since: int = 0


class SavingShards:
    """Shards that save and fail.

    lost_row_updates, lost_sample_shards: the losses so far, as in `Outcome`.
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
        # Since the last full save: rows that changed, and rows that priority saves wrote.
        self._changed = np.zeros(placement.total, np.bool_)
        self._fresher = np.zeros(placement.total, np.bool_)
        self._row_updates = 0
        self._rows_written = 0

    @property
    def saved(self) -> Saved:
        """The costs of saves so far."""
        trackers = (shard.tracker.memory_bytes for shard in self._shards if shard.tracker is not None)
        return Saved(self._rows_written, self._row_updates, sum(trackers))

    def after_step(self, step: int, slots: Ints) -> None:
        """Count the updates of `step`, restore failing shards, then make the saves that are due."""
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
        """Save the changed rows of a claim: those of small tables first, within the shard's number of rows."""
        assert shard.tracker is not None  # noqa: S101 -- a schedule with priority saves is that of a strategy
        pending = self._rows.pending[shard.slots]
        small = int(np.count_nonzero(pending[shard.population.small]))
        claim = shard.tracker.choose(max(self._schedule.shard_rows - small, 0))
        shard.tracker.mark(claim)
        assert claim.slots is not None  # noqa: S101 -- the claim is not of all rows
        written = claim.slots[pending[claim.slots] > 0]
        self._rows.save(written + shard.slots.start)
        self._fresher[written + shard.slots.start] = True
        self._rows_written += len(written)
        shard.tracker.wrote(written, shard.arena.rows[written], shard.arena.state[written])
        shard.tracker.forget(claim)

    def _samples(self, step: int) -> int:
        return samples_at(step, self._order.batch_size, self._order.total_samples)


def failing_shards(failures: Sequence[Failure], shards: int, steps: int) -> dict[int, set[int]]:
    """Return the shards that fail after each step. Raises BadSpecError for a shard or a portion out of range."""
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


Report = Callable[[SavingReport], None]


def run(environ: Mapping[str, str], source: TextIO, sink: TextIO) -> None:
    """Read a `SavingExperiment` from `source` and write a `SavingReport` a line to `sink`. Raises TrainerError."""
    job = read_job(environ)
    experiment = read_request(SavingExperiment, source, "bench priority")
    dataset = open_data(job, environ)
    run_trials(job, dataset, experiment, lambda report: print(to_json(report), file=sink, flush=True))


def run_trials(job: JobSpec, dataset: Dataset, experiment: SavingExperiment, report: Report) -> None:
    """Run one trial after the other, on the same samples. Raises BadSpecError, DataError, DivergedError."""
    placement = place(job, experiment.shards)
    for number, trial in enumerate(experiment.trials):
        trainer = SingleProcessTrainer(job, dataset, trial.seed)
        order, shards = trainer.order, None
        if trial.saving is not None:
            schedule = Schedule.of(trial.saving, order, dataset, placement)
            shards = SavingShards(trial.saving, schedule, trainer.tables.arena, placement, order, trial.seed)
        after_step = None if shards is None else shards.after_step
        trainer.train(partial(_report_progress, report, number, order.total_samples), after_step)
        lost = (shards.lost_sample_shards, shards.lost_row_updates) if shards else (0, 0)
        outcome = outcome_of(trainer, placement, *lost)
        done = TrialReport(number, order.total_samples, order.total_samples, outcome)
        report(SavingReport(done, shards.saved if shards else None))


def _report_progress(report: Report, number: int, total: int, samples: int) -> None:
    report(SavingReport(TrialReport(number, samples, total, None)))
