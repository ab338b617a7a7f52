"""The trainer image's own code, asked by commands: in a process of this machine, or on a cluster in a pod.

The pod has the store's credentials as the job's own pods have them, and lasts as long as the command.
"""

from __future__ import annotations

import io
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from cpr_contract import env
from cpr_contract.codec import ContractError, from_json, pack, to_json
from cpr_contract.reports import Problem
from cpr_contract.requests import Experiment, Outcome, TrialReport
from cpr_contract.spec import JobSpec
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.cli import check_trainer_image
from cpr_operator.cli.console import AnswerError, Where
from cpr_operator.cli.document import is_on_cluster, job_name
from cpr_operator.desired.names import JobId
from cpr_operator.desired.pod import PodPlan
from cpr_operator.desired.store_pod import tool_pod
from cpr_operator.reconcile.effects import pod_plan

# Runs the trainer image's own code in a separate process, for commands that compute or read a store.


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
        asked, termination_file, log = (Path(folder, name) for name in ("request", "termination", "log"))
        asked.write_text(to_json(request), "utf-8")
        variables = {**environment, env.TERMINATION_FILE: str(termination_file)}
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
            raise TrialError(why(termination_file, log, process.returncode))


def why(termination_file: Path, log: Path, code: int) -> str:
    """The process's termination message; without a helpful one, the last lines of its log."""
    try:
        told = termination_file.read_text("utf-8")
    except OSError:
        told = ""
    return why_ended(told, log.read_text("utf-8", "replace").splitlines(), code)


def why_ended(termination_message: str, log: Sequence[str], code: int) -> str:
    """The same, of their contents."""
    try:
        problem = from_json(Problem, termination_message)
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


if TYPE_CHECKING:
    from cpr_operator.client import Job, Tool

#: Where the image has its Python and its code.
_PROGRAM = ("python3", "-m", "cpr_trainer")
_SUFFIX_BYTES = 3


class TrainerPod:
    """The trainer image's code in a pod, with the spec and the store of one job."""

    def __init__(self, tool: Tool) -> None:
        self._tool = tool

    def ask(self, role: str, job: JobSpec | None, request: object) -> Generator[bytes]:
        """See `Ask`. The job is always the pod's own."""
        del job
        with closing(self._run(role, stdin=f"{to_json(request)}\n".encode())) as chunks:
            yield from io.BufferedReader(_Chunks(chunks))

    @contextmanager
    def output(self, *arguments: str) -> Iterator[io.BufferedReader[_Chunks]]:
        """What a role writes to its standard output. Reading its end raises TrialError if the role failed."""
        with closing(self._run(*arguments)) as chunks, io.BufferedReader(_Chunks(chunks)) as reader:
            yield reader

    def _run(self, *arguments: str, stdin: bytes = b"") -> Generator[bytes]:
        from cpr_operator.client import CommandError  # noqa: PLC0415 -- loaded with the client

        command = ("env", "CPR_TERMINATION_FILE=/dev/stderr", *_PROGRAM, *arguments)
        try:
            yield from self._tool.run(command, stdin)
        except CommandError as error:
            *log, termination_message = error.errors.splitlines() or ("",)
            raise TrialError(why_ended(termination_message, (*log, termination_message), error.code)) from None


@contextmanager
def trainer_pod(source: str | None, where: Where, *, unstarted: bool = False) -> Iterator[TrainerPod]:
    """A pod for the job `cpr/NAME` for as long as the context lasts; `unstarted`: of one that waits, too.

    Raises AnswerError.
    """
    with where.client() as client:
        job = client.get(job_name(str(source)))
        if job.status.runtime is None and not unstarted:
            raise AnswerError(f"{job.name} has not started, so it has saved nothing")
        with client.tool(tool_pod(_plan_of(job), secrets.token_hex(_SUFFIX_BYTES))) as tool:
            yield TrainerPod(tool)


def _plan_of(job: Job) -> PodPlan:
    """What the job's pods are made from, or would be if it started now."""
    job_id, spec = JobId(job.namespace, job.name, job.uid), job.spec
    if job.status.runtime is not None:
        return pod_plan(job_id, spec, job.status)
    return PodPlan(job_id, spec, spec.image, pack(to_json(to_job_spec(spec, job.uid, job.name))), grace_s=1)


@contextmanager
def asking(source: str | None, where: Where, environment: Mapping[str, str]) -> Iterator[Ask]:
    """Whom to ask about the job or the store of this name. Raises AnswerError."""
    if is_on_cluster(source):
        with trainer_pod(source, where) as pod:
            yield pod.ask
    else:
        yield partial(ask_trainer_image, environment=environment)


class _Chunks(io.RawIOBase):
    """A stream of the bytes of all chunks."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._left = memoryview(b"")

    def readable(self) -> bool:
        """Whether it can be read."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read what is there next; 0 at the end."""
        while not self._left:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._left = memoryview(chunk)
        size = min(len(buffer), len(self._left))
        buffer[:size] = self._left[:size]
        self._left = self._left[size:]
        return size
