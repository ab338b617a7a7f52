"""The last output of killed processes: in the store, with their incarnation, and never in the way of a recovery."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cpr_contract.env import KEEPER, MEMORY_DIR, ROLE_SHARD, ROLE_TRAINER
from cpr_contract.history import OUTPUT_BYTES, ProcessId, output_key
from cpr_contract.reports import ExitCode
from cpr_operator.cli.app import app
from support.hanging_history import Printing, WithHangingHistory, hanging, run_held_until_stored
from support.local_job import LocalJob, small_job
from support.shard_scenario import BATCH, ShardScenario, push_through

pytestmark = pytest.mark.dist


def output_of(scenario: ShardScenario, incarnation: int, process: int) -> Path:
    return scenario.store / output_key(ProcessId(scenario.job.job_uid, ROLE_SHARD, 0, incarnation, process))


def printed(store: Path, *options: str) -> str:
    """Return what `cprjob logs` prints of a store in a folder."""
    result = CliRunner().invoke(app, ["logs", f"file://{store}", *options])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_killed_processes_leave_their_last_output_in_the_store(tmp_path: Path) -> None:
    job = small_job(tmp_path, samples=4000)
    store = tmp_path / "store" / "bucket"
    with LocalJob(job, tmp_path, environ={KEEPER: "1"}) as running:
        running.hold_at(10)
        running.start(run_held_until_stored)
        running.reach(1000)
        shard, trainer = running.shards[1], running.trainers[0]
        running.kill_server(shard)
        running.kill_server(trainer)
        running.wait_for(lambda: running.shard(1).lives == 2, "the shard has another process")
        running.hold_at(20)
        running.reach(2000)
        keys = {
            ROLE_SHARD: store / output_key(ProcessId(job.job_uid, ROLE_SHARD, 1, 1, 1)),
            ROLE_TRAINER: store / output_key(ProcessId(job.job_uid, ROLE_TRAINER, 0, 1, 1)),
        }
        running.wait_for(lambda: all(path.exists() for path in keys.values()), "both outputs are stored")
        for member, path in ((shard, keys[ROLE_SHARD]), (trainer, keys[ROLE_TRAINER])):
            *lines, end = path.read_text().splitlines()
            assert end == "process 1 of this pod ended by SIGKILL"
            assert lines
            assert set(lines) <= set(member.log.splitlines()), "the container's log has all of it"
        running.hold_at(40)
        running.result()
    assert printed(store, "--role", "shard", "--index", "1", "--incarnation", "1").startswith(
        keys[ROLE_SHARD].read_text()
    )
    newest = printed(store, "--job", job.job_uid, "--previous")
    assert newest.rstrip().endswith("process 2 of this pod ended with exit code 0")


def test_recovery_does_not_wait_for_a_store_that_hangs(tmp_path: Path) -> None:
    """The shard continues in its pod, which then ends by three crashes; another pod takes its place."""
    with ShardScenario(tmp_path, {KEEPER: "1"}) as scenario:
        scenario.start(WithHangingHistory())
        scenario.join()
        scenario.cut(1, 2)
        for lives in (2, 3):
            scenario.shard.signal_server()
            scenario.shard.wait_until(lambda report, lives=lives: report.lives == lives)
            push_through(scenario, lives + 1, cut=2)
            scenario.wait_for(lambda begun=lives - 1: len(hanging(scenario.shard.folder)) == begun)
        scenario.shard.signal_server()
        assert scenario.shard.end() == ExitCode.INTERNAL
        scenario.start(WithHangingHistory())
        assert scenario.shard.wait_ready().restored_samples == BATCH * 2
        scenario.assert_rows(scenario.expected(1, 2))


def test_stopped_pod_ends_though_the_store_hangs(tmp_path: Path) -> None:
    with ShardScenario(tmp_path, {KEEPER: "1"}) as scenario:
        scenario.start(WithHangingHistory())
        scenario.join()
        scenario.push(1)
        scenario.shard.process.send(signal.SIGTERM)
        assert scenario.shard.end() == ExitCode.FLUSHED
        scenario.wait_for(lambda: not hanging(scenario.shard.folder))


def test_storing_an_output_ends_after_a_while(tmp_path: Path) -> None:
    with ShardScenario(tmp_path, {KEEPER: "1"}) as scenario:
        scenario.start(WithHangingHistory(expires=True))
        scenario.join()
        scenario.shard.signal_server()
        scenario.wait_for(lambda: any(scenario.shard.folder.glob("hanging-*")))
        scenario.wait_for(lambda: not hanging(scenario.shard.folder))
        assert not output_of(scenario, 1, 1).exists()


def test_output_beyond_the_bound_is_whole_in_the_log_and_cut_in_the_store(tmp_path: Path) -> None:
    count = 2 * OUTPUT_BYTES // len("line 0000000\n")
    with ShardScenario(tmp_path, {KEEPER: "1"}) as scenario:
        scenario.start(Printing(count))
        scenario.join()
        scenario.shard.signal_server()
        scenario.wait_for(output_of(scenario, 1, 1).exists)
        text = output_of(scenario, 1, 1).read_text()
        assert OUTPUT_BYTES - 200 < len(text) <= OUTPUT_BYTES
        assert f"line {count - 1:07d}\n" in text
        log = (scenario.shard.folder / "log").read_text()
        assert [line for line in log.splitlines() if line.startswith("line ")][:count] == [
            f"line {number:07d}" for number in range(count)
        ]


def test_next_container_stores_the_output_of_the_last(tmp_path: Path) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="cpr-memory-", dir="/dev/shm") as memory,
        ShardScenario(tmp_path, {KEEPER: "1", MEMORY_DIR: memory}) as scenario,
    ):
        scenario.start()
        scenario.join()
        server = scenario.shard.process.child
        scenario.shard.process.send(signal.SIGKILL)
        scenario.shard.end()
        scenario.wait_for(lambda: not Path(f"/proc/{server}").exists())
        scenario.shard.run_again()
        scenario.wait_for(output_of(scenario, 1, 1).exists)
        *lines, end = output_of(scenario, 1, 1).read_text().splitlines()
        assert end == "process 1 of this pod ended with its container"
        assert any("is shard 0 of generation 1, incarnation 1" in line for line in lines)
