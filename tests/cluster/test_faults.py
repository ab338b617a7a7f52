"""Faults of processes that the cluster's scripts inject, without the cluster: on processes of the test's own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster.harness import until

HERE = Path(__file__).parent
#: Two threads count as they run, each in a file of its own.
COUNTING = """
import sys, threading, time
def count(path):
    for n in range(10**6):
        open(path, "w").write(str(n))
        time.sleep(0.01)
threading.Thread(target=count, args=(sys.argv[2],), daemon=True).start()
count(sys.argv[1])
"""
#: It joins a group, takes memory there, and stays.
SLEEPING = """
import sys, time
open(sys.argv[1], "w").write("0")
kept = bytearray(b"x" * (32 << 20))
print(flush=True)
time.sleep(600)
"""
MEMORY = Path("/sys/fs/cgroup/memory")

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@contextmanager
def running(*command: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("thread", [0, 1])
def test_one_thread_is_stuck_while_the_other_runs_and_goes_on_later(tmp_path: Path, thread: int) -> None:
    counts = [tmp_path / "main", tmp_path / "other"]

    def goes_on(index: int) -> bool:
        before = _number(counts[index])
        until("it counts on", lambda: _number(counts[index]) > before + 5, 20, every_s=0.01)
        return True

    with running("-c", COUNTING, *counts) as process:
        assert goes_on(0)
        assert goes_on(1)
        with running(HERE / "stick.py", str(process.pid), str(thread)):
            until("it is stuck", lambda: _state(process.pid, thread) == "t", 20, every_s=0.01)
            stands = _number(counts[thread])
            assert goes_on(1 - thread)
            assert _number(counts[thread]) == stands
        assert goes_on(thread)


def _number(path: Path) -> int:
    return int((path.exists() and path.read_text()) or -1)


def _state(pid: int, thread: int) -> str:
    stat = sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda entry: int(entry.name))[thread] / "stat"
    return stat.read_text().rpartition(")")[2].split()[0]


@pytest.mark.skipif(not (MEMORY / "memory.limit_in_bytes").exists(), reason="needs cgroup v1")
def test_a_process_is_killed_when_the_memory_of_its_group_is_full() -> None:
    group = MEMORY / f"cprjob-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(96 << 20))
        with running("-c", SLEEPING, group / "cgroup.procs") as process:
            assert process.stdout is not None
            process.stdout.readline()
            done = subprocess.run([sys.executable, HERE / "hog.py", str(process.pid)], check=False)
            assert (process.wait(20), done.returncode) == (-9, 0)
    finally:
        until("the group is empty", lambda: not (group / "cgroup.procs").read_text(), 20)
        group.rmdir()
