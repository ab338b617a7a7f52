"""`cprjob evaluate`: a finished model's score on the rows that its job held out, by the trainer image's own code."""

from __future__ import annotations

import json
from contextlib import closing

from rich.console import Console

from cpr_contract.codec import from_json, to_dict
from cpr_contract.evaluation import Evaluation, EvaluationRequest
from cpr_contract.packing import unpack
from cpr_contract.spec import JobSpec
from cpr_operator.cli.export import Model
from cpr_operator.cli.trials import Ask


def evaluate(model: Model, console: Console, ask: Ask, *, as_json: bool) -> None:
    """Print the score. Raises TrialError if the model or the data cannot be read, or nothing is held out."""
    job = from_json(JobSpec, unpack(model.job_spec))
    with closing(ask("evaluate", job, EvaluationRequest(model.anchor))) as lines:
        (found,) = (from_json(Evaluation, line) for line in lines)
    if as_json:
        console.print_json(json.dumps(to_dict(found)))
        return
    figures = []
    if found.log_loss is not None:
        auc = "not defined, all labels are the same" if found.auc is None else f"{found.auc:.5f}"
        figures = [f"AUC {auc}", f"log loss {found.log_loss:.5f}"]
    if found.normalised_entropy is not None:
        figures.append(f"normalised entropy {found.normalised_entropy:.5f}")
    if found.calibration is not None:
        figures.append(f"calibration {found.calibration:.4f}")
    if found.gauc is not None:
        figures.append(f"GAUC {found.gauc:.5f}")
    # The metrics of a model with one label have its calibration, too.
    figures += [f"{name} {value:.5g}" for name, value in found.metrics if name != "calibration"]
    console.print(f"step {found.step:,}, {found.samples:,} held-out samples: {', '.join(figures)}", markup=False)
    for group in (*found.groups, *filter(None, (found.rest,))):
        auc = "not defined" if group.auc is None else f"{group.auc:.5f}"
        console.print(f"  {group.name}: {group.samples:,} samples, AUC {auc}", markup=False)
