"""`python -m cpr_trainer calibrate`: trials over one job's data, reported line by line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TextIO

from cpr_contract import env
from cpr_contract.calibration import Experiment, Outcome, TrialReport
from cpr_contract.codec import to_json
from cpr_contract.spec import JobSpec
from cpr_trainer.calibration.losses import InjectedLosses, lost_sample_shards, step_losses
from cpr_trainer.calibration.saved_rows import SavedRows
from cpr_trainer.data.batch import Dataset
from cpr_trainer.data.source import open_dataset
from cpr_trainer.lone import LoneTrainer
from cpr_trainer.placement import Placement
from cpr_trainer.runtime import BadSpecError, optional_path, read_job, read_request
from cpr_trainer.store import Uris

Report = Callable[[TrialReport], None]


def run(environ: Mapping[str, str], source: TextIO, sink: TextIO) -> None:
    """Read an `Experiment` from `source` and write a `TrialReport` a line to `sink`. Raises TrainerError."""
    job = read_job(environ)
    experiment = read_request(Experiment, source, "calibrate")
    dataset = open_data(job, environ)
    run_trials(job, dataset, experiment, lambda report: print(to_json(report), file=sink, flush=True))


def run_trials(job: JobSpec, dataset: Dataset, experiment: Experiment, report: Report) -> None:
    """Run one trial after the other, on the same samples. Raises BadSpecError, DataError, DivergedError."""
    placement = place(job, experiment.shards)
    for number, trial in enumerate(experiment.trials):
        trainer = LoneTrainer(job, dataset, trial.seed)
        order = trainer.order
        losses = step_losses(trial.losses, placement.shards, order.steps)
        injected = InjectedLosses(losses, placement, SavedRows(trainer.arena)) if losses else None
        trainer.train(injected, partial(_report_progress, report, number, order.total_samples))
        lost_row_updates = injected.lost_row_updates if injected else 0
        outcome = outcome_of(trainer, placement, lost_sample_shards(losses, order), lost_row_updates)
        report(TrialReport(number, order.total_samples, order.total_samples, outcome))


def open_data(job: JobSpec, environ: Mapping[str, str]) -> Dataset:
    """Open a job's samples with the credentials of the environment. Raises DataError."""
    credentials, authority = optional_path(environ, env.CREDENTIALS_DIR), optional_path(environ, env.CA_FILE)
    return open_dataset(job.data, job.model, Uris(job.snapshots.store, credentials, authority))


def place(job: JobSpec, shards: int) -> Placement:
    """Divide the tables of trials into so many shards. Raises BadSpecError."""
    try:
        placement = Placement.of(job.model, shards)
    except ValueError as error:
        raise BadSpecError(f"The tables cannot be placed: {error}.", "Use fewer shards or larger tables.") from error
    if placement.bands > 1:
        raise BadSpecError(
            f"Experiments take tables of one dim, and these have {', '.join(map(str, job.model.dims))}.",
            "Leave out spec.model.tables.dim for this measurement.",
        )
    return placement


def outcome_of(trainer: LoneTrainer, placement: Placement, lost_samples: int, lost_row_updates: int) -> Outcome:
    """What a trial ended in that lost `lost_samples`, summed over shards."""
    return Outcome(
        auc=trainer.scores.validation.auc(),
        log_loss=trainer.scores.validation.log_loss(),
        lost_sample_shards=lost_samples,
        pls=lost_samples / (trainer.order.total_samples * placement.shards),
        lost_row_updates=lost_row_updates,
    )


def _report_progress(report: Report, number: int, total: int, samples: int) -> None:
    report(TrialReport(number, samples, total, None))
