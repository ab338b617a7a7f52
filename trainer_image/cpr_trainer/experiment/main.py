"""`python -m cpr_trainer experiment`: trials over one job's data, reported line by line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TextIO

from cpr_contract import env
from cpr_contract.codec import to_json
from cpr_contract.experiment import Experiment, Outcome, Saved, Trial, TrialReport
from cpr_contract.spec import JobSpec
from cpr_trainer.data.batch import Dataset
from cpr_trainer.data.source import open_dataset
from cpr_trainer.experiment.losses import InjectedLosses, lost_sample_shards, step_losses
from cpr_trainer.experiment.saved_rows import SavedRows
from cpr_trainer.experiment.saving import SavingShards
from cpr_trainer.experiment.schedule import Schedule
from cpr_trainer.lone import LoneTrainer, Tell
from cpr_trainer.placement import Placement
from cpr_trainer.runtime import BadSpecError, optional_path, read_job, read_request
from cpr_trainer.store import Uris

Report = Callable[[TrialReport], None]


def run(environ: Mapping[str, str], source: TextIO, sink: TextIO) -> None:
    """Read an `Experiment` from `source` and write a `TrialReport` a line to `sink`. Raises TrainerError."""
    job = read_job(environ)
    experiment = read_request(Experiment, source, "calibrate")
    credentials, authority = optional_path(environ, env.CREDENTIALS_DIR), optional_path(environ, env.CA_FILE)
    dataset = open_dataset(job.data, job.model, Uris(job.snapshots.store, credentials, authority))
    run_trials(job, dataset, experiment, lambda report: print(to_json(report), file=sink, flush=True))


def run_trials(job: JobSpec, dataset: Dataset, experiment: Experiment, report: Report) -> None:
    """Run one trial after the other, on the same samples. Raises BadSpecError, DataError, DivergedError."""
    try:
        placement = Placement.of(job.model, experiment.shards)
    except ValueError as error:
        raise BadSpecError(f"The tables cannot be placed: {error}.", "Use fewer shards or larger tables.") from error
    if placement.bands > 1:
        raise BadSpecError(
            f"Experiments take tables of one dim, and these have {', '.join(map(str, job.model.dims))}.",
            "Leave out spec.model.tables.dim for this measurement.",
        )
    for number, trial in enumerate(experiment.trials):
        trainer = LoneTrainer(job, dataset, trial.seed)
        total = trainer.order.total_samples
        outcome = _run_trial(trainer, trial, dataset, placement, partial(_report_progress, report, number, total))
        report(TrialReport(number, total, total, outcome))


def _run_trial(trainer: LoneTrainer, trial: Trial, dataset: Dataset, placement: Placement, tell: Tell) -> Outcome:
    order = trainer.order
    planned = step_losses(trial.losses, placement.shards, order.steps)
    if trial.saving is not None:
        if planned:
            raise BadSpecError("A trial has losses or saves, not both.", "Correct the experiment.")
        schedule = Schedule.of(trial.saving, order, dataset, placement)
        shards = SavingShards(trial.saving, schedule, trainer.arena, placement, order, trial.seed)
        trainer.train(shards, tell)
        return _outcome(trainer, placement, shards.lost_sample_shards, shards.lost_row_updates, shards.saved)
    injected = InjectedLosses(planned, placement, SavedRows(trainer.arena)) if planned else None
    trainer.train(injected, tell)
    lost_row_updates = injected.lost_row_updates if injected else 0
    return _outcome(trainer, placement, lost_sample_shards(planned, order), lost_row_updates, None)


def _outcome(trainer: LoneTrainer, placement: Placement, lost: int, updates: int, saved: Saved | None) -> Outcome:
    return Outcome(
        auc=trainer.scores.validation.auc(),
        log_loss=trainer.scores.validation.log_loss(),
        lost_sample_shards=lost,
        pls=lost / (trainer.order.total_samples * placement.shards),
        lost_row_updates=updates,
        saved=saved,
    )


def _report_progress(report: Report, number: int, total: int, samples: int) -> None:
    report(TrialReport(number, samples, total, None))
