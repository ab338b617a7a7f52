"""Runs roles of the trainer image for commands: in a process of this machine, or on a cluster in a pod.

The pod has the store's credentials as the job's own pods have them, and is deleted when the command ends.
"""

from __future__ import annotations

import io
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from cpr_contract import env
from cpr_contract.codec import ContractError, from_json, pack, to_json
from cpr_contract.reports import Problem
from cpr_contract.requests import Experiment, Outcome, TrialReport
from cpr_contract.spec import JobSpec
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.cli.command_errors import ClusterRequestError, MissingPackageError, TrialError, missing_package
from cpr_operator.cli.command_options import ClusterOptions, is_on_cluster, job_name
from cpr_operator.desired.names import JobId
from cpr_operator.desired.pod import PodPlan
from cpr_operator.desired.store_pod import tool_pod
from cpr_operator.reconcile.effects import pod_plan

if TYPE_CHECKING:
    from cpr_operator.client import Tool

_Answer = TypeVar("_Answer")
#: The program of the trainer image.
_PROGRAM = ("python3", "-m", "cpr_trainer")
_SUFFIX_BYTES = 3
#: Lines of a log that an error message shows.
_TAIL_LINES = 20


class RunRole(Protocol):
    """Runs a role of the trainer image with a request, and yields the lines of its answer. Raises TrialError."""

    def __call__(self, role: str, job: JobSpec | None, request: object) -> Generator[bytes]:
        """Run the role. Closing the generator ends its process."""
        ...


def check_trainer_image() -> None:
    """Raise MissingPackageError unless the packages of the trainer image are installed."""
    if find_spec("torch") is None:
        raise MissingPackageError(missing_package("torch"))


@contextmanager
def role_runner(source: str | None, kube: ClusterOptions, environment: Mapping[str, str]) -> Iterator[RunRole]:
    """Yield the function that runs roles for a job or a store: in a pod for `cpr/NAME`, else in a process here.

    Raises ClusterRequestError.
    """
    if is_on_cluster(source):
        with trainer_pod(source, kube) as pod:
            yield pod.run
    else:
        yield partial(run_role, environment=environment)


def run_role(
    role: str, job: JobSpec | None, request: object, environment: Mapping[str, str], package: str = "cpr_trainer"
) -> Generator[bytes]:
    """Start `python -m PACKAGE ROLE` with a request, and yield the lines of its answer.

    Closing the generator ends the process. Raises TrialError if the process fails, MissingPackageError without the
    trainer's packages.
    """
    check_trainer_image()
    with tempfile.TemporaryDirectory(prefix="cprjob-") as folder:
        stdin, termination_file, log = (Path(folder, name) for name in ("request", "termination", "log"))
        stdin.write_text(to_json(request), "utf-8")
        variables = {**environment, env.TERMINATION_FILE: str(termination_file)}
        if job is not None:
            variables[env.SPEC] = pack(to_json(job))
        command = (sys.executable, "-m", package, role)
        with (
            stdin.open("rb") as source,
            log.open("wb") as errors,
            subprocess.Popen(command, env=variables, stdin=source, stdout=subprocess.PIPE, stderr=errors) as process,  # noqa: S603 -- our own program
        ):
            try:
                yield from process.stdout or ()
            except BaseException:
                process.kill()
                raise
        if process.returncode:
            raise TrialError(failure_message(termination_file, log, process.returncode))


def answer(kind: type[_Answer], run: RunRole, role: str, job: JobSpec | None, request: object) -> _Answer:
    """Run a role that answers with one line, and return the answer. Raises TrialError."""
    with closing(run(role, job, request)) as lines:
        (found,) = (from_json(kind, line) for line in lines)
    return found


def run_experiment(
    job: JobSpec, experiment: Experiment, environment: Mapping[str, str], on_report: Callable[[TrialReport], None]
) -> Generator[Outcome]:
    """Run all trials and yield their outcomes in order. Closing the generator ends the process.

    Raises TrialError.
    """
    with closing(run_role("calibrate", job, experiment, environment)) as lines:
        for line in lines:
            report = from_json(TrialReport, line)
            on_report(report)
            if report.outcome is not None:
                yield report.outcome


def failure_message(termination_file: Path, log: Path, code: int) -> str:
    """Return the termination message of a process; without a helpful one, the last lines of its log."""
    try:
        message = termination_file.read_text("utf-8")
    except OSError:
        message = ""
    return _failure_message(message, log.read_text("utf-8", "replace").splitlines(), code)


def progress_bar(console: Console) -> Progress:
    """Return a progress bar, which only a terminal shows."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def trial_progress(bar: Progress, names: Sequence[str]) -> Callable[[TrialReport], None]:
    """Return a function that advances the bar through trials with these names.

    Without a bar it prints each finished trial.
    """
    task = bar.add_task("reading the data", total=len(names))

    def on_report(report: TrialReport) -> None:
        name = names[report.trial]
        bar.update(task, description=name, completed=report.trial + report.samples / report.total_samples)
        if report.outcome is not None and bar.disable:
            auc = "-" if report.outcome.auc is None else f"{report.outcome.auc:.5f}"
            bar.console.print(f"run {report.trial + 1} of {len(names)}: {name}, AUC {auc}", highlight=False)

    return on_report


@dataclass(frozen=True, slots=True)
class TrainerPod:
    """A pod with the trainer image, and the spec and the store of one job."""

    tool: Tool

    def run(self, role: str, job: JobSpec | None, request: object) -> Generator[bytes]:
        """See `RunRole`. The job is always that of the pod."""
        del job
        with closing(self._execute(role, stdin=f"{to_json(request)}\n".encode())) as chunks:
            yield from io.BufferedReader(_ChunkReader(chunks))

    @contextmanager
    def output(self, *arguments: str) -> Iterator[io.BufferedReader[_ChunkReader]]:
        """Open the standard output of a role. Reading its end raises TrialError if the role failed."""
        with closing(self._execute(*arguments)) as chunks, io.BufferedReader(_ChunkReader(chunks)) as reader:
            yield reader

    def _execute(self, *arguments: str, stdin: bytes = b"") -> Generator[bytes]:
        from cpr_operator.client import CommandError  # noqa: PLC0415 -- slow to import

        command = ("env", "CPR_TERMINATION_FILE=/dev/stderr", *_PROGRAM, *arguments)
        try:
            yield from self.tool.run(command, stdin)
        except CommandError as error:
            *log, message = error.errors.splitlines() or ("",)
            raise TrialError(_failure_message(message, (*log, message), error.code)) from None


@contextmanager
def trainer_pod(source: str | None, kube: ClusterOptions, *, unstarted: bool = False) -> Iterator[TrainerPod]:
    """Create a pod for the job `cpr/NAME`, and delete it when the context ends.

    Raises ClusterRequestError, also for a job that has not started, unless `unstarted`.
    """
    with kube.client() as client:
        job = client.get(job_name(str(source)))
        if job.status.runtime is None and not unstarted:
            raise ClusterRequestError(f"{job.name} has not started, so it has saved nothing")
        job_id, spec = JobId(job.namespace, job.name, job.uid), job.spec
        if job.status.runtime is not None:
            plan = pod_plan(job_id, spec, job.status)
        else:  # the plan that the job's pods would have if it started now
            plan = PodPlan(job_id, spec, spec.image, pack(to_json(to_job_spec(spec, job.uid, job.name))), grace_s=1)
        with client.tool(tool_pod(plan, secrets.token_hex(_SUFFIX_BYTES))) as tool:
            yield TrainerPod(tool)


class _ChunkReader(io.RawIOBase):
    """A stream of the bytes of all chunks."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._left = memoryview(b"")

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read the next bytes; 0 at the end."""
        while not self._left:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._left = memoryview(chunk)
        size = min(len(buffer), len(self._left))
        buffer[:size] = self._left[:size]
        self._left = self._left[size:]
        return size


def _failure_message(termination_message: str, log: Sequence[str], code: int) -> str:
    try:
        problem = from_json(Problem, termination_message)
    except ContractError:
        problem = None
    if problem is not None and problem.reason != "Internal":
        return f"{problem.message} {problem.remedy}"
    return "\n".join((f"the trials ended with exit code {code}", *log[-_TAIL_LINES:]))
