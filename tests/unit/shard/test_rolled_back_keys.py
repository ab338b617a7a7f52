"""A process that serves dynamic tables, and is rolled back to a save of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from cpr_contract.manifests import RowUpdates
from cpr_trainer.embedding.arena import LocalRows
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.shard.state import Losses, Progress
from cpr_trainer.shard.status import Metrics
from cpr_trainer.shard.steps import StepService
from support.dynamic_shards import DynamicShard, draw_ids, with_dynamic_tables
from support.dynamic_steps import universe
from support.shard_job import small_job


def test_keys_of_the_save_are_found_where_later_ones_were() -> None:
    job = with_dynamic_tables(small_job(Path("unused")))
    local = LocalRows.of(job, Placement.of(job.model, 1), 0)
    service = StepService(job, local.placement, 0, local.arena, Metrics())
    shard = DynamicShard(job, replace(local, dynamic=service.dynamic))

    def serve(generation: int) -> None:
        service.start(Progress(generation, (0,), Losses.restored((), 1), RowUpdates((0,))))

    def take(*steps: int) -> None:
        for step in steps:
            shard.take_step(step, [draw_ids(step, universe()[step // 8 :: 2])], seed=step)

    def vectors() -> list[bytes]:
        return [np.asarray(band.read(band.keys_in(0, universe()), 8)).tobytes() for band in service.dynamic]

    serve(1)
    take(*range(1, 8))
    saved = [(segment.rows.copy(), segment.state.copy()) for segment in local.arena.segments]
    expected = vectors()
    take(*range(8, 16))
    assert vectors() != expected
    for segment, (rows, state) in zip(local.arena.segments, saved, strict=True):
        segment.rows[:], segment.state[:] = rows, state
    serve(2)
    assert vectors() == expected
