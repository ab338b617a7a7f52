"""A job of real processes on this machine, with a tiny operator played by hand: rosters, kills, replacements."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cpr_contract import CONTRACT_VERSION, env
from cpr_contract.choices import Bits
from cpr_contract.codec import from_json, to_json
from cpr_contract.file_uris import page_url
from cpr_contract.model import ModelSpec, OptimizerSpec, SparseOptimizerSpec, TableSpec
from cpr_contract.reports import (
    RECORDED_HEADER,
    ExitCode,
    Problem,
    Recorded,
    Result,
    SaveRef,
    ShardReport,
    TrainerReport,
)
from cpr_contract.roster import Allowance, AnchorRef, Counters, Peer, ShardRoster, TrainerRoster, seal
from cpr_contract.spec import DataSpec, JobSpec, SnapshotSpec, StoreSpec
from cpr_operator.cluster.certificates import client_context
from cpr_operator.cluster.local.pod_folder import PortBlocks
from support.certificates import write_ca
from support.shard_job import SILENCE_S
from support.warm_start import HELD_AT, Main, Process, run

TIMEOUT_S = 300.0  # for two loaded cores; nothing here waits that long on its own


def small_job(folder: Path, *, samples: int, trainers: int = 1, shards: int = 2, batch_size: int = 100) -> JobSpec:
    tables = tuple(TableSpec(f"t{i}", rows) for i, rows in enumerate((2000, 1200, 800, 500)))
    return JobSpec(
        contract=CONTRACT_VERSION,
        job_uid="5f1e",
        job_name="small",
        model=ModelSpec(
            8, (16, 8), (16, 1), tables, OptimizerSpec("Adagrad", 0.05), SparseOptimizerSpec("RowWiseAdagrad", 0.02)
        ),
        data=DataSpec("Synthetic", None, None, samples, batch_size, 11, 0),
        trainers=trainers,
        shards=shards,
        snapshots=SnapshotSpec(StoreSpec(f"file://{folder}/store", None, "bucket", ""), 3, 30.0, None),
        silence_s=SILENCE_S,
    )


def small_steps(job: JobSpec) -> JobSpec:
    """The job by SGD in small steps, so that its AUC hardly depends on the order of several trainers' pushes.

    Several gradients of a row add up in any order then. Rows read a whole step late move the AUC by less than 0.0004.
    """
    dense, sparse = OptimizerSpec("SGD", 0.1), SparseOptimizerSpec("SGD", 1.0)
    return replace(job, model=replace(job.model, dense_optimizer=dense, sparse_optimizer=sparse))


@dataclass
class Member:
    """One pod: a process, its roster file, its termination file."""

    role: str
    index: int
    incarnation: int
    host: str
    port_base: int
    folder: Path
    process: Process | None = None
    client: ssl.SSLContext | None = None

    @property
    def name(self) -> str:
        return f"{self.role}/{self.index}"

    @property
    def peer(self) -> Peer:
        return Peer(self.index, self.incarnation, self.host, self.port_base)

    @property
    def termination_message(self) -> str:
        return (self.folder / "termination").read_text()

    @property
    def problem(self) -> Problem:
        return from_json(Problem, self.termination_message)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def page(self, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
        url = page_url(self.host, self.port_base + env.HTTP_PORT, path)
        if self.client is not None:
            url = url.replace("http:", "https:")
        request = urllib.request.Request(url, headers=dict(headers or {}))  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=30, context=self.client) as answer:  # noqa: S310
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def write_roster(self, roster: ShardRoster | TrainerRoster) -> None:
        temporary = self.folder / "roster.new"
        temporary.write_text(to_json(roster))
        temporary.rename(self.folder / "roster.json")


@dataclass
class LocalJob:
    """All members of a job. `interval_s` goes into the rosters; `stopped` are the roles that they stop.

    With `memory` a folder of each member outlives its container. `stored_bits` are those of a value in a save.
    """

    job: JobSpec
    folder: Path
    interval_s: float = 0.5
    environ: dict[str, str] = field(default_factory=dict)
    memory: bool = False
    host: str = "127.0.0.1"
    stored_bits: Bits = 32

    def __post_init__(self) -> None:
        (self.folder / "key").write_bytes(b"a key of this test")
        self._client: ssl.SSLContext | None = None  # of the operator, if the job is encrypted
        if self.environ.get(env.ENCRYPTION) == "TLS":
            identity = write_ca(self.folder)
            self._client = client_context((self.folder / env.CA_NAME).read_text(), identity)
            self._client.check_hostname = False  # the pages are those of an address
        self._ports = PortBlocks(random.Random())
        self.counters = Counters(roster=0, group=1, generation=1)
        self.leader = 0
        self.anchor: AnchorRef | None = None
        self.recorded = Recorded(0, "", 0)
        self.dense_floor_samples = 0
        self.may_restore = True
        self.meet = False
        self.stopped: frozenset[str] = frozenset()
        self.allowances: tuple[Allowance, ...] = ()
        self.held_at = 0
        self.all_members: list[Member] = []
        self._trainer: Main = run
        self.shards = [self._member(env.ROLE_SHARD, i, 1) for i in range(self.job.shards)]
        self.trainers = [self._member(env.ROLE_TRAINER, i, 1) for i in range(self.job.trainers)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for member in self.all_members:
            if member.process is not None:
                member.process.send(signal.SIGKILL)
                member.process.wait(TIMEOUT_S)
        self._ports.close()
        if error is not None:
            for member in self.all_members:
                print(f"--- {member.name}-{member.incarnation}", (member.folder / "log").read_text()[-3000:])

    def start(self, trainer: Main = run) -> None:
        """Start all members, the trainers and their successors by this function."""
        self._trainer = trainer
        self.publish()
        for member in (*self.shards, *self.trainers):
            self._run(member)

    def hold_at(self, step: int) -> None:
        """Let trainers that were started by `run_held` train up to this step."""
        self.held_at = step
        temporary = self.folder / "held-at.new"
        temporary.write_text(str(step), "ascii")
        temporary.rename(self.folder / "held-at")

    def publish(self, **counters: int) -> None:
        """Write all members' rosters, with the next roster number."""
        self.counters = replace(self.counters, roster=self.counters.roster + 1, **counters)
        for member in self.shards:
            member.write_roster(self._shard_roster(member))
        for member in self.trainers:
            member.write_roster(self.trainer_roster(member))

    def fencing_roster(self, member: Member) -> ShardRoster:
        """Return the roster by which a replaced shard is superseded."""
        newest = self.shards[member.index].incarnation
        return replace(self._shard_roster(member), newest_incarnation=newest)

    def kill(self, member: Member, number: signal.Signals = signal.SIGKILL) -> None:
        assert member.process is not None
        member.process.send(number)

    def server_of(self, member: Member) -> int:
        """Return the pid of the process that a member's supervisor has begun last."""
        assert member.process is not None
        return member.process.child

    def kill_server(self, member: Member, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to that process alone; the supervisor continues."""
        os.kill(self.server_of(member), number)

    def replace_shard(self, index: int) -> Member:
        """Start the next incarnation of a shard."""
        member = self.shards[index] = self._member(env.ROLE_SHARD, index, self.shards[index].incarnation + 1)
        self.publish()
        self._run(member)
        return member

    def start_spare(self) -> Member:
        """Start a shard's process that no roster names yet."""
        spare = self._member("spare", len(self.all_members), 0)
        spare.role = env.ROLE_SHARD
        self._run(spare)
        return spare

    def promote(self, spare: Member, index: int) -> None:
        """Let a spare be the next incarnation of a shard."""
        spare.index, spare.incarnation = index, self.shards[index].incarnation + 1
        self.shards[index] = spare
        self.publish()

    def replace_trainers(self, *indices: int, leader: int) -> None:
        """Start the next incarnations of these trainers, in a new group."""
        for index in indices:
            self.trainers[index] = self._member(env.ROLE_TRAINER, index, self.trainers[index].incarnation + 1)
        self.leader = leader
        self.publish(group=self.counters.group + 1)
        for index in indices:
            self._run(self.trainers[index])

    def drain_only_trainer(self) -> None:
        """Stop the only trainer, which saves, and start its next incarnation, which continues from that save."""
        first = self.trainers[0]
        self.stopped = frozenset({env.ROLE_TRAINER})
        self.publish()
        assert self.wait_exit(first) == ExitCode.FLUSHED
        self.stopped = frozenset()
        self.dense_floor_samples = from_json(SaveRef, first.termination_message).samples
        self.replace_trainers(0, leader=0)

    def roll_back(self, anchor: AnchorRef | None) -> None:
        """Roll all members back to `anchor`, in a new generation."""
        self.anchor = anchor
        self.publish(generation=self.counters.generation + 1)

    def reach(self, samples: int) -> None:
        """Wait until the leader has trained that many samples."""
        self.wait_for(lambda: self.trainer(self.leader).samples >= samples, f"{samples} samples are trained")

    def trainer(self, index: int = 0) -> TrainerReport:
        """The trainer's report, which counts as recorded when it is asked for the next time."""
        member, key = self.trainers[index], (self.folder / "key").read_bytes()
        headers = {RECORDED_HEADER: seal(key, member.folder.name, to_json(self.recorded))}
        report = from_json(TrainerReport, member.page("/status", headers)[1])
        if index == self.leader and report.anchors:
            self.recorded = Recorded(report.counters.generation, report.anchors[-1].key, 0)
        return report

    def shard(self, index: int) -> ShardReport:
        return from_json(ShardReport, self.shards[index].page("/status")[1])

    def wait_for(self, what: Callable[[], Any], why: str) -> Any:
        """Return the first true value of `what`; a page that does not answer yet counts as no."""
        end = time.monotonic() + TIMEOUT_S
        while time.monotonic() < end:
            try:
                if value := what():
                    return value
            except (OSError, http.client.HTTPException, json.JSONDecodeError):
                pass
            time.sleep(0.02)
        raise AssertionError(f"not in {TIMEOUT_S} s: {why}")

    def wait_exit(self, member: Member) -> int:
        assert member.process is not None
        return member.process.wait(TIMEOUT_S)

    def result(self) -> AnchorRef:
        """Wait until all trainers are done; return the final anchor."""
        codes = [self.wait_exit(member) for member in self.trainers]
        assert codes == [0] * len(codes), codes
        return from_json(Result, self.trainers[self.leader].termination_message).anchor

    def _member(self, role: str, index: int, incarnation: int) -> Member:
        folder = self.folder / f"{role}-{index}-{incarnation}"
        folder.mkdir()
        (folder / "log").touch()
        member = Member(role, index, incarnation, self.host, self._ports.take(), folder, client=self._client)
        self.all_members.append(member)
        return member

    def restart(self, member: Member) -> None:
        """Begin a member's container again, as a kubelet does: all in its folder is still there."""
        self._run(member)

    def _run(self, member: Member) -> None:
        variables = {
            env.SPEC: to_json(self.job),
            env.ROSTER_FILE: str(member.folder / "roster.json"),
            env.KEY_FILE: str(self.folder / "key"),
            env.POD: member.folder.name,
            env.ADDRESS: self.host,
            env.PORT_BASE: str(member.port_base),
            env.SCRATCH_DIR: str(member.folder),
            env.TERMINATION_FILE: str(member.folder / "termination"),
            "OMP_NUM_THREADS": "1",
            HELD_AT: str(self.folder / "held-at"),
        }
        if self.memory:
            variables[env.MEMORY_DIR] = str(member.folder)
        main = self._trainer if member.role == env.ROLE_TRAINER else run
        member.process = Process([member.role], variables | self.environ, member.folder / "log", main)

    def _shard_roster(self, member: Member) -> ShardRoster:
        return ShardRoster(
            contract=CONTRACT_VERSION,
            counters=self.counters,
            index=member.index,
            incarnation=member.incarnation,
            newest_incarnation=member.incarnation,
            may_restore=self.may_restore,
            floor_samples=0,
            anchor=self.anchor,
            trainers=self.job.trainers,
            stop=env.ROLE_SHARD in self.stopped,
            stored_bits=self.stored_bits,
            shards=tuple(shard.peer for shard in self.shards) if self.job.parity_shards else (),
        )

    def trainer_roster(self, member: Member) -> TrainerRoster:
        return TrainerRoster(
            contract=CONTRACT_VERSION,
            counters=self.counters,
            index=member.index,
            incarnation=member.incarnation,
            newest_incarnation=member.incarnation,
            leader=self.leader,
            trainers=tuple(trainer.peer for trainer in self.trainers),
            shards=tuple(shard.peer for shard in self.shards),
            anchor=self.anchor,
            dense_floor_samples=self.dense_floor_samples,
            interval_s=self.interval_s,
            stop=env.ROLE_TRAINER in self.stopped,
            meet=self.meet,
            allowances=self.allowances,
        )
