"""The command: reads the file, has the trainer image run the trials, prints the result."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from cpr_contract.requests import Outcome
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.validate import parse_spec, validate
from cpr_operator.cli.calibrate.design import Design, design
from cpr_operator.cli.calibrate.plot import plot
from cpr_operator.cli.calibrate.sensitivity import Pair, measure
from cpr_operator.cli.calibrate.show import as_json, print_calibration
from cpr_operator.cli.document import InvalidDocumentError, read_single, set_value
from cpr_operator.cli.options import check_plot
from cpr_operator.cli.trials import TrialError, progress, run_experiment, teller


@dataclass(frozen=True, slots=True)
class CalibrateOptions:
    """What the command line asks for.

    seeds: the number of seeds, counted from the job's own. samples: replaces the job's length.
    """

    file: Path
    levels: tuple[float, ...]
    seeds: int
    samples: int | None
    json: bool
    plot: Path | None


def calibrate(options: CalibrateOptions, out: Console, err: Console, environment: Mapping[str, str]) -> None:
    """Make the runs and print the sensitivity; progress goes to `err`.

    Raises OptionError, DocumentError and InvalidDocumentError before anything runs, TrialError later.
    """
    if options.plot is not None:
        check_plot(options.plot)
    document = _read(options.file, options.samples)
    spec = parse_spec(document["spec"])
    job = to_job_spec(spec, uid="calibration", name=document["metadata"]["name"])
    seeds = range(spec.data.seed, spec.data.seed + options.seeds)
    planned = design(options.levels, seeds, spec.shards.replicas)
    with (
        progress(err) as bar,
        closing(run_experiment(job, planned.experiment, environment, teller(bar, planned.names))) as outcomes,
    ):
        pairs = pair(planned, outcomes)
    sensitivity = measure(pairs)
    if options.json:
        out.print_json(json.dumps(as_json(job.job_name, spec.shards.replicas, pairs, sensitivity)))
    else:
        print_calibration(out, pairs, sensitivity, spec.accuracy_budget)
    if options.plot is not None:
        plot(options.plot, pairs, sensitivity, title=f"{job.job_name}: AUC drop by lost samples")


def pair(planned: Design, outcomes: Iterable[Outcome]) -> tuple[Pair, ...]:
    """Each run with losses, paired with the run of its seed without.

    Raises TrialError at the first run that cannot be compared.
    """
    without: dict[int, tuple[float, float]] = {}
    pairs = []
    for (seed, level), outcome in zip(planned.runs, outcomes, strict=True):
        if outcome.auc is None or outcome.log_loss is None:
            raise TrialError("AUC is not defined: all scored samples have the same label. Use more --samples.")
        if not level:
            without[seed] = (outcome.auc, outcome.log_loss)
            continue
        if not outcome.pls:
            raise TrialError(f"The run is too short to lose a fraction of {level} of its samples. Use higher --levels.")
        auc, log_loss = without[seed]
        drop, rise = auc - outcome.auc, outcome.log_loss - log_loss
        pairs.append(Pair(seed, level, outcome.pls, outcome.auc, drop, rise, outcome.lost_row_updates))
    return tuple(pairs)


def _read(file: Path, samples: int | None) -> dict[str, Any]:
    document = read_single(file)
    if samples is not None:
        set_value(document, ("data", "samples"), samples)
        set_value(document, ("data", "epochs"), None)
    invalid = validate(document)
    if invalid:
        raise InvalidDocumentError(invalid)
    return dict(document)
