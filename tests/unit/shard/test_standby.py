"""The process of a shard before a roster names it: memory, probe of the store, readiness."""

from __future__ import annotations

import ctypes
import mmap
import threading
from pathlib import Path
from time import sleep

import numpy as np
import pytest

from cpr_contract.reports import ShardState
from cpr_trainer.embedding.arena import Arena
from cpr_trainer.embedding.memory import OwnMemory, Prefaulter, SharedMemory, SizeOf
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.shard.main import Standby, rows_end
from cpr_trainer.shard.resume import ShardControlBlock
from cpr_trainer.shard.status import StatusPublisher
from cpr_trainer.store import Entry, StoreUnreachableError
from support.memory_store import MemoryStore
from support.shard_job import small_job

PAGE = mmap.PAGESIZE


def resident(memory: SharedMemory) -> list[bool]:
    """Return whether each page is in memory, by the kernel."""
    start = np.frombuffer(memory.mapping, np.uint8)
    pages = (ctypes.c_ubyte * -(-len(start) // PAGE))()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mincore(ctypes.c_void_p(start.ctypes.data), ctypes.c_size_t(len(start)), pages) == 0
    return [bool(page & 1) for page in pages]


def test_touched_pages_are_in_memory_and_unchanged() -> None:
    memory = SharedMemory(64 * PAGE)
    memory.mapping[3 * PAGE] = 7
    assert resident(memory).count(False) >= 32  # else this test could not fail
    prefaulter = Prefaulter(memory, 40 * PAGE + 1)
    prefaulter.touch(10 * PAGE - 1)
    assert prefaulter.left_bytes == 30 * PAGE + 1
    while prefaulter.left_bytes:
        prefaulter.touch(10 * PAGE)
    assert all(resident(memory)[:41])
    assert (memory.mapping[3 * PAGE], memory.mapping[4 * PAGE]) == (7, 0)


def test_pages_are_touched_one_by_one_without_help_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cpr_trainer.embedding.memory._POPULATE_WRITE", 9999)
    memory = SharedMemory(8 * PAGE)
    memory.mapping[PAGE] = 7
    Prefaulter(memory, 8 * PAGE).touch(8 * PAGE)
    assert all(resident(memory))
    assert memory.mapping[PAGE] == 7


def test_touching_stops_at_the_memory_limit_and_spares_private_memory() -> None:
    memory = SharedMemory(2 * PAGE)
    prefaulter = Prefaulter(memory, 100 * PAGE)
    prefaulter.touch(100 * PAGE)
    assert prefaulter.left_bytes == 0
    assert Prefaulter(OwnMemory(), 100 * PAGE).left_bytes == 0


def test_the_rows_of_the_largest_shard_are_touched_and_nothing_after_them(tmp_path: Path) -> None:
    job = small_job(tmp_path)
    placement = Placement.of(job.model, job.shards)
    largest = max((placement.sizes(index) for index in range(job.shards)), key=sum)
    size = SizeOf()
    ShardControlBlock(size, job)
    Arena.empty(job, *largest, memory=size)
    memory = SharedMemory(size.bytes)
    view = memory.view()
    ShardControlBlock(view, job)
    last = Arena.empty(job, *largest, memory=view).segments[-1].state
    end = last.ctypes.data + last.nbytes - np.frombuffer(memory.mapping, np.uint8).ctypes.data
    assert end <= rows_end(job) < end + 64 < size.bytes


class Listing(MemoryStore):
    """A store that answers after `may_answer`."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.may_answer = threading.Event()
        self.requests: list[str] = []
        self._error = error

    def list(self, prefix: str) -> tuple[Entry, ...]:
        self.requests.append(prefix)
        self.may_answer.wait()
        if self._error is not None:
            raise self._error
        return super().list(prefix)


def standby_of(tmp_path: Path, store: Listing, pages: int = 1) -> Standby:
    job = small_job(tmp_path)
    return Standby(job, store, Prefaulter(SharedMemory(pages * PAGE), pages * PAGE), StatusPublisher(job).report)


def until_warm(standby: Standby) -> None:
    while not standby.warm:
        sleep(0.005)


def test_standby_is_warm_once_its_memory_is_touched_and_the_store_has_answered(tmp_path: Path) -> None:
    store = Listing()
    standby = standby_of(tmp_path, store, pages=(32 << 20) // PAGE)
    assert (standby.report.state, standby.report.index) == (ShardState.STARTING, -1)
    assert standby.tick()  # 16 MiB of 32
    assert not standby.tick()
    assert standby.report.state is ShardState.STARTING
    store.may_answer.set()
    until_warm(standby)
    assert (standby.report.state, standby.report.index) == (ShardState.SPARE, -1)
    assert store.requests == [f"{small_job(tmp_path).job_uid}/spare/"]


def test_standby_starts_without_a_reachable_store(tmp_path: Path) -> None:
    store = Listing(StoreUnreachableError("no answer", "Wait."))
    standby = standby_of(tmp_path, store)
    standby.tick()
    store.may_answer.set()
    until_warm(standby)
    assert standby.report.state is ShardState.SPARE
