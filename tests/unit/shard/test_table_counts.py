"""The counts of dynamic tables in a shard's report and metrics, after pushes in frames."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cpr_contract.manifests import RowUpdates
from cpr_contract.reports import SaveRef, TableCounts
from cpr_contract.roster import Counters
from cpr_trainer.embedding.arena import LocalRows
from cpr_trainer.embedding.memory import OwnMemory
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.exchange.frames import Operation
from cpr_trainer.shard.lifecycle import Lifecycle
from cpr_trainer.shard.resume import ShardControlBlock
from cpr_trainer.shard.state import Losses, Progress
from cpr_trainer.shard.status import COUNT_S, Metrics, TableCounter
from cpr_trainer.shard.steps import StepService
from support.dynamic_shards import with_dynamic_tables
from support.shard_fakes import FakeClient
from support.shard_job import shard_roster, small_job

#: Tables `b` and `d` of one page and vectors of 3 values; `b` admits in the second step, both expire after 6 steps.
JOB = with_dynamic_tables(small_job(Path("unused")), pages=1)


class Shard:
    """A shard that serves, without store and sockets, and its only trainer."""

    def __init__(self) -> None:
        placement, self.metrics = Placement.of(JOB.model, 1), Metrics()
        self.service = StepService(JOB, placement, 0, LocalRows.of(JOB, placement, 0).arena, self.metrics)
        self.service.counters = Counters(roster=1, group=1, generation=1)
        control_block = ShardControlBlock.new(OwnMemory(), JOB)
        control_block.begin_process()
        self.lifecycle = Lifecycle(JOB, shard_roster(), self.service, control_block)
        self.client = FakeClient(self.service, 0)
        self.service.joined(self.client)
        self.progress = Progress(1, (0,), Losses.restored((), 1), RowUpdates((0,)))
        self.service.persist = lambda: None

    def serve(self) -> None:
        self.service.start(self.progress)
        self.client.send_frame(Operation.COMMIT, 0, order=1)

    def push(self, step: int, b: range = range(0), d: range = range(0)) -> None:
        """Take a step with these keys of both tables. All of them have the same two buckets."""
        keys = [np.array(each, np.uint64) << np.uint64(40) for each in (b, d)]
        gradients = np.ones((len(b) + len(d), 3), np.float32)
        parts = [np.array([len(b), len(d)], np.uint32), *keys, gradients]
        payload = b"".join(part.tobytes() for part in parts)
        self.client.send_frame(Operation.PUSH, step, payload, count=len(gradients))
        self.client.send_frame(Operation.COMMIT, step, order=1)
        assert self.progress.applied == (step,), self.client.refusals

    def counts(self) -> dict[str, TableCounts]:
        return {table.name: table for table in self.lifecycle.report(()).tables}


@pytest.fixture
def shard() -> Shard:
    return Shard()


def test_shard_reports_the_effects_of_steps_on_its_tables(shard: Shard) -> None:
    assert shard.counts() == {}, "there is no state"
    shard.serve()
    shard.push(1, b=range(10), d=range(64))
    shard.push(2, b=range(4), d=range(100, 170))
    assert shard.counts() == {
        "b": TableCounts("b", 4096, 4, 6, admitted=4, evicted=0, expired=0, dropped=0, full=0),
        "d": TableCounts("d", 4096, 64, 0, admitted=128, evicted=64, expired=0, dropped=6, full=70),
    }
    for step in range(3, 9):
        shard.push(step)
    shard.push(9, d=range(200, 203))
    shard.service.newest_save = SaveRef("a save", 9, 90)
    assert shard.counts() == {
        "b": TableCounts("b", 4096, 0, 0, admitted=4, evicted=0, expired=0, dropped=0, full=0),
        "d": TableCounts("d", 4096, 3, 0, admitted=131, evicted=64, expired=3, dropped=6, full=70),
    }


def test_metrics_repeat_the_counts_of_the_report(shard: Shard) -> None:
    shard.serve()
    shard.push(1, d=range(64))
    shard.push(2, d=range(100, 170))
    shard.metrics.show(shard.lifecycle.report(()))
    values = {
        name: shard.metrics.registry.get_sample_value(f"cprjob_shard_table_{name}", {"table": "d"})
        for name in ("slots", "entries", "waiting", "admitted_total", "evicted_total", "dropped_total", "full_total")
    }
    assert [*values.values()] == [4096, 64, 0, 128, 64, 6, 70]


def test_rows_are_counted_now_and_then_and_after_a_save(shard: Shard) -> None:
    shard.serve()
    counter, save = TableCounter(JOB, shard.service.dynamic), SaveRef("a save", 1, 10)

    def counted(now: float, newest: SaveRef | None = None) -> tuple[int, int]:
        table = counter.counts(shard.progress, newest, now)[1]
        return table.entries, table.admitted

    assert counted(5.0) == (0, 0)
    shard.push(1, d=range(3))
    assert counted(5.0 + 0.9 * COUNT_S) == (0, 0)
    assert counted(5.0 + COUNT_S) == (3, 3)
    shard.push(2, d=range(3, 5))
    assert counted(6.0 + COUNT_S, save) == (5, 5)
    shard.push(3, d=range(5, 6))
    assert counted(6.0 + COUNT_S, save) == (5, 5)
    assert counter.counts(None, save, 6.0 + COUNT_S) == ()
    assert counted(6.0 + COUNT_S, save) == (6, 6), "the rows may be others"
