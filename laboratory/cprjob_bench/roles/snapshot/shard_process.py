"""A real shard process on the loopback, with a roster written by hand; and what the system knows of it."""

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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cpr_contract import CONTRACT_VERSION, env
from cpr_contract.codec import from_json, to_json
from cpr_contract.reports import Problem
from cpr_contract.roster import Counters, Peer, ShardRoster
from cpr_contract.spec import JobSpec
from cpr_trainer.errors import TrainerError

KEY = b"of a bench that talks to itself"
COUNTERS = Counters(roster=1, group=1, generation=1)
_HOST = "127.0.0.1"
_PATIENCE_S = 120.0
_PDEATHSIG = 1


class ShardEndedError(TrainerError):
    """The shard process that was to be measured ended."""

    reason = "ShardEnded"

    def __init__(self, why: str) -> None:
        super().__init__(f"The shard process ended: {why}", "Its own words say what to correct.")


@dataclass(frozen=True, slots=True, eq=False)
class ShardProcess:
    """A shard that runs. It dies with the bench."""

    process: subprocess.Popen[bytes]
    folder: Path
    port_base: int

    @property
    def peer(self) -> Peer:
        """Where its trainer finds it."""
        return Peer(0, 1, _HOST, self.port_base)

    @property
    def pid(self) -> int:
        """Of the process that serves: the one that the keeper has forked."""
        keeper = self.process.pid
        return int(Path(f"/proc/{keeper}/task/{keeper}/children").read_text("ascii"))

    def wait_ready(self) -> None:
        """Return once it serves. Raises ShardEndedError, TimeoutError."""
        deadline = time.monotonic() + _PATIENCE_S
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
            raise ShardEndedError(self._last_words())

    def figure(self, name: str) -> float:
        """Return one of its metrics, without the common prefix of their names."""
        page = self._page("/metrics").decode()
        found = re.search(rf"^cprjob_shard_{name} (\S+)$", page, re.MULTILINE)
        if found is None:
            raise LookupError(f"the shard has no metric {name}")
        return float(found[1])

    def memory_bytes(self) -> int | None:
        """Return its resident memory; None if the system does not tell."""
        return self._memory("VmRSS")

    def forget_peak(self) -> None:
        """Count the peak of its memory anew from here on."""
        with contextlib.suppress(OSError):
            Path(f"/proc/{self.pid}/clear_refs").write_text("5", "ascii")

    def peak_memory_bytes(self) -> int | None:
        """Return the most resident memory since `forget_peak`; None if the system does not tell."""
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
        with urllib.request.urlopen(url, timeout=_PATIENCE_S) as answer:
            return bytes(answer.read())

    def _last_words(self) -> str:
        with contextlib.suppress(OSError, ValueError):
            return from_json(Problem, (self.folder / "termination").read_text("utf-8")).message
        return f"exit code {self.process.returncode}"


@contextlib.contextmanager
def running_shard(job: JobSpec, environ: Mapping[str, str], port_base: int, folder: Path) -> Iterator[ShardProcess]:
    """Run shard 0 of a job with one trainer until the context ends. Its files go to `folder`."""
    roster = ShardRoster(
        contract=CONTRACT_VERSION,
        counters=COUNTERS,
        index=0,
        incarnation=1,
        newest_incarnation=1,
        may_restore=True,
        floor_samples=0,
        anchor=None,
        trainers=1,
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
            yield ShardProcess(process, folder, port_base)
        finally:
            process.kill()


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
