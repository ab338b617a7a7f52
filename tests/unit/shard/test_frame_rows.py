"""The rows of a lookup are found once for the push of its step, and never taken for those of another push."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpr_contract.spec import JobSpec
from cpr_trainer.embedding.arena import Arena
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.exchange.frames import Frame, FrameError, Header, Operation
from cpr_trainer.shard.frame_rows import FrameRows
from support.shard_fakes import DIM, ROWS
from support.shard_job import small_job

PLACEMENT = Placement([50, 30], 1)


def frame(operation: Operation, rows: list[int], rank: int = 0) -> Frame:
    """A frame with these rows, and their numbers as the gradients of a push."""
    numbers = np.array(rows, np.int32)
    values = np.repeat(numbers, DIM).astype(np.float32) if operation is Operation.PUSH else numbers[:0]
    payload = numbers.tobytes() + values.tobytes()
    return Frame(Header(operation, rank=rank, count=len(rows), payload_bytes=len(payload)), memoryview(payload))


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The row numbers of each search so far."""
    found: list[list[int]] = []
    slots_on = Placement.slots_on

    def counted(self: Placement, shard: int, numbers: Any) -> Any:
        found.append(numbers.tolist())
        return slots_on(self, shard, numbers)

    monkeypatch.setattr(Placement, "slots_on", counted)
    return found


def job_of(trainers: int) -> JobSpec:
    return replace(small_job(Path("unused"), trainers=trainers, dim=DIM), sparse_updates="PerStep")


def reader(trainers: int = 2) -> FrameRows:
    job = job_of(trainers)
    return FrameRows(job, PLACEMENT, 0, Arena.empty(job, ROWS), ())


def check(rows: FrameRows, pushed: list[int], rank: int = 0) -> None:
    found = rows.find(frame(Operation.PUSH, pushed, rank))
    assert found.numbers.tolist() == pushed
    assert found.slots.tolist() == PLACEMENT.places(np.array(pushed)).tolist()
    assert found.values.reshape(-1, DIM)[:, 0].tolist() == pushed


def test_rows_of_a_lookup_are_those_of_its_push(searches: list[list[int]]) -> None:
    rows = reader()
    for rank in (0, 1):
        rows.find(frame(Operation.LOOKUP, [3 + rank, 60], rank))
    for rank in (1, 0):
        check(rows, [3 + rank, 60], rank)
    assert searches == [[3, 60], [4, 60]]


def test_rows_of_a_lookup_outlive_its_frame() -> None:
    """The connection receives the next frame into the same memory, in which numbers of eight bytes lie."""
    job = replace(small_job(Path("unused"), trainers=2, dim=DIM, rows=(2**31, 2**31)), sparse_updates="PerStep")
    rows = FrameRows(job, PLACEMENT, 0, Arena.empty(job, ROWS), ())
    numbers = np.array([3, 60])
    received = bytearray(numbers.tobytes())
    header = Header(Operation.LOOKUP, count=2, payload_bytes=len(received))
    rows.find(Frame(header, memoryview(received)))
    received[:] = bytes(len(received))
    payload = numbers.tobytes() + np.ones((2, DIM), np.float32).tobytes()
    header = Header(Operation.PUSH, count=2, payload_bytes=len(payload))
    assert rows.find(Frame(header, memoryview(payload))).numbers.tolist() == [3, 60]


@pytest.mark.parametrize("pushed", [[4, 60], [3, 61], [3], [3, 60, 70]])
def test_push_of_other_rows_is_searched(pushed: list[int], searches: list[list[int]]) -> None:
    rows = reader()
    rows.find(frame(Operation.LOOKUP, [3, 60]))
    check(rows, pushed)
    assert searches == [[3, 60], pushed]


def test_lookup_serves_one_push(searches: list[list[int]]) -> None:
    rows = reader()
    rows.find(frame(Operation.LOOKUP, [3, 60]))
    for _ in range(2):
        check(rows, [3, 60])
    assert searches == [[3, 60]] * 2


def test_job_whose_pushes_are_not_merged_searches_each(searches: list[list[int]]) -> None:
    rows = reader(trainers=1)
    rows.find(frame(Operation.LOOKUP, [3, 60]))
    check(rows, [3, 60])
    assert searches == [[3, 60]] * 2


def test_push_of_the_wrong_size_is_refused_after_its_lookup() -> None:
    rows = reader()
    rows.find(frame(Operation.LOOKUP, [3, 60]))
    short = frame(Operation.PUSH, [3, 60])
    with pytest.raises(FrameError, match="are no PUSH of 2 rows"):
        rows.find(replace(short, payload=short.payload[:-4]))
