from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpr_contract.spec import JobSpec
from cpr_trainer.data.files import files_of
from cpr_trainer.data.order import BatchOrder
from cpr_trainer.data.source import open_dataset
from cpr_trainer.lone import LoneTrainer
from cpr_trainer.placement import Placement
from cpr_trainer.runtime import BadSpecError
from cprjob_bench.documents import Saving
from cprjob_bench.roles.priority import Schedule, changed_rows, is_priority_step, slots_of_steps
from support.local_job import small_job

STEPS = 40


@pytest.fixture
def job(tmp_path: Path) -> JobSpec:
    return small_job(tmp_path, samples=100 * STEPS, shards=2, batch_size=100)


def schedule_of(job: JobSpec, **changes: Any) -> Schedule:
    usual: dict[str, Any] = {"strategy": "MFU", "interval": 0.25, "anchors": 2, "fraction": 0.2, "failures": ()}
    saving = Saving(**(usual | changes))
    dataset = open_dataset(job.data, job.model, files_of(job))
    return Schedule.of(saving, BatchOrder.of(job.data, dataset.layout), dataset, Placement.of(job.model, job.shards))


@settings(deadline=None)
@given(
    updates=st.lists(st.sets(st.integers(0, 9), max_size=5), max_size=30),
    windows=st.lists(st.integers(1, 12), min_size=1, max_size=3),
)
def test_rows_that_change_are_counted_once_a_window(updates: list[set[int]], windows: list[int]) -> None:
    found = changed_rows((np.array(sorted(slots), np.int64) for slots in updates), 10, windows)
    for window, total in zip(windows, found, strict=True):
        complete = range(0, len(updates) - window + 1, window)
        assert total == sum(len(set().union(*updates[first : first + window])) for first in complete)


def test_the_slots_of_steps_are_those_that_training_updates(job: JobSpec) -> None:
    seen: list[list[int]] = []

    class Watch:
        def after_step(self, step: int, slots: Any) -> None:
            seen.append(slots.tolist())

    dataset = open_dataset(job.data, job.model, files_of(job))
    trainer = LoneTrainer(job, dataset, 5)
    trainer.train(Watch(), lambda _: None)
    expected = slots_of_steps(dataset, trainer.order, Placement.of(job.model, 1))
    assert [slots.tolist() for slots in expected] == seen


def test_full_saves_everything_once_an_interval(job: JobSpec) -> None:
    assert schedule_of(job, strategy="Full") == Schedule(anchor_steps=10)


def test_a_strategy_writes_between_anchors_what_full_would_write_more(job: JobSpec) -> None:
    found = schedule_of(job)
    assert (found.anchor_steps, found.priority_steps) == (20, 2)
    dataset = open_dataset(job.data, job.model, files_of(job))
    updates = list(slots_of_steps(dataset, BatchOrder.of(job.data, dataset.layout), Placement.of(job.model, 1)))
    full, anchored = (
        sum(len(np.unique(np.concatenate(updates[i : i + n]))) for i in range(0, 40, n)) for n in (10, 20)
    )
    # 20 times two steps, but for steps 20 and 40; two shards.
    assert found.shard_rows == (full - anchored) // (18 * 2)
    assert found.shard_rows > 0


def test_priority_saves_keep_clear_of_anchors() -> None:
    assert [step for step in range(1, 21) if is_priority_step(step, 3, 6)] == [3, 9, 15]
    assert not any(is_priority_step(step, 0, 6) for step in range(1, 21))


@pytest.mark.parametrize(
    "changes",
    [
        {"interval": 0.001},
        {"interval": 1.5},
        {"fraction": 0.01},
        {"fraction": 2.0},
        {"anchors": 1},
        {"interval": 0.001, "strategy": "Full"},
        {"interval": 1.5, "strategy": "Full"},
    ],
)
def test_what_does_not_fit_the_run_is_refused(job: JobSpec, changes: dict[str, Any]) -> None:
    with pytest.raises(BadSpecError, match="does not fit a run of 40 steps"):
        schedule_of(job, **changes)
