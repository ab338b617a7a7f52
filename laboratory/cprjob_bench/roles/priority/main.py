"""`python -m cprjob_bench priority`: trials of saving strategies over one job's data, reported line by line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TextIO

from cpr_contract.codec import to_json
from cpr_contract.requests import TrialReport
from cpr_contract.spec import JobSpec
from cpr_trainer.calibration import open_data, outcome_of, place
from cpr_trainer.data.batch import Dataset
from cpr_trainer.lone import LoneTrainer
from cpr_trainer.runtime import read_job, read_request
from cprjob_bench.documents.priority import SavingExperiment, SavingReport
from cprjob_bench.roles.priority.saving import SavingShards
from cprjob_bench.roles.priority.schedule import Schedule

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
        trainer = LoneTrainer(job, dataset, trial.seed)
        order, shards = trainer.order, None
        if trial.saving is not None:
            schedule = Schedule.of(trial.saving, order, dataset, placement)
            shards = SavingShards(trial.saving, schedule, trainer.arena, placement, order, trial.seed)
        trainer.train(shards, partial(_report_progress, report, number, order.total_samples))
        lost = (shards.lost_sample_shards, shards.lost_row_updates) if shards else (0, 0)
        outcome = outcome_of(trainer, placement, *lost)
        done = TrialReport(number, order.total_samples, order.total_samples, outcome)
        report(SavingReport(done, shards.saved if shards else None))


def _report_progress(report: Report, number: int, total: int, samples: int) -> None:
    report(SavingReport(TrialReport(number, samples, total, None)))
