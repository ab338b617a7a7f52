"""Restarts of a shard's process in the same pod, and spare pods; the test acts as the trainer.

Each push is applied once, bit for bit, at any moment of the kill.
"""

from __future__ import annotations

import random
import signal
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from cpr_contract.codec import to_json
from cpr_contract.env import KEEPER, MEMORY_DIR
from cpr_contract.reports import ExitCode, ShardState
from cpr_contract.roster import MAX_ROSTER_BYTES, ROSTER_PAGE, ROSTER_SIGNATURE, Counters, signature
from support.killed_shard import KilledInPushes
from support.shard_job import KEY, ShardProcess, shard_roster, small_job
from support.shard_scenario import BATCH, ShardScenario, push_through

pytestmark = pytest.mark.dist

POD = "small-spare-1"


@pytest.fixture
def memory() -> Iterator[Path]:
    """The memory of the pod, which survives restarts of its container."""
    with tempfile.TemporaryDirectory(prefix="cpr-memory-", dir="/dev/shm") as folder:
        yield Path(folder)


def end_container(scenario: ShardScenario) -> None:
    """Kill the supervisor, as the kernel does when the container runs out of memory; the working process ends, too."""
    server = scenario.shard.process.child
    scenario.shard.process.send(signal.SIGKILL)
    assert scenario.shard.end() == -signal.SIGKILL
    scenario.wait_for(lambda: not Path(f"/proc/{server}").exists())


@pytest.mark.parametrize("moment", ["before", "half", "after"])
def test_process_killed_in_a_push_restarts_with_it_applied_once(moment: str, tmp_path: Path) -> None:
    with ShardScenario(tmp_path, {KEEPER: "1"}) as scenario:
        scenario.start(KilledInPushes((5, 11), moment))
        scenario.join()
        push_through(scenario, *range(1, 15), cut=8)
        report = scenario.shard.wait_until(lambda report: report.lives == 3 and report.applied == (14,))
        assert (report.lost, report.restored_samples, report.restarts) == ((), 0, 0)
        assert report.row_updates is not None
        assert (report.row_updates.lost, report.row_updates.exact) == (0, True)
        scenario.assert_rows(scenario.expected(*range(1, 15)))


@pytest.mark.parametrize("strategy", ["Full", "MFU"])
def test_restarted_container_has_applied_each_push_once(strategy: str, tmp_path: Path, memory: Path) -> None:
    """It is killed right after a push was sent, before or after its application, or during a save."""
    rng = random.Random(strategy)
    with ShardScenario(tmp_path, {KEEPER: "1", MEMORY_DIR: str(memory)}, strategy=strategy) as scenario:

        def restart(step: int, at: int) -> None:
            if step == at:
                end_container(scenario)
                scenario.shard.run_again()

        scenario.start()
        scenario.join()
        last, lives = 0, 1
        for _ in range(2):
            fault = partial(restart, at=last + rng.randrange(2, 16))
            for first in range(last + 1, last + 21, 4):
                push_through(scenario, *range(first, first + 4), cut=first + 1, pushed=fault)
            last += 20
            lives = scenario.shard.wait_until(lambda report, before=lives: report.lives > before).lives
        report = scenario.shard.wait_until(lambda report: report.applied == (last,))
        assert (report.lost, report.restored_samples, report.incarnation) == ((), 0, 1)
        assert report.row_updates is not None
        assert (report.row_updates.lost, report.row_updates.exact) == (0, True)
        assert report.restarts == 2
        push_through(scenario, last + 1, cut=last + 1)
        scenario.wait_for(lambda: scenario.saved_step() == last + 1)
        scenario.shard.kill()
        (memory / "rows").unlink()
        scenario.start()  # in another pod: it has the last save only
        assert scenario.shard.wait_ready().restored_samples == BATCH * (last + 1)
        scenario.assert_rows(scenario.expected(*range(1, last + 2)))


def damage(path: Path) -> None:
    """Change the process's control block, in both copies."""
    data = bytearray(path.read_bytes())
    at = data.index(b'"generation"')
    while at >= 0:
        data[at + 1] ^= 1
        at = data.find(b'"generation"', at)
    path.write_bytes(data)


def test_damaged_memory_of_a_container_ends_the_pod(tmp_path: Path, memory: Path) -> None:
    """The exit code does not restart the container."""
    with ShardScenario(tmp_path, {KEEPER: "1", MEMORY_DIR: str(memory)}) as scenario:
        scenario.start()
        scenario.join()
        scenario.push(1, 2)
        end_container(scenario)
        damage(memory / "rows")
        scenario.shard.run_again()
        assert scenario.shard.end() == ExitCode.INTERNAL
        assert scenario.shard.termination()["reason"] == "GivenUp"


def test_stopped_pod_flushes_though_its_process_is_killed_before_it_reads_the_signal(tmp_path: Path) -> None:
    with ShardScenario(tmp_path, {KEEPER: "1"}) as scenario:
        scenario.start()
        scenario.join()
        scenario.push(1, 2, 3)
        scenario.shard.signal_server(signal.SIGSTOP)
        scenario.shard.process.send(signal.SIGTERM)
        scenario.shard.signal_server()
        assert scenario.shard.end() == ExitCode.FLUSHED
        assert scenario.shard.termination()["samples"] == BATCH * 3
        scenario.start()
        assert scenario.shard.wait_ready().restored_samples == BATCH * 3
        scenario.assert_rows(scenario.expected(1, 2, 3))


@pytest.fixture
def spare(tmp_path: Path) -> Iterator[ShardProcess]:
    """A warm spare with a supervisor."""
    roster = shard_roster(index=1, incarnation=3, newest_incarnation=3)
    process = ShardProcess.start_spare(tmp_path, small_job(tmp_path, shards=2), roster, CPR_KEEPER="1", CPR_POD=POD)
    try:
        process.wait_until(lambda report: report.state is ShardState.SPARE)
        yield process
    finally:
        process.kill()


def send(spare: ShardProcess, number: int, *, pod: str = POD, key: bytes = KEY, size: int | None = None) -> int:
    """Post the roster of incarnation 3 under this roster number; return the HTTP status."""
    counters = Counters(roster=number, group=1, generation=1)
    body = to_json(shard_roster(index=1, incarnation=3, newest_incarnation=3, counters=counters)).encode()
    headers = {ROSTER_SIGNATURE: signature(key, pod, body), "Content-Length": str(len(body) if size is None else size)}
    request = urllib.request.Request(spare.url(ROSTER_PAGE), body, headers, method="POST")  # noqa: S310 -- loopback
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_spare_becomes_a_shard_by_a_signed_roster_in_its_second_process(spare: ShardProcess) -> None:
    spare.signal_server()
    report = spare.wait_until(lambda report: report.state is ShardState.SPARE and report.lives == 2)
    assert (report.index, report.incarnation, report.applied, spare.status_of("/readyz")) == (-1, 0, (), 200)
    assert send(spare, 1, key=b"another") == 403
    assert send(spare, 1, pod="small-spare-2") == 403
    assert send(spare, 1, size=MAX_ROSTER_BYTES + 1) == 413
    assert spare.wait_until(lambda report: report.state is ShardState.SPARE).index == -1
    assert send(spare, 2) == 204
    report = spare.wait_ready()
    assert (report.index, report.incarnation, report.lives, report.counters.roster) == (1, 3, 2, 2)
    spare.give(shard_roster(index=1, incarnation=3, newest_incarnation=3))  # the file of roster 1 comes later
    assert send(spare, 3) == 204
    assert spare.wait_until(lambda report: report.counters.roster == 3).incarnation == 3


def test_superseded_spare_and_stopped_spare_end(spare: ShardProcess, tmp_path: Path) -> None:
    spare.give(shard_roster(index=1, incarnation=3, newest_incarnation=4))
    assert spare.end() == ExitCode.SUPERSEDED
    other = ShardProcess.start_spare(tmp_path, small_job(tmp_path), shard_roster(), CPR_KEEPER="1", CPR_POD=POD)
    try:
        other.wait_until(lambda report: report.state is ShardState.SPARE)
        other.process.send(signal.SIGTERM)
        assert other.end() == 128 + signal.SIGTERM
    finally:
        other.kill()
