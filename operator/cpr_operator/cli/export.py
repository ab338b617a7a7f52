"""`cprjob export`: the model of a finished job as files, written by the trainer image's own code."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpr_contract import env
from cpr_operator.api.status import Status
from cpr_operator.cli.document import DocumentError, read_single
from cpr_operator.cli.needs import check_trainer_image


@dataclass(frozen=True, slots=True)
class Source:
    """Which anchor of which job: `job_spec` is the contract's JobSpec as JSON."""

    job_spec: str
    anchor: str


def source_of(job: Any) -> Source:
    """The anchor that holds the model of a CPRJob object. Raises DocumentError without a result."""
    status = Status.model_validate(job.get("status", {}) if isinstance(job, dict) else {})
    if status.runtime is None or status.result is None:
        raise DocumentError("the job has no status.result; only a job that succeeded has a model")
    return Source(status.runtime.job_spec, status.result.key)


def find_job(file: Path | None, workdir: Path | None) -> Any:
    """The CPRJob object in the file, or in the working folder of a local run. Raises DocumentError."""
    if (file is None) == (workdir is None):
        raise DocumentError("give either a file with the job and its status, or --workdir DIR of a local run")
    if file is None and workdir is not None:
        paths = tuple(workdir.glob("jobs/*/*.json"))
        if len(paths) != 1:
            raise DocumentError(f"there is no job in {workdir}")
        file = paths[0]
    return read_single(Path(str(file)))


def export(source: Source, folder: Path, environment: Mapping[str, str]) -> int:
    """Write the model into the folder; returns the exporter's exit code.

    Credentials are read as pods read them: from the files in the folder that CPR_CREDENTIALS_DIR names.
    Raises NeedError if the trainer's packages are not installed.
    """
    check_trainer_image()
    command = (sys.executable, "-m", "cpr_trainer", "export", "--anchor", source.anchor, "--to", str(folder))
    variables = {
        env.TERMINATION_FILE: "/dev/stderr",
        **environment,
        env.SPEC: source.job_spec,
    }
    return subprocess.run(command, env=variables, check=False).returncode  # noqa: S603 -- our own program
