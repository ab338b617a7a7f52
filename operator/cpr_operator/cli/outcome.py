"""`cprjob report`: how a job stands or ended, for people or for programs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from cpr_operator.api.validate import parse_status
from cpr_operator.cli.options import OptionError
from cpr_operator.cli.report import overall_speed, report
from cpr_operator.cli.summary import next_step_here, next_step_there, print_summary
from cpr_operator.cli.where import Where
from cpr_operator.cluster.local.objects import EventLine


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


def write_page(job: Mapping[str, Any], events: Iterable[EventLine], path: Path, console: Console) -> None:
    """Write a CPRJob object as a page with charts. Raises InvalidStatusError, OptionError."""
    from cpr_operator.cli.pictures.page import page  # noqa: PLC0415 -- its packages are an extra
    from cpr_operator.cli.pictures.story import story_of  # noqa: PLC0415 -- the same

    text = page(story_of(job, events, time.time()))
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise OptionError(f"--html {path}: {error.strerror}; name a file that can be written") from error
    console.print(f"wrote {path}", markup=False, highlight=False, soft_wrap=True)
