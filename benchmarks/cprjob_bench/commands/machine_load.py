"""The load of the machine: processor time and memory by role, and a gauge of the speed that is left."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from cpr_contract import env
from cpr_contract.codec import to_json
from cpr_contract.spec import JobSpec
from cpr_operator.cli.command_errors import TrialError
from cpr_operator.cli.trainer_process import failure_message

#: Roles of the processes that measure.
GAUGE, PRODUCTS = "gauge", "products"
_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_STEAL = 8  # the number of the stolen time in /proc/stat
_ROLE_AFTER = {"cpr_trainer", "cprjob_bench"}


@dataclass(frozen=True, slots=True)
class Usage:
    """Processor time since the start, and resident memory, of all processes of a role.

    A page that processes share counts once in the sum over all of them (`Pss` in proc_pid_smaps(5)).
    """

    cpu_s: float
    resident_bytes: int


class Meter:
    """A process that measures this machine on request."""

    def __init__(self, process: asyncio.subprocess.Process, termination_file: Path, log: Path) -> None:
        self._process = process
        self._termination_file = termination_file
        self._log = log

    async def value(self) -> float:
        """Measure, in the unit of the process's role. Raises TrialError if the process has ended."""
        assert self._process.stdin is not None  # noqa: S101 -- it was started with pipes
        assert self._process.stdout is not None  # noqa: S101 -- it was started with pipes
        self._process.stdin.write(b"\n")
        line = await self._process.stdout.readline()
        if not line:
            raise TrialError(failure_message(self._termination_file, self._log, await self._process.wait()))
        return float(line)


def usage() -> dict[str, Usage]:
    """Return the usage of this process ("cprjob") and its descendants, by role.

    The role is the word after the package in the command; "peer" for processes of other programs.
    """
    found: dict[str, Usage] = {}
    for pid in (os.getpid(), *_below(os.getpid())):
        try:
            role, mine = _role(pid), _usage_of(pid)
        except OSError:  # it has ended
            continue
        before = found.get(role, Usage(0.0, 0))
        found[role] = Usage(before.cpu_s + mine.cpu_s, before.resident_bytes + mine.resident_bytes)
    return found


def processor_s() -> tuple[float, float]:
    """Return seconds of all processors since the machine started: in total, and stolen by other machines."""
    values = [int(text) for text in (_PROC / "stat").read_text().splitlines()[0].split()[1:]]
    return sum(values[:_STEAL]) / _TICKS, values[_STEAL - 1] / _TICKS


@dataclass(frozen=True, slots=True)
class Meters:
    """The meters of a bench. gauge: GFLOP/s of a fixed product of float32.

    products: ms of the products of a batch of the job (`cprjob_bench.roles.products`); None: not measured.
    """

    gauge: Meter
    products: Meter | None = None


@asynccontextmanager
async def open_meters(
    environment: Mapping[str, str], folder: Path, job: JobSpec | None = None
) -> AsyncIterator[Meters]:
    """Run a gauge, and the products of `job` if there is one, until the context ends. Their logs go to `folder`.

    The processes use no CPU time between measurements.
    """
    async with _open_meter(GAUGE, environment, folder) as gauge:
        if job is None:
            yield Meters(gauge)
            return
        async with _open_meter(PRODUCTS, {**environment, env.SPEC: to_json(job)}, folder) as products:
            yield Meters(gauge, products)


@asynccontextmanager
async def _open_meter(role: str, environment: Mapping[str, str], folder: Path) -> AsyncIterator[Meter]:
    termination_file, log = folder / f"{role}-termination", folder / f"{role}.log"
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cprjob_bench", role),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            env={**environment, env.TERMINATION_FILE: str(termination_file)},
        )
    try:
        yield Meter(process, termination_file, log)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _below(pid: int) -> Iterator[int]:
    """Yield all descendants of the process `pid`."""
    children: dict[int, list[int]] = defaultdict(list)
    for path in _PROC.iterdir():
        if path.name.isdigit():
            try:
                children[int(_stat(int(path.name))[1])].append(int(path.name))
            except OSError:
                continue
    waiting = [pid]
    while waiting:
        found = children[waiting.pop()]
        waiting += found
        yield from found


def _role(pid: int) -> str:
    if pid == os.getpid():
        return "cprjob"
    words = (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    found = (role for package, role in pairwise(words) if package in _ROLE_AFTER and role not in _ROLE_AFTER)
    return next(found, "peer")


def _usage_of(pid: int) -> Usage:
    values = _stat(pid)
    lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    kib = next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return Usage((int(values[11]) + int(values[12])) / _TICKS, kib << 10)


def _stat(pid: int) -> list[str]:
    """Return the values of /proc/PID/stat after the name, which may contain any character: state, parent, ..."""
    return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
