"""The systems of `cprjob bench train`: CPRJob and baselines. Each trains the job until it is stopped, and traces steps.

Any program that trains the job in CPR_SPEC and writes the trace that CPR_STEP_TRACE names (see
`cpr_contract.trace`) can be a baseline.
"""

from __future__ import annotations

import copy
import shlex
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from cpr_contract import env
from cpr_contract.codec import ContractError, from_json, to_json
from cpr_contract.limits import MAX_MEMBERS, max_report_bytes
from cpr_contract.reports import TrainerReport
from cpr_contract.spec import JobSpec
from cpr_contract.trace import STEP_TRACE, TracedStep
from cpr_operator.cli.command_errors import OptionError, TrialError
from cpr_operator.cli.run import open_cluster, operating, running_pod
from cpr_operator.cli.trainer_process import failure_message
from cpr_operator.cluster.certificates import PodTLS, pod_tls
from cpr_operator.cluster.local.cluster import LocalCluster
from cpr_operator.cluster.local.pod_folder import PodFolder
from cpr_operator.cluster.local.pod_process import PodProcess
from cpr_operator.cluster.views import JobView, PodView
from cpr_operator.reconcile import Timing

_REPORT_DEADLINE_S = 1.0
_TRACE = "steps.jsonl"
#: The reference of all comparisons.
SINGLE = "single"
CPRJOB, ENCRYPTED = "cprjob", "cprjob with TLS"


class Run(Protocol):
    """A running system."""

    def traces(self) -> Mapping[str, list[TracedStep]]:
        """Return all steps so far of one process of each role. Throughput is that of the first role."""
        ...

    async def saves(self) -> int | None:
        """Return the number of committed cuts; None for a system that does not save."""
        ...

    def sent_bytes(self) -> int | None:
        """Return the bytes that members have sent to each other so far; None if they are not counted."""
        ...

    async def kept_bytes(self) -> Mapping[str, int]:
        """Return the bytes that members keep for redundancy now, by kind; empty if they are not counted."""
        ...

    async def check(self) -> None:
        """Raise TrialError if it has stopped training."""
        ...


class System(Protocol):
    """CPRJob or a baseline, which trains the job."""

    @property
    def name(self) -> str:
        """Its name in the results."""
        ...

    def started(self, folder: Path) -> AbstractAsyncContextManager[Run]:
        """Train until the context ends, and write to `folder`."""
        ...


class Program:
    """A baseline: one program with all processes that it starts."""

    def __init__(self, name: str, command: tuple[str, ...], job: JobSpec, environment: Mapping[str, str]) -> None:
        self.name = name
        self._command = command
        self._environment = {**environment, env.SPEC: to_json(job)}

    @asynccontextmanager
    async def started(self, folder: Path) -> AsyncIterator[Run]:
        """See `System`."""
        log, termination_file, trace = folder / "log.txt", folder / "termination", folder / _TRACE
        variables = {**self._environment, env.TERMINATION_FILE: str(termination_file), STEP_TRACE: str(trace)}
        process = await PodProcess.start(self._command, variables, log)
        try:
            yield _ProgramRun(self.name, process, trace, log, termination_file)
        finally:
            process.signal(signal.SIGKILL)
            await process.wait()


class _ProgramRun:
    def __init__(self, name: str, process: PodProcess, trace: Path, log: Path, termination_file: Path) -> None:
        self._name = name
        self._process = process
        self._trace = trace
        self._log = log
        self._termination_file = termination_file

    def traces(self) -> Mapping[str, list[TracedStep]]:
        return {self._name: read_trace(self._trace)}

    async def saves(self) -> int | None:
        return None

    def sent_bytes(self) -> int | None:
        return None

    async def kept_bytes(self) -> Mapping[str, int]:
        return {}

    async def check(self) -> None:
        if (code := self._process.code) is not None:
            raise TrialError(failure_message(self._termination_file, self._log, code))


class CprJob:
    """CPRJob itself: an operator in this process, and the job's trainers and shards below it."""

    def __init__(self, document: Mapping[str, Any], environment: Mapping[str, str], name: str = CPRJOB) -> None:
        self.name = name
        self._document = copy.deepcopy(dict(document))
        # Each pod has its own volume below the mount point.
        variable = {"name": STEP_TRACE, "value": f"{env.SCRATCH_MOUNT}/{_TRACE}"}
        set_container_fields(self._document, {"env": [variable]})
        self._environment = environment

    @asynccontextmanager
    async def started(self, folder: Path) -> AsyncIterator[Run]:
        """See `System`."""
        async with open_cluster(folder, self._environment) as cluster:
            job = cluster.create_job(self._document)
            async with operating(cluster, job, Timing()):  # passes as frequent as on a cluster
                yield self.run_of(cluster, job, folder)

    def run_of(self, cluster: LocalCluster, job: JobView, folder: Path) -> JobRun:
        """Return the run of a created job."""
        return JobRun(cluster, job, folder)


class JobRun:
    """A job that trains in `folder`, on `cluster`."""

    def __init__(self, cluster: LocalCluster, job: JobView, folder: Path) -> None:
        self.cluster = cluster
        self.job = job
        self.folder = folder

    def traces(self) -> Mapping[str, list[TracedStep]]:
        """See `Run`."""
        return {role: self._trace(role) for role in (env.ROLE_TRAINER, env.ROLE_SHARD)}

    async def saves(self) -> int | None:
        """See `Run`."""
        pod = running_pod(await self.cluster.list_pods(self.job), env.ROLE_TRAINER, 0)
        if pod is None:
            return None
        body = await self.cluster.fetch_report(
            pod, _REPORT_DEADLINE_S, max_report_bytes(MAX_MEMBERS), tls=await self._tls(pod)
        )
        try:
            return None if body is None else from_json(TrainerReport, body).saves
        except ContractError as error:
            raise TrialError(f"the leader's report cannot be read: {error}") from error

    async def _tls(self, pod: PodView) -> PodTLS | None:
        job = await self.cluster.get_job(self.job.namespace, self.job.name)
        ca = (job.status.get("runtime") or {}).get("ca")
        return pod_tls(pod, ca, await self.cluster.identity.get()) if ca else None

    def sent_bytes(self) -> int | None:
        """See `Run`."""
        return None

    async def kept_bytes(self) -> Mapping[str, int]:
        """See `Run`."""
        return {}

    async def check(self) -> None:
        """See `Run`."""
        for pod in await self.cluster.list_pods(self.job):
            if pod.ended:
                place = PodFolder(self.folder / "pods" / pod.name, self.folder / "secrets")
                code = pod.container.exit_code if pod.container else None
                raise TrialError(f"{pod.name}: {failure_message(place.termination, place.log, code or 0)}")

    def _trace(self, role: str) -> list[TracedStep]:
        return read_trace(next(self.folder.glob(f"pods/*-{role}-0-1/volumes/*/{_TRACE}"), None))


def set_container_fields(document: dict[str, Any], container: Mapping[str, Any]) -> None:
    """Set fields of the containers of all members of a CPRJob."""
    named = {"name": env.MAIN_CONTAINER, **container}
    for members in ("trainers", "shards"):
        document["spec"][members]["template"] = {"spec": {"containers": [named]}}


def singles(job: JobSpec, environment: Mapping[str, str]) -> Iterator[Program]:
    """Yield plain torch in one process with one worker, the reference, then with the workers of `job`, if more."""
    command = (sys.executable, "-m", "cprjob_bench", SINGLE)
    yield Program(SINGLE, command, replace(job, workers=1), environment)
    if job.workers > 1:
        yield Program(f"{SINGLE}-{job.workers}", command, job, environment)


def baseline_commands(baselines: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Parse every `--peer NAME=COMMAND`: commands by name, with the absolute path of the program.

    Raises OptionError.
    """
    commands: dict[str, tuple[str, ...]] = {}
    for baseline in baselines:
        name, _, command = baseline.partition("=")
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise OptionError(f"--peer {baseline}: {error}") from error
        if not (name and words):
            raise OptionError(f"--peer {baseline}: must be NAME=COMMAND")
        if name in {CPRJOB, ENCRYPTED, *commands} or name.partition("-")[0] == SINGLE:
            raise OptionError(f"--peer {baseline}: the name {name} is already in use")
        if (program := shutil.which(words[0])) is None:
            raise OptionError(f"--peer {baseline}: the program {words[0]} was not found")
        commands[name] = (str(Path(program).absolute()), *words[1:])
    return commands


def read_trace(path: Path | None) -> list[TracedStep]:
    """Return the steps of a trace, without an incomplete last line. Empty if there is no file."""
    try:
        text = "" if path is None else path.read_text("utf-8")
    except FileNotFoundError:
        return []
    return [TracedStep.of_line(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
