"""`cprjob export` and `cprjob evaluate`: a finished model, by the trainer image's own code.

For a job on a cluster that code runs in a pod with the job's own mounts. The files come here as an archive, unless a
URI says where they go.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from cpr_contract import env
from cpr_contract.codec import from_json, to_dict, unpack
from cpr_contract.requests import Evaluation, EvaluationRequest, ExportRequest
from cpr_contract.spec import JobSpec
from cpr_operator.api.validate import parse_status
from cpr_operator.cli import check_trainer_image
from cpr_operator.cli.asking import Ask, TrainerPod, TrialError
from cpr_operator.cli.document import DocumentError

#: The file that is written when all others are.
LAST = "model.json"
#: In the place of a folder: the standard output, as an archive.
STREAM = "-"


@dataclass(frozen=True, slots=True)
class Model:
    """Which anchor of which job: `job_spec` is the contract's JobSpec as JSON."""

    job_spec: str
    anchor: str


def model_of(job: Any, anchor: str | None = None) -> Model:
    """The anchor that holds the model of a CPRJob object: this one, or its result. Raises DocumentError without any."""
    status = parse_status(job.get("status") or {} if isinstance(job, dict) else {})
    key = anchor or (status.result and status.result.key)
    if status.runtime is None or not key:
        raise DocumentError("the job has no status.result; only a job that succeeded has a model")
    return Model(status.runtime.job_spec, key)


def export(job_spec: str, request: ExportRequest, to: str, environment: Mapping[str, str]) -> int:
    """Write a model into a folder, or to a URI; returns the exporter's exit code. job_spec: see `Model`.

    Credentials are read as pods read them: from the files in the folder that CPR_CREDENTIALS_DIR names.
    Raises NeedError if the trainer's packages are not installed.
    """
    check_trainer_image()
    command = (sys.executable, "-m", "cpr_trainer", *_arguments(request, to))
    variables = {
        env.TERMINATION_FILE: "/dev/stderr",
        **environment,
        env.SPEC: job_spec,
    }
    return subprocess.run(command, env=variables, check=False).returncode  # noqa: S603 -- our own program


def export_from(pod: TrainerPod, request: ExportRequest, to: str) -> None:
    """Have a pod write a model to a URI, or unpack it into the folder `to`, model.json last.

    Raises TrialError if the pod cannot write it, AnswerError if it cannot be reached, DocumentError if the folder
    cannot be written.
    """
    if "://" in to:
        with pod.output(*_arguments(request, to)) as source:
            source.read()
        return
    folder = Path(to)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LAST).unlink(missing_ok=True)
        with pod.output(*_arguments(request, STREAM)) as source:
            with tarfile.open(fileobj=source, mode="r|") as archive:
                archive.extractall(folder, filter="data")
            source.read()  # the end of the process, which says whether it failed
    except tarfile.ReadError as error:
        raise TrialError(f"the model came incomplete ({error}); try again") from error
    except OSError as error:
        raise DocumentError(f"cannot write the model to {folder}: {error}") from error


def _arguments(request: ExportRequest, to: str) -> tuple[str, ...]:
    since = ("--since", request.since) if request.since else ()
    return ("export", "--anchor", request.anchor, "--format", request.format, *since, "--to", to)


# `cprjob evaluate`: a finished model's score on the rows that its job held out, by the trainer image's own code.


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
