"""Successive supervisors of one pod: the memory that the next one takes over or refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract.spec import JobSpec
from cpr_trainer.embedding.memory import SharedMemory, SizeOf
from cpr_trainer.shard.resume import ShardControlBlock
from cpr_trainer.shard.supervisor import control_block_of
from support.shard_job import small_job


class Pod:
    """A pod's memory and its scratch folder."""

    def __init__(self, folder: Path) -> None:
        self.job = small_job(folder)
        self.rows, self.scratch = folder / "rows", folder / "scratch"
        self.scratch.mkdir()

    def begin(self, job: JobSpec | None = None) -> ShardControlBlock | None:
        """Return the control block of the next supervisor."""
        size = SizeOf()
        ShardControlBlock(size, job or self.job)
        return control_block_of(job or self.job, SharedMemory(size.bytes, self.rows), self.scratch)

    def control_block(self) -> ShardControlBlock:
        control_block = self.begin()
        assert control_block is not None
        return control_block


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    return Pod(tmp_path)


def test_the_first_supervisor_begins_with_nothing(pod: Pod) -> None:
    control_block = pod.control_block()
    assert (control_block.process_number, control_block.read(), control_block.usable) == (0, None, True)


def test_next_supervisor_continues_the_count_of_processes_and_reads_the_end_of_the_last(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cpr_trainer.runtime.supervision.monotonic", lambda: 20.0)
    first = pod.control_block()
    first.begin_process()
    first.tick()
    second = pod.control_block()
    assert (second.process_number, second.container_restarts) == (1, 1)
    second.begin_process()
    assert second.ticks == 0
    second.record_serving(21.5)
    assert second.in_place_s == ((1, 1.5),)


def test_process_without_a_turn_has_ended_when_the_supervisor_finds_it(pod: Pod) -> None:
    first = pod.control_block()
    first.begin_process()
    second = pod.control_block()
    second.begin_process()
    second.record_serving(1e9)
    ((number, took_s),) = second.in_place_s
    assert (number, took_s > 0) == (1, True)


def other_layout(job: JobSpec) -> JobSpec:
    """Return a job with as many rows and bytes, in another layout."""
    tables = job.model.tables
    changed = (replace(tables[0], rows=tables[0].rows - 1), replace(tables[1], rows=tables[1].rows + 1))
    return replace(job, model=replace(job.model, tables=changed))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(other_layout, id="layout"),
        pytest.param(lambda job: replace(job, job_uid="another"), id="job"),
        pytest.param(lambda job: replace(job, shards=2), id="shards"),
    ],
)
def test_shared_memory_of_another_form_is_not_taken_over(change: Callable[[JobSpec], JobSpec], pod: Pod) -> None:
    assert pod.begin() is not None
    assert pod.begin(change(pod.job)) is None
    assert pod.begin() is not None


def test_lost_shared_memory_is_no_first_start(pod: Pod) -> None:
    """A restarted machine has lost the rows of the former process."""
    assert pod.begin() is not None
    pod.rows.unlink()
    assert pod.begin() is None


def test_every_supervisor_without_a_mark_is_the_first(pod: Pod) -> None:
    """Memory without a file does not outlive a container."""
    size = SizeOf()
    ShardControlBlock(size, pod.job)
    for _ in range(2):
        control_block = control_block_of(pod.job, SharedMemory(size.bytes), None)
        assert control_block is not None
        assert control_block.process_number == 0
