"""`python -m cpr_trainer calibrate`: trials that measure the cost of failures over one job's data.

The data, network, placement, arena and evaluation are those of jobs. `cpr_trainer.single_process` trains, and
`InjectedLosses` do to the rows what failures would: they restore a shard's rows from `SavedRows`. Each line of the
output is a report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TextIO

import numpy as np

from cpr_contract.codec import to_json
from cpr_contract.requests import Experiment, Outcome, ShardLoss, TrialReport
from cpr_contract.spec import JobSpec, samples_at
from cpr_trainer.arrays import Ints
from cpr_trainer.data.dataset import Dataset
from cpr_trainer.data.open import files_of, open_dataset
from cpr_trainer.data.order import BatchOrder
from cpr_trainer.embedding.arena import Arena
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.runtime import BadSpecError, data_access, read_job, read_request, store_access
from cpr_trainer.single_process import SingleProcessTrainer

#: Slots of an arena: a range of them, or int64 [k], all different.
Slots = slice | Ints

Report = Callable[[TrialReport], None]


class SavedRows:
    """The newest save of every row of an arena with its optimizer state; the first is the state at construction.

    Takes the memory of a second arena and 4 bytes a row. pending: int32 [n], updates of each row since its save.
    """

    def __init__(self, arena: Arena) -> None:
        self._live_and_saved = tuple((live, live.copy()) for live in (arena.rows, arena.state))
        self.pending = np.zeros(len(arena.rows), np.int32)

    def note(self, slots: Ints) -> None:
        """Count an update of each row in `slots`, int64 [k], all different."""
        self.pending[slots] += 1

    def save(self, slots: Slots) -> None:
        """Save rows as they are now."""
        for live, saved in self._live_and_saved:
            saved[slots] = live[slots]
        self.pending[slots] = 0

    def restore(self, slots: Slots) -> int:
        """Restore rows from their saves and return the number of lost updates."""
        for live, saved in self._live_and_saved:
            live[slots] = saved[slots]
        lost = int(self.pending[slots].sum())
        self.pending[slots] = 0
        return lost


@dataclass(frozen=True, slots=True)
class StepLoss:
    """After step `at`, `shard` goes back to its state after step `back_to`."""

    shard: int
    back_to: int
    at: int


def step_losses(losses: Sequence[ShardLoss], shards: int, steps: int) -> tuple[StepLoss, ...]:
    """Return losses in steps, shard by shard, without those shorter than a step.

    Raises BadSpecError for a shard or a portion out of range, and for overlapping losses of a shard: they would
    count samples twice.
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
    """Saves a shard at the step a loss goes back to, and restores it at the step of the loss.

    lost_row_updates: updates undone by the restores so far.
    """

    def __init__(self, losses: Sequence[StepLoss], placement: Placement, saved: SavedRows) -> None:
        self._losses = losses
        self._starts = placement.starts.tolist()
        self._saved = saved
        self.lost_row_updates = 0

    def after_step(self, step: int, slots: Ints) -> None:
        """Count the updates of `step`, restore the shards lost now, then save those that a later loss takes back."""
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
    """Return the lost samples, summed over shards: the ledger's `spent`."""
    samples = partial(samples_at, batch_size=order.batch_size, total_samples=order.total_samples)
    return sum(samples(loss.at) - samples(loss.back_to) for loss in losses)


def run(environ: Mapping[str, str], source: TextIO, sink: TextIO) -> None:
    """Read an `Experiment` from `source` and write a `TrialReport` a line to `sink`. Raises TrainerError."""
    job = read_job(environ)
    experiment = read_request(Experiment, source, "calibrate")
    dataset = open_data(job, environ)
    run_trials(job, dataset, experiment, lambda report: print(to_json(report), file=sink, flush=True))


def run_trials(job: JobSpec, dataset: Dataset, experiment: Experiment, report: Report) -> None:
    """Run one trial after another, on the same samples. Raises BadSpecError, DataError, DivergedError."""
    placement = place(job, experiment.shards)
    for number, trial in enumerate(experiment.trials):
        trainer = SingleProcessTrainer(job, dataset, trial.seed)
        order = trainer.order
        losses = step_losses(trial.losses, placement.shards, order.steps)
        injected = InjectedLosses(losses, placement, SavedRows(trainer.tables.arena)) if losses else None
        after_step = None if injected is None else injected.after_step
        trainer.train(partial(_report_progress, report, number, order.total_samples), after_step)
        lost_row_updates = injected.lost_row_updates if injected else 0
        outcome = outcome_of(trainer, placement, lost_sample_shards(losses, order), lost_row_updates)
        report(TrialReport(number, order.total_samples, order.total_samples, outcome))


def open_data(job: JobSpec, environ: Mapping[str, str]) -> Dataset:
    """Open a job's samples with the credentials of the environment. Raises DataError."""
    return open_dataset(job.data, job.model, files_of(job, store_access(environ), data_access(environ)))


def place(job: JobSpec, shards: int) -> Placement:
    """Divide the tables of trials into `shards` shards. Raises BadSpecError."""
    try:
        placement = Placement.of(job.model, shards)
    except ValueError as error:
        raise BadSpecError(f"The tables cannot be placed: {error}.", "Use fewer shards or larger tables.") from error
    if job.model.dynamic_tables:
        table = job.model.dynamic_tables[0]
        raise BadSpecError(
            f"spec.model.tables[{table}].ids: experiments divide rows by their numbers, and Dynamic has none.",
            "Use other ids, for example XXH64, for this measurement.",
        )
    if placement.bands > 1:
        raise BadSpecError(
            f"Experiments take tables of one dim, and these have {', '.join(map(str, job.model.dims))}.",
            "Leave out spec.model.tables.dim for this measurement.",
        )
    return placement


def outcome_of(
    trainer: SingleProcessTrainer, placement: Placement, lost_samples: int, lost_row_updates: int
) -> Outcome:
    """Return the outcome of a trial. lost_samples: summed over shards."""
    return Outcome(
        auc=trainer.scores.validation.auc(),
        log_loss=trainer.scores.validation.log_loss(),
        lost_sample_shards=lost_samples,
        pls=lost_samples / (trainer.order.total_samples * placement.shards),
        lost_row_updates=lost_row_updates,
    )


def _report_progress(report: Report, number: int, total: int, samples: int) -> None:
    report(TrialReport(number, samples, total, None))
