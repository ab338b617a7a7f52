"""Faults of a job's members at given steps, and the run of a job with some of them.

`support.warm_start.run_held` keeps trainers from passing a step before its fault, so that no test depends on the speed
of the machine.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cpr_contract.codec import from_json
from cpr_contract.env import ENCRYPTION, KEEPER, ROLE_SHARD, ROLE_TRAINER
from cpr_contract.reports import ExitCode, Result, ShardReport, ShardState
from cpr_contract.spec import JobSpec
from cpr_trainer.checkpoint.format.records import read_anchor
from cpr_trainer.store import open_store
from cpr_trainer.trainer.save_coordinator import LEAD_STEPS
from processes.jobs import STEPS
from support.local_job import LocalJob
from support.warm_start import run_held

#: A context that injects a fault at its start, with the leader at its step, and ends when the job has recovered.
Fault = Callable[[LocalJob], AbstractContextManager[None]]
#: Trainers may take that many steps before they are held, so a fault may hit them in a step.
SLACK = 5
NEVER_S, OFTEN_S = 3600.0, 0.05
SUPERVISED_PODS = {KEEPER: "1"}
ENCRYPTED = {ENCRYPTION: "TLS"}
REPLAY = {"replay_bytes": 64 << 20}


@dataclass(frozen=True)
class Row:
    """A job by its name, with changes to its spec, and the faults with their steps."""

    name: str
    job: str
    faults: tuple[tuple[int, Fault], ...]
    spec: Mapping[str, Any] = field(default_factory=dict)
    interval_s: float = NEVER_S
    environ: Mapping[str, str] = field(default_factory=dict)
    memory: bool = False


def run_without_loss(row: Row, job: JobSpec, folder: Path, last: int = STEPS) -> Result:
    """Run the job of a row, which ends at step `last`, through the faults; check that no shard and no anchor lost any
    sample or row update.
    """
    stops = [step for step, _ in row.faults] + [last - 2 * SLACK]
    with LocalJob(job, folder, row.interval_s, dict(row.environ), row.memory) as running:
        running.hold_at(stops[0] + SLACK)
        running.start(run_held)
        for place, (step, fault) in enumerate(row.faults):
            reach(running, step)
            with fault(running):
                running.hold_at(stops[place + 1] + SLACK)
        running.hold_at(STEPS)
        anchor = running.result()
        for index in range(job.shards):
            report = running.shard(index)
            assert report.lost == ()
            assert report.row_updates is not None
            assert (report.row_updates.lost, report.row_updates.exact) == (0, True)
        result = from_json(Result, running.trainers[running.leader].termination_message)
    assert result.lost == ()
    assert read_anchor(open_store(job.snapshots.store, None, None), anchor).lost == ((),) * job.shards
    return result


def reach(running: LocalJob, step: int) -> None:
    """Wait until a shard has applied this step of every trainer. Without lockstep the leader's report may be older."""
    running.wait_for(lambda: min(running.shard(0).applied, default=0) >= step, f"step {step} is trained")


def caught_up(running: LocalJob, index: int) -> ShardReport:
    running.wait_for(lambda: running.shard(index).resumed_samples is not None, "all pushes are repeated")
    return running.shard(index)


def kill(running: LocalJob, *shards: int) -> None:
    """Kill whole pods of shards together, and wait for their ends."""
    for index in shards:
        running.kill(running.shards[index])
    for index in shards:
        running.wait_exit(running.shards[index])


def step_past_cuts(running: LocalJob) -> None:
    """Train some steps after the last cut: a shard killed at the step of its save would replay nothing."""
    interval_s, running.interval_s = running.interval_s, NEVER_S
    running.publish()
    roster = running.counters.roster
    running.wait_for(lambda: running.trainer(running.leader).counters.roster == roster, "the leader plans no more cuts")
    last = running.held_at + LEAD_STEPS + 1  # a cut that is planned by now is LEAD_STEPS away at most
    running.hold_at(last)
    reach(running, last)
    running.interval_s = interval_s


def killed_shards(*shards: int, times: int = 1, rebuilt: bool | None = None) -> Fault:
    """Whole pods of shards are killed together, and their successors again during replay.

    Checks whether they were `rebuilt` from parity; None: either.
    """

    @contextmanager
    def fault(running: LocalJob) -> Iterator[None]:
        if running.interval_s < NEVER_S:
            step_past_cuts(running)
        for _ in range(times):
            kill(running, *shards)
            for index in shards:
                running.replace_shard(index)
            running.wait_for(
                lambda: (report := running.shard(shards[0])).replayed_samples or report.rebuilt,
                "the successor has some rows",
            )
        yield
        reports = [caught_up(running, index) for index in shards]
        if rebuilt is None:
            assert all(report.replayed_samples > 0 and report.replayed_in_order for report in reports)
        else:
            assert [report.rebuilt for report in reports] == [rebuilt] * len(reports)

    return fault


def killed_processes(role: str, *indices: int) -> Fault:
    """Working processes are killed; their supervisors restart them."""

    @contextmanager
    def fault(running: LocalJob) -> Iterator[None]:
        members, report = (running.shards, running.shard) if role == ROLE_SHARD else (running.trainers, running.trainer)
        before = {index: (report(index).lives, members[index].process) for index in indices}
        for index in indices:
            running.kill_server(members[index])
        yield
        for index, (lives, supervisor) in before.items():
            running.wait_for(lambda i=index, n=lives: report(i).lives == n + 1, "the next process begins")
            assert members[index].process is supervisor

    return fault


@contextmanager
def killed_shard_and_trainer_process(running: LocalJob) -> Iterator[None]:
    """A trainer's buffered pushes survive the death of its process."""
    kill(running, 1)
    with killed_processes(ROLE_TRAINER, 0)(running):
        running.replace_shard(1)
        yield
    assert caught_up(running, 1).replayed_samples > 0


@contextmanager
def ended_container(running: LocalJob) -> Iterator[None]:
    """The supervisor of a shard dies, and its process with it; the container starts again with its pod's memory."""
    member, before = running.shards[0], running.shard(0)
    server = running.server_of(member)
    running.kill(member)
    running.wait_exit(member)
    running.wait_for(lambda: not Path(f"/proc/{server}").exists(), "the process has ended")
    running.restart(member)
    yield
    running.wait_for(lambda: running.shard(0).lives > before.lives, "the next process begins")
    report = running.shard(0)
    assert (report.incarnation, report.restarts, report.restored_samples) == (1, 1, 0)
    assert len(report.in_place_s) == 1


@contextmanager
def drained_shard(running: LocalJob) -> Iterator[None]:
    """The shard saves everything, and its successor continues from there."""
    running.kill(running.shards[1], signal.SIGTERM)
    assert running.wait_exit(running.shards[1]) == ExitCode.FLUSHED
    running.replace_shard(1)
    yield
    assert (caught_up(running, 1).restored_samples or 0) > 0


@contextmanager
def drained_trainer(running: LocalJob) -> Iterator[None]:
    """The only trainer saves the dense state, and its successor continues from there."""
    running.drain_only_trainer()
    yield
    running.wait_for(lambda: running.trainer().samples > 0, "the next trainer continues")


@contextmanager
def superseded_shard(running: LocalJob) -> Iterator[None]:
    """A live shard is replaced, and ends once it has read the roster."""
    old = running.shards[1]
    running.replace_shard(1)
    old.write_roster(running.fencing_roster(old))
    assert running.wait_exit(old) == ExitCode.SUPERSEDED
    yield
    caught_up(running, 1)


def promoted_spare(index: int) -> Fault:
    """A warm spare replaces a killed shard."""

    @contextmanager
    def fault(running: LocalJob) -> Iterator[None]:
        spare = running.start_spare()
        running.wait_for(
            lambda: from_json(ShardReport, spare.page("/status")[1]).state is ShardState.SPARE, "the spare is warm"
        )
        kill(running, index)
        running.promote(spare, index)
        yield
        assert caught_up(running, index).rebuilt

    return fault


def rolled_back(*, to_anchor: bool = True, kills: str = "") -> Fault:
    """All members roll back in place, to an anchor or to step 0; a member of role `kills` is killed and replaced."""

    @contextmanager
    def fault(running: LocalJob) -> Iterator[None]:
        anchor = None
        if to_anchor:
            anchor = running.wait_for(lambda: running.trainer().anchors, "there is an anchor")[-1]
            assert anchor.samples > 0
        if kills == ROLE_TRAINER:
            running.kill(running.trainers[0])
            running.wait_exit(running.trainers[0])
        elif kills == ROLE_SHARD:
            kill(running, 1)
        generation, living = running.counters.generation + 1, [member.process for member in running.all_members]
        running.roll_back(anchor)
        if kills == ROLE_TRAINER:
            running.replace_trainers(0, leader=0)
        elif kills == ROLE_SHARD:
            running.replace_shard(1)
        yield
        for rank in range(running.job.trainers):
            running.wait_for(lambda r=rank: running.trainer(r).counters.generation == generation, "the trainer is back")
        assert [member.process for member in running.all_members[: len(living)]] == living, "in place"

    return fault


def killed_trainer(victim: int) -> Fault:
    """The pod of a trainer is replaced. If it was the leader, the other one becomes the leader."""

    @contextmanager
    def fault(running: LocalJob) -> Iterator[None]:
        running.kill(running.trainers[victim])
        running.wait_exit(running.trainers[victim])
        leader = 1 - victim if victim == running.leader else running.leader
        running.replace_trainers(victim, leader=leader)
        samples_before = running.trainer(leader).samples
        yield
        running.wait_for(lambda: running.trainer(victim).samples > samples_before, "the new one trains")

    return fault


def stopped_trainer(victim: int) -> Fault:
    """A trainer without lockstep is stopped; the other continues without it."""

    @contextmanager
    def fault(running: LocalJob) -> Iterator[None]:
        running.wait_for(lambda: running.trainer(1).sync_gap, "copies are averaged")
        running.kill(running.trainers[victim], signal.SIGSTOP)
        yield
        behind = running.shard(0).applied[victim]
        running.wait_for(lambda: running.shard(0).applied[1 - victim] > behind + 50, "the other continues")
        running.kill(running.trainers[victim], signal.SIGCONT)

    return fault


@contextmanager
def killed_trainers_and_shard(running: LocalJob) -> Iterator[None]:
    """Ranks go back to the rows of the shard, which was never saved; the other shard drops repeated pushes."""
    running.wait_for(lambda: (save := running.trainer().dense_save) and save.samples > 0, "a dense state is saved")
    for member in (*running.trainers, running.shards[0]):
        running.kill(member)
        running.wait_exit(member)
    running.replace_shard(0)
    running.replace_trainers(0, 1, leader=0)
    yield


def with_parity(fault: Fault) -> Fault:
    """Return the fault, injected once parity has all updates of the shards."""

    @contextmanager
    def later(running: LocalJob) -> Iterator[None]:
        samples = running.trainer().samples
        for index in range(len(running.shards)):
            running.wait_for(lambda i=index: (running.shard(i).protected_samples or 0) >= samples, "parity has it")
        with fault(running):
            yield

    return later


def replace_by_file(store: Path, elsewhere: Path) -> None:
    """Move the folder of a store; a file in its place prevents writers from creating it again."""
    store.rename(elsewhere)
    while not store.is_file():
        with suppress(IsADirectoryError):  # a write has created the folder before the file, at any time until `touch`
            store.touch()
        if store.is_dir():
            shutil.rmtree(store, ignore_errors=True)


def without_store(fault: Fault) -> Fault:
    """Return the fault, without a store until the job has recovered."""

    @contextmanager
    def without(running: LocalJob) -> Iterator[None]:
        store, elsewhere = running.folder / "store", running.folder / "elsewhere"
        replace_by_file(store, elsewhere)
        with fault(running):
            yield
        store.unlink()
        elsewhere.rename(store)

    return without
