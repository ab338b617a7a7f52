"""`cprjob export`: the model of a job as files, written by the trainer image's own code.

For a job on a cluster that code runs in a pod with the job's own mounts. The files come here as an archive, unless a
URI says where they go.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpr_contract import env
from cpr_contract.requests import ExportRequest
from cpr_operator.api.validate import parse_status
from cpr_operator.cli.asking import TrainerPod
from cpr_operator.cli.document import DocumentError
from cpr_operator.cli.needs import check_trainer_image
from cpr_operator.cli.trials import TrialError

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
