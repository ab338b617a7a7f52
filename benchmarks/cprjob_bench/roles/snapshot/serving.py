"""The effect of a save on training: a real shard process, trained at a constant pace while it saves under the limit."""

from __future__ import annotations

import contextlib
import ctypes
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np

from cpr_contract import CONTRACT_VERSION, env
from cpr_contract.codec import from_json, to_json
from cpr_contract.reports import Problem
from cpr_contract.roster import Counters, Peer, ShardRoster, TrainerRoster
from cpr_contract.spec import JobSpec
from cpr_trainer.embedding.access import find_access
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.embedding.unique_rows import UniqueRows
from cpr_trainer.errors import TrainerError
from cpr_trainer.exchange import Exchange
from cprjob_bench.bench_documents import Latency, Round, Window
from cprjob_bench.roles.snapshot.saves import gradients_for, step_rows

KEY = b"of a bench that talks to itself"
COUNTERS = Counters(roster=1, group=1, generation=1)
_HOST = "127.0.0.1"
_TIME_LIMIT_S = 120.0
_PDEATHSIG = 1


class ShardEndedError(TrainerError):
    """The measured shard process ended."""

    reason = "ShardEnded"

    def __init__(self, why: str) -> None:
        super().__init__(f"The shard process ended: {why}", "Correct what its message names.")


@dataclass(frozen=True, slots=True, eq=False)
class ShardProcess:
    """A running shard on the loopback, which ends with the bench."""

    process: subprocess.Popen[bytes]
    folder: Path
    port_base: int
    index: int

    @property
    def peer(self) -> Peer:
        """Its address for trainers."""
        return Peer(self.index, 1, _HOST, self.port_base)

    @property
    def pid(self) -> int:
        """The serving process, which the supervisor has forked last."""
        supervisor = self.process.pid
        return int(Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text("ascii").split()[-1])

    def wait_ready(self) -> None:
        """Return once it serves. Raises ShardEndedError, TimeoutError."""
        deadline = time.monotonic() + _TIME_LIMIT_S
        while time.monotonic() < deadline:
            self.check()
            with contextlib.suppress(OSError):
                self._page("/readyz")
                return
            time.sleep(0.05)
        raise TimeoutError("the shard process does not become ready")

    def check(self) -> None:
        """Raise ShardEndedError if it ended."""
        if self.process.poll() is not None:
            raise ShardEndedError(self._termination_message())

    def metric(self, name: str) -> float:
        """Return one of its metrics, without the common prefix of their names."""
        page = self._page("/metrics").decode()
        found = re.search(rf"^cprjob_shard_{name} (\S+)$", page, re.MULTILINE)
        if found is None:
            raise LookupError(f"the shard has no metric {name}")
        return float(found[1])

    def memory_bytes(self) -> int | None:
        """Return its resident memory; None if the system does not report it."""
        return self._memory("VmRSS")

    def reset_peak(self) -> None:
        """Reset the peak of its memory."""
        with contextlib.suppress(OSError):
            Path(f"/proc/{self.pid}/clear_refs").write_text("5", "ascii")

    def peak_memory_bytes(self) -> int | None:
        """Return the peak of resident memory since `reset_peak`; None if the system does not report it."""
        return self._memory("VmHWM")

    def _memory(self, name: str) -> int | None:
        try:
            status = Path(f"/proc/{self.pid}/status").read_text("ascii")
        except OSError:
            return None
        found = re.search(rf"^{name}:\s+(\d+) kB$", status, re.MULTILINE)
        return int(found[1]) << 10 if found else None

    def _page(self, page: str) -> bytes:
        url = f"http://{_HOST}:{self.port_base + env.HTTP_PORT}{page}"
        with urllib.request.urlopen(url, timeout=_TIME_LIMIT_S) as answer:
            return bytes(answer.read())

    def _termination_message(self) -> str:
        with contextlib.suppress(OSError, ValueError):
            return from_json(Problem, (self.folder / "termination").read_text("utf-8")).message
        return f"exit code {self.process.returncode}"


@contextlib.contextmanager
def running_shard(
    job: JobSpec, environ: Mapping[str, str], port_base: int, folder: Path, index: int = 0
) -> Iterator[ShardProcess]:
    """Run a shard of a job until the context ends. Its files go to `folder`."""
    roster = ShardRoster(
        contract=CONTRACT_VERSION,
        counters=COUNTERS,
        index=index,
        incarnation=1,
        newest_incarnation=1,
        may_restore=True,
        floor_samples=0,
        anchor=None,
        trainers=job.trainers,
    )
    (folder / "roster.json").write_text(to_json(roster), "utf-8")
    (folder / "key").write_bytes(KEY)
    variables = {
        **environ,
        env.SPEC: to_json(job),
        env.ROSTER_FILE: str(folder / "roster.json"),
        env.KEY_FILE: str(folder / "key"),
        env.ADDRESS: _HOST,
        env.PORT_BASE: str(port_base),
        env.SCRATCH_DIR: str(folder),
        env.TERMINATION_FILE: str(folder / "termination"),
        env.KEEPER: "1",
    }
    command = (sys.executable, "-m", "cpr_trainer", "shard")
    with subprocess.Popen(command, env=variables, preexec_fn=_die_with_parent) as process:  # noqa: S603, PLW1509
        try:
            yield ShardProcess(process, folder, port_base, index)
        finally:
            process.kill()


def trainer_roster(rank: int, shards: tuple[Peer, ...]) -> TrainerRoster:
    """Return the roster of a trainer of these shards."""
    return TrainerRoster(
        contract=CONTRACT_VERSION,
        counters=COUNTERS,
        index=rank,
        incarnation=1,
        newest_incarnation=1,
        leader=0,
        trainers=(),
        shards=shards,
        anchor=None,
        dense_floor_samples=0,
        interval_s=60.0,
    )


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)


#: Seconds between the starts of two steps. The shard is idle for a part of them, as in a job.
_PACE_S = 0.01
#: Rows of one push of `change_everything`.
_CHUNK = 1 << 16


class SaveGivenUpError(TrainerError):
    """Training changed rows faster than the store accepted them."""

    reason = "SaveGivenUp"

    def __init__(self) -> None:
        super().__init__(
            "The shard aborted a save: training changed rows faster than it wrote them.",
            "The store is too slow: use a faster one, or more --rows.",
        )


@dataclass(slots=True, eq=False)
class Trainer:
    """The one trainer of a shard process."""

    job: JobSpec
    shard: ShardProcess
    exchange: Exchange
    placement: Placement
    rng: np.random.Generator
    step: int = 0

    @classmethod
    @contextlib.contextmanager
    def of(cls, job: JobSpec, shard: ShardProcess) -> Iterator[Self]:
        """Connect to a shard, once it serves, until the context ends."""
        shard.wait_ready()
        exchange = Exchange(job, 0, 1, KEY, job.data.samples or 1)
        exchange.follow(trainer_roster(0, (shard.peer,)))
        with contextlib.closing(exchange):
            exchange.wait_ready(_TIME_LIMIT_S)
            yield cls(job, shard, exchange, Placement.of(job.model, 1), np.random.default_rng(1))

    def change_everything(self) -> None:
        """Push to each row of the one table once, so that the next save contains all of them."""
        for first in range(0, self.placement.total, _CHUNK):
            ids = np.arange(first, min(first + _CHUNK, self.placement.total))[:, np.newaxis]
            self._push(find_access(self.placement, ids).unique, 0)

    def round(self, window_s: float) -> Round:
        """Train for `window_s` without a save, then from a cut to its commit. Raises SaveGivenUpError.

        The save contains all rows changed before, by `change_everything`.
        """
        end_s = time.monotonic() + window_s
        idle = self._window(lambda: time.monotonic() >= end_s, cut=False)
        cut_step = self.step + 1
        saving = self._window(lambda: self._saved(cut_step), cut=True)
        return Round(idle, saving, self.shard.metric("cut_seconds"))

    def _window(self, ends: Callable[[], bool], *, cut: bool) -> Window:
        """Train at least one step at a constant pace; with `cut` the first one is the cut."""
        times = _Times()
        cut_step = self.step + 1 if cut else 0
        started_s = time.monotonic()
        while True:
            rows = step_rows(self.placement, self.rng)
            times.lookup.append(self._look_up(rows))
            times.push.append(self._push(rows, cut_step))
            if ends():
                return times.window()
            time.sleep(max(0.0, started_s + len(times.push) * _PACE_S - time.monotonic()))

    def _look_up(self, rows: UniqueRows) -> float:
        started_s = time.perf_counter()
        self.exchange.lookup(self.step + 1, rows).result(_TIME_LIMIT_S)
        return time.perf_counter() - started_s

    def _push(self, rows: UniqueRows, cut_step: int) -> float:
        self.step += 1
        gradients = gradients_for(rows, self.job.model.embedding_dim)
        started_s = time.perf_counter()
        self.exchange.push(self.step, rows, gradients, cut_step, _TIME_LIMIT_S)
        self.exchange.settle(_TIME_LIMIT_S)
        return time.perf_counter() - started_s

    def _saved(self, cut_step: int) -> bool:
        self.shard.check()
        (state,) = self.exchange.saved()
        if state.given_up_step == cut_step:
            raise SaveGivenUpError
        return state.step >= cut_step


@dataclass(slots=True, eq=False)
class _Times:
    """Seconds of waiting of each step."""

    lookup: list[float] = field(default_factory=list)
    push: list[float] = field(default_factory=list)

    def window(self) -> Window:
        return Window(len(self.push), _latency(self.lookup), _latency(self.push))


def _latency(seconds: list[float]) -> Latency:
    p50, p99 = np.percentile(np.array(seconds) * 1e3, (50, 99)).tolist()
    return Latency(p50, p99)
