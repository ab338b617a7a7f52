"""Runs the trainer image's own code in a separate process, for commands that compute or read a store."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from cpr_contract import env
from cpr_contract.codec import ContractError, from_json, pack, to_json
from cpr_contract.reports import Problem
from cpr_contract.requests import Experiment, Outcome, TrialReport
from cpr_contract.spec import JobSpec
from cpr_operator.cli.needs import check_trainer_image

#: Lines of a log that an error message shows.
_TAIL_LINES = 20


class Ask(Protocol):
    """Asks a role of the trainer image, wherever it runs, and yields the lines of its answer. Raises TrialError."""

    def __call__(self, role: str, job: JobSpec | None, request: object) -> Generator[bytes]:
        """Close the answer to end the role's process."""
        ...


class TrialError(RuntimeError):
    """The trials failed; the message says why."""


def run_experiment(
    job: JobSpec, experiment: Experiment, environment: Mapping[str, str], tell: Callable[[TrialReport], None]
) -> Generator[Outcome]:
    """Run all trials and yield their outcomes in order. Close it to end the process.

    Raises TrialError.
    """
    with closing(ask_trainer_image("calibrate", job, experiment, environment)) as lines:
        for line in lines:
            report = from_json(TrialReport, line)
            tell(report)
            if report.outcome is not None:
                yield report.outcome


def ask_trainer_image(
    role: str, job: JobSpec | None, request: object, environment: Mapping[str, str], package: str = "cpr_trainer"
) -> Generator[bytes]:
    """Start `python -m PACKAGE ROLE`, give it a request, and yield the lines of its answer.

    Close it to end the process. Raises TrialError if the process fails, NeedError if the
    trainer's packages are not installed.
    """
    check_trainer_image()
    with tempfile.TemporaryDirectory(prefix="cprjob-") as folder:
        asked, last_word, log = (Path(folder, name) for name in ("request", "termination", "log"))
        asked.write_text(to_json(request), "utf-8")
        variables = {**environment, env.TERMINATION_FILE: str(last_word)}
        if job is not None:
            variables[env.SPEC] = pack(to_json(job))
        command = (sys.executable, "-m", package, role)
        with (
            asked.open("rb") as source,
            log.open("wb") as errors,
            subprocess.Popen(command, env=variables, stdin=source, stdout=subprocess.PIPE, stderr=errors) as process,  # noqa: S603 -- our own program
        ):
            try:
                yield from process.stdout or ()
            except BaseException:
                process.kill()
                raise
        if process.returncode:
            raise TrialError(why(last_word, log, process.returncode))


def why(last_word: Path, log: Path, code: int) -> str:
    """The process's termination message; without a helpful one, the last lines of its log."""
    try:
        told = last_word.read_text("utf-8")
    except OSError:
        told = ""
    return why_ended(told, log.read_text("utf-8", "replace").splitlines(), code)


def why_ended(last_word: str, log: Sequence[str], code: int) -> str:
    """The same, of their contents."""
    try:
        problem = from_json(Problem, last_word)
    except ContractError:
        problem = None
    if problem is not None and problem.reason != "Internal":
        return f"{problem.message} {problem.remedy}"
    return "\n".join((f"the trials ended with exit code {code}", *log[-_TAIL_LINES:]))


def progress(console: Console) -> Progress:
    """A progress bar, which only a terminal shows."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def teller(bar: Progress, names: Sequence[str]) -> Callable[[TrialReport], None]:
    """Advance the bar through trials with these names; without a bar, print each finished trial."""
    task = bar.add_task("reading the data", total=len(names))

    def tell(report: TrialReport) -> None:
        name = names[report.trial]
        bar.update(task, description=name, completed=report.trial + report.samples / report.total_samples)
        if report.outcome is not None and bar.disable:
            auc = "-" if report.outcome.auc is None else f"{report.outcome.auc:.5f}"
            bar.console.print(f"run {report.trial + 1} of {len(names)}: {name}, AUC {auc}", highlight=False)

    return tell
