"""A supervisor that passes on the output of its processes, in a process of its own: it forks, and blocks signals."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

#: The working process is `work(number)`, and each last output a file OUTPUT-NUMBER.
SUPERVISED = """
import mmap, os, signal, sys
from pathlib import Path
import numpy as np
from cpr_trainer.runtime.last_output import OutputRecorder, Tail
from cpr_trainer.runtime import supervision
from cpr_trainer.runtime.supervision import FIRST_FREE_WORD, ControlBlock, Supervisor

supervision._LAST_STORE_S = 50.0
folder = Path(sys.argv[1])
block = ControlBlock(np.frombuffer(mmap.mmap(-1, 8 * FIRST_FREE_WORD), np.int64), "owner")
block.initialise()

def store(output):
    partial = folder / f"{output.process}.new"
    partial.write_bytes(b"%d %d nice %d " % (output.index, output.incarnation, os.nice(0)) + output.text)
    partial.rename(folder / f"output-{output.process}")

{work}

code = Supervisor(block, folder / "end", {silence_s}, recorder=OutputRecorder(Tail(), store)).run()
if code is None:
    block.identify(1, 5)
    block.tick()
    work(block.process_number)
    os._exit(0)
os._exit(code)
"""
#: Prints without end and makes no progress; the next process ends at once.
HANGS = """
def work(number):
    while number == 1:
        os.write(2, b"busy\\n" * 100)
"""
#: Prints more than a pipe takes; the first process aborts.
PRINTS = """
def work(number):
    for line in range(20_000):
        os.write(2, b"line %07d\\n" % line)
    if number == 1:
        os.abort()
"""


def supervised(folder: Path, work: str, silence_s: float, log: int | None) -> int:
    """Run a supervisor and return its exit code."""
    script = SUPERVISED.replace("{work}", work).replace("{silence_s}", str(silence_s))
    return subprocess.run([sys.executable, "-c", script, str(folder)], stderr=log, check=False, timeout=60).returncode


def test_hung_process_that_prints_is_killed(tmp_path: Path) -> None:
    assert supervised(tmp_path, HANGS, 0.5, subprocess.DEVNULL) == 0
    assert (tmp_path / "output-1").read_bytes().endswith(b"busy\nprocess 1 of this pod ended by SIGKILL\n")


def test_log_has_all_lines_of_an_aborted_process(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        assert supervised(tmp_path, PRINTS, 60.0, log.fileno()) == 0
    lines = [line for line in (tmp_path / "log").read_text().splitlines() if line.startswith("line ")]
    assert lines == [f"line {number:07d}" for number in range(20_000)] * 2
    first = (tmp_path / "output-1").read_text()
    assert first.startswith("1 5 nice 19 line ")
    assert first.endswith("line 0019999\nprocess 1 of this pod ended by SIGABRT\n")


def test_process_with_a_log_without_a_reader_continues(tmp_path: Path) -> None:
    script = SUPERVISED.replace("{work}", PRINTS).replace("{silence_s}", "60.0")
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        process.stderr.close()
        assert process.wait(60) == 0
    last = (tmp_path / "output-2").read_text()
    assert last.startswith(f"1 5 nice {os.nice(0)} line ")
    assert last.endswith("line 0019999\nprocess 2 of this pod ended with exit code 0\n")
