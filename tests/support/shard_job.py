"""Small jobs and rosters for tests of shards and of the exchange, and shard processes that serve them."""

from __future__ import annotations

import json
import os
import random
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cpr_contract import CONTRACT_VERSION, env
from cpr_contract.codec import from_json, to_json
from cpr_contract.model import ModelSpec, OptimizerSpec, SparseOptimizerSpec, TableSpec
from cpr_contract.reports import ShardReport, ShardState
from cpr_contract.roster import Counters, Peer, ShardRoster, TrainerRoster
from cpr_contract.spec import DataSpec, JobSpec, SnapshotSpec, StoreSpec
from cpr_operator.cluster.local.pod_folder import PortBlocks
from support import warm_start
from support.warm_start import Main, Process

KEY = b"a key of this test"
HOST = "127.0.0.1"
TIMEOUT_S = 240.0
#: On a loaded machine a process that is well may get no turn for seconds.
SILENCE_S = 60.0


def small_job(
    folder: Path, *, shards: int = 1, trainers: int = 1, rows: tuple[int, ...] = (50, 30), dim: int = 4
) -> JobSpec:
    tables = tuple(TableSpec(f"t{i}", n) for i, n in enumerate(rows))
    adagrad = SparseOptimizerSpec("RowWiseAdagrad", 0.1)
    return JobSpec(
        contract=CONTRACT_VERSION,
        job_uid="0b5c",
        job_name="small",
        model=ModelSpec(dim, (dim,), (1,), tables, OptimizerSpec("SGD", 0.1), adagrad),
        data=DataSpec("Synthetic", None, None, 1000, 10, 7, 0),
        trainers=trainers,
        shards=shards,
        snapshots=SnapshotSpec(StoreSpec(f"file://{folder}/store", None, "bucket", ""), 2, 30.0, None),
        silence_s=SILENCE_S,
    )


def hasty(job: JobSpec) -> JobSpec:
    """The job of a test that waits until a process that hangs is missed."""
    return replace(job, silence_s=5.0)


def shard_roster(**changes: Any) -> ShardRoster:
    roster = ShardRoster(
        contract=CONTRACT_VERSION,
        counters=Counters(roster=1, group=1, generation=1),
        index=0,
        incarnation=1,
        newest_incarnation=1,
        may_restore=True,
        floor_samples=0,
        anchor=None,
        trainers=1,
    )
    return replace(roster, **changes)


def trainer_roster(shards: tuple[Peer, ...], *, roster: int = 1, generation: int = 1) -> TrainerRoster:
    return TrainerRoster(
        contract=CONTRACT_VERSION,
        counters=Counters(roster=roster, group=1, generation=generation),
        index=0,
        incarnation=1,
        newest_incarnation=1,
        leader=0,
        trainers=(),
        shards=shards,
        anchor=None,
        dense_floor_samples=0,
        interval_s=60.0,
    )


@dataclass
class ShardProcess:
    """A shard as a process of its own, with a hand-written roster."""

    folder: Path
    process: Process
    peer: Peer
    ports: PortBlocks
    run: Callable[[Mapping[str, str]], Process]

    @classmethod
    def start(
        cls, folder: Path, job: JobSpec, roster: ShardRoster, main: Main = warm_start.run, **environ: str
    ) -> ShardProcess:
        shard = cls.start_spare(folder, job, roster, main, **environ)
        shard.give(roster)
        return shard

    @classmethod
    def start_spare(
        cls, folder: Path, job: JobSpec, roster: ShardRoster, main: Main = warm_start.run, **environ: str
    ) -> ShardProcess:
        """Start one that has no roster yet; `roster` is what it may be given later."""
        folder = folder / f"shard-{roster.index}-{roster.incarnation}"
        folder.mkdir()
        (folder / "key").write_bytes(KEY)
        ports = PortBlocks(random.Random())
        base = ports.take()
        environment = {
            env.SPEC: to_json(job),
            env.ROSTER_FILE: str(folder / "roster.json"),
            env.KEY_FILE: str(folder / "key"),
            env.ADDRESS: HOST,
            env.PORT_BASE: str(base),
            env.SCRATCH_DIR: str(folder),
            env.TERMINATION_FILE: str(folder / "termination"),
            "OMP_NUM_THREADS": "1",
            **environ,
        }

        def run(changes: Mapping[str, str]) -> Process:
            return Process(["shard"], {**environment, **changes}, folder / "log", main)

        return cls(folder, run({}), Peer(roster.index, roster.incarnation, HOST, base), ports, run)

    def run_again(self, **changes: str) -> None:
        """Begin its container once more, as a kubelet does: what was in its folders is there."""
        self.process = self.run(changes)

    def give(self, roster: ShardRoster) -> None:
        """Publish a roster, as the kubelet does: whole or not at all."""
        draft = self.folder / "draft.json"
        draft.write_text(to_json(roster))
        draft.rename(self.folder / "roster.json")

    def report(self) -> ShardReport | None:
        """Return its answer on /status; None if it does not."""
        try:
            with urllib.request.urlopen(self.url("/status"), timeout=5) as answer:  # noqa: S310 -- loopback
                return from_json(ShardReport, answer.read())
        except OSError:
            return None

    def url(self, page: str) -> str:
        return f"http://{HOST}:{self.peer.port_base + env.HTTP_PORT}{page}"

    def status_of(self, page: str) -> int:
        try:
            with urllib.request.urlopen(self.url(page), timeout=60) as answer:  # noqa: S310 -- loopback
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def wait_until(self, condition: Callable[[ShardReport], bool]) -> ShardReport:
        """Return the first report that meets a condition."""
        deadline = time.monotonic() + TIMEOUT_S
        report = None
        while time.monotonic() < deadline and self.process.exit_code is None:
            report = self.report()
            if report is not None and condition(report):
                return report
            time.sleep(0.02)
        raise AssertionError(f"last report {report}, exit code {self.process.exit_code}")

    def wait_ready(self) -> ShardReport:
        return self.wait_until(lambda report: report.state is ShardState.READY)

    def end(self) -> int:
        """Wait for the process to end by itself; its exit code, negative for a signal."""
        return self.process.wait(TIMEOUT_S)

    def termination(self) -> Any:
        return json.loads((self.folder / "termination").read_text())

    def signal_server(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the process alone that the shard's supervisor has forked last."""
        os.kill(self.process.child, number)

    def kill(self) -> None:
        self.process.send(signal.SIGKILL)
        self.process.wait(TIMEOUT_S)
        self.ports.close()
        print((self.folder / "log").read_text())
