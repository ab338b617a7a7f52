"""`cprjob export` and `cprjob evaluate`: run the trainer image's code on a finished model.

For a job on a cluster the code runs in a pod with the job's mounts. The files are sent to this machine as an archive,
except to a URI, to which the pod writes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from shutil import copyfileobj
from typing import Any

from rich.console import Console

from cpr_contract import env
from cpr_contract.codec import from_json, to_dict, unpack
from cpr_contract.requests import Evaluation, EvaluationRequest, ExportRequest
from cpr_contract.spec import JobSpec
from cpr_operator.api.validate import parse_status
from cpr_operator.cli.command_errors import DocumentError, TrialError
from cpr_operator.cli.trainer_process import RunRole, TrainerPod, answer, check_trainer_image

#: The file that is written after all others.
LAST = "model.json"
#: The folder name of the standard output, to which the files are written as an archive.
STREAM = "-"


@dataclass(frozen=True, slots=True)
class Model:
    """An anchor of a job. `job_spec` is the contract's JobSpec as JSON."""

    job_spec: str
    anchor: str


def model_of(job: Any, anchor: str | None = None) -> Model:
    """Return the model in an anchor of a CPRJob object, by default in its result. Raises DocumentError without one."""
    status = parse_status(job.get("status") or {} if isinstance(job, dict) else {})
    key = anchor or (status.result and status.result.key)
    if status.runtime is None or not key:
        raise DocumentError("the job has no status.result; only a job that succeeded has a model")
    return Model(status.runtime.job_spec, key)


def export(job_spec: str, request: ExportRequest, to: str, environment: Mapping[str, str]) -> int:
    """Write a model into a folder or to a URI, and return the exporter's exit code. job_spec: see `Model`.

    Credentials are read from files as in pods: in the folder that CPR_CREDENTIALS_DIR names. Raises
    MissingPackageError without the trainer's packages.
    """
    check_trainer_image()
    command = (sys.executable, "-m", "cpr_trainer", *_arguments(request, to))
    variables = {env.TERMINATION_FILE: "/dev/stderr", **environment, env.SPEC: job_spec}
    return subprocess.run(command, env=variables, check=False).returncode  # noqa: S603 -- our own program


def export_from(pod: TrainerPod, request: ExportRequest, to: str) -> None:
    """Write a model from a pod to a URI, or into the local folder `to`, with model.json last.

    Raises TrialError if the pod fails, ClusterRequestError if it is unreachable, DocumentError if the folder cannot be
    written.
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
                _unpack(archive, folder)
            source.read()  # the end of the process, which raises if it failed
    except tarfile.ReadError as error:
        raise TrialError(f"the model came incomplete ({error}); try again") from error
    except OSError as error:
        raise DocumentError(f"cannot write the model to {folder}: {error}") from error


def _unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Write the files of an archive below a folder. Raises TrialError for any other member."""
    for member in archive:  # `extractall` has its `filter` from Python 3.11.4 on, and Debian 12 has 3.11.2
        if member.isdir():
            continue
        name = PurePosixPath(member.name)
        source = archive.extractfile(member) if member.isfile() else None
        if source is None or name.is_absolute() or ".." in name.parts:
            raise TrialError(f"the pod sent {member.name}, which is not a file of a model; use the job's own image")
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with (folder / name).open("wb") as file:
            copyfileobj(source, file)


def evaluate(model: Model, console: Console, run: RunRole, *, as_json: bool) -> None:
    """Print the scores of a model on its held-out rows.

    Raises TrialError if the model or the data cannot be read, or no rows are held out.
    """
    job = from_json(JobSpec, unpack(model.job_spec))
    found = answer(Evaluation, run, "evaluate", job, EvaluationRequest(model.anchor))
    if as_json:
        console.print_json(json.dumps(to_dict(found)))
        return
    scores = []
    if found.log_loss is not None:
        auc = "not defined, all labels are the same" if found.auc is None else f"{found.auc:.5f}"
        scores = [f"AUC {auc}", f"log loss {found.log_loss:.5f}"]
    if found.normalised_entropy is not None:
        scores.append(f"normalised entropy {found.normalised_entropy:.5f}")
    if found.calibration is not None:
        scores.append(f"calibration {found.calibration:.4f}")
    if found.gauc is not None:
        scores.append(f"GAUC {found.gauc:.5f}")
    # The metrics of a model with one label repeat its calibration.
    scores += [f"{name} {value:.5g}" for name, value in found.metrics if name != "calibration"]
    console.print(f"step {found.step:,}, {found.samples:,} held-out samples: {', '.join(scores)}", markup=False)
    for group in (*found.groups, *filter(None, (found.rest,))):
        auc = "not defined" if group.auc is None else f"{group.auc:.5f}"
        console.print(f"  {group.name}: {group.samples:,} samples, AUC {auc}", markup=False)


def _arguments(request: ExportRequest, to: str) -> tuple[str, ...]:
    since = ("--since", request.since) if request.since else ()
    return ("export", "--anchor", request.anchor, "--format", request.format, *since, "--to", to)
