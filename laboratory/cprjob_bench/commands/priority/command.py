"""The command: reads the options, has the trainer image run the trials, prints the result."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from cpr_contract.codec import from_json
from cpr_contract.requests import Outcome, TrialReport
from cpr_contract.spec import JobSpec
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.validate import parse_spec, validate
from cpr_operator.cli.asking import TrialError, ask_trainer_image, progress, teller
from cpr_operator.cli.console import OptionError
from cpr_operator.cli.document import InvalidDocumentError, parse_change, set_value
from cprjob_bench.commands.priority.data import job_over, prepare
from cprjob_bench.commands.priority.design import FULL, Design, design
from cprjob_bench.commands.priority.show import result
from cprjob_bench.commands.priority.verdict import Run, Study, study
from cprjob_bench.documents.priority import Saved, Saving, SavingExperiment, SavingReport


@dataclass(frozen=True, slots=True)
class PriorityOptions:
    """What the command line asks for; `changes` are PATH=VALUE of the job's spec.

    `Saving` explains interval, anchors and fraction.
    """

    data: Path
    seeds: int
    interval: float
    anchors: int
    fraction: float
    failures: int
    changes: tuple[str, ...]
    json: bool


def bench_priority(options: PriorityOptions, out: Console, err: Console, environment: Mapping[str, str]) -> None:
    """Make the runs and print the comparison; progress goes to `err`.

    Raises OptionError, DocumentError and InvalidDocumentError before anything runs, TrialError later.
    """
    found = measure(options, err, environment)
    result(options.data.name, found).show(out, as_json=options.json)


def measure(options: PriorityOptions, err: Console, environment: Mapping[str, str]) -> Study:
    """Make the runs and compare them. Raises as `bench_priority` does."""
    for name, value in (("interval", options.interval), ("fraction", options.fraction)):
        if not 0 < value < 1:
            raise OptionError(f"--{name} {value}: must be above 0 and below 1")
    with tempfile.TemporaryDirectory(prefix="cprjob-") as folder:
        document = job_over(prepare(options.data, Path(folder)))
        for keys, value in map(parse_change, options.changes):
            set_value(document, keys, value)
        invalid = validate(document)
        if invalid:
            raise InvalidDocumentError(invalid)
        spec = parse_spec(document["spec"])
        saving = Saving(FULL, options.interval, options.anchors, options.fraction, ())
        seeds = range(spec.data.seed, spec.data.seed + options.seeds)
        planned = design(saving, options.failures, seeds, spec.shards.replicas)
        job = to_job_spec(spec, uid="bench", name=document["metadata"]["name"])
        with (
            progress(err) as bar,
            closing(_run(job, planned.experiment, environment, teller(bar, planned.names))) as outcomes,
        ):
            return study(runs_of(planned, outcomes))


def runs_of(planned: Design, outcomes: Iterable[tuple[Outcome, Saved | None]]) -> tuple[Run, ...]:
    """Each run with failures, compared with the run of its seed without.

    Raises TrialError if they cannot be compared.
    """
    without: dict[int, float] = {}
    runs = []
    for (seed, strategy), (outcome, saved) in zip(planned.runs, outcomes, strict=True):
        if outcome.auc is None:
            raise TrialError("AUC is not defined: all scored samples have the same label. Use more samples.")
        if strategy is None:
            without[seed] = outcome.auc
            continue
        assert saved is not None  # noqa: S101 -- the trial has `saving`
        runs.append(
            Run(
                seed=seed,
                strategy=strategy,
                auc=outcome.auc,
                auc_drop=without[seed] - outcome.auc,
                pls=outcome.pls,
                plu=outcome.lost_row_updates / saved.row_updates,
                lost_row_updates=outcome.lost_row_updates,
                rows_written=saved.rows_written,
                tracker_bytes=saved.tracker_bytes,
            )
        )
    if not any(run.pls and run.plu for run in runs):
        raise TrialError("Nothing was lost, because every failure fell on a save. Use more --failures or samples.")
    return tuple(runs)


def _run(
    job: JobSpec, experiment: SavingExperiment, environment: Mapping[str, str], tell: Callable[[TrialReport], None]
) -> Generator[tuple[Outcome, Saved | None]]:
    """Run all trials and yield their outcomes in order. Close it to end the process. Raises TrialError."""
    with closing(ask_trainer_image("priority", job, experiment, environment, package="cprjob_bench")) as lines:
        for line in lines:
            found = from_json(SavingReport, line)
            tell(found.report)
            if found.report.outcome is not None:
                yield found.report.outcome, found.saved
