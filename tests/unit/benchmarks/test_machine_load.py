"""The load of the machine that benches report."""

from __future__ import annotations

import os
import signal

import numpy as np

from cprjob_bench.commands.machine_load import usage

MIB = 2**20


def test_memory_that_processes_share_counts_once() -> None:
    shared = np.ones(64 * MIB, np.uint8)
    before = sum(mine.resident_bytes for mine in usage().values())
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        after = usage()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert after["peer"].resident_bytes > len(shared) / 3
    assert sum(mine.resident_bytes for mine in after.values()) < before + len(shared) / 2
