"""`cprjob report`: how a job stands or ended, for people or for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from cpr_operator.api.validate import parse_status
from cpr_operator.cli.report import overall_speed, report
from cpr_operator.cli.summary import next_step_here, next_step_there, print_summary
from cpr_operator.cli.where import Where


def show_outcome(
    job: Mapping[str, Any], workdir: Path | None, where: Where, console: Console, *, as_json: bool
) -> None:
    """Print the outcome of a CPRJob object, which is that of a local run if there is a `workdir`.

    Raises InvalidStatusError.
    """
    name, status = job["metadata"]["name"], parse_status(job.get("status") or {})
    speed = overall_speed(status)
    if as_json:
        console.print_json(json.dumps(report(name, status, speed)))
        return
    next_step = next_step_there(status, name, where.options) if workdir is None else next_step_here(status, workdir)
    print_summary(console, name, status, speed, next_step)
