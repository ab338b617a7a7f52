"""Files that come while a job runs change nothing in it, whichever trainers are replaced."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract.spec import DataSpec, JobSpec
from support.local_job import LocalJob, small_job
from support.table_data import COLUMNS, TABLES, as_text, clicks
from support.warm_start import run_slowly

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]
ROWS = 36_000


def log_job(folder: Path) -> JobSpec:
    """A job of two trainers that reads the days of a log, two of them in windows."""
    (folder / "log").mkdir()
    for day in (1, 2):
        add_day(folder, day, ROWS // 2)
    job = small_job(folder, samples=ROWS, trainers=2)
    uri = f"{folder}/log/day=*"
    data = DataSpec("CSV", uri, 1, None, job.data.batch_size, 11, 0, columns=COLUMNS, shuffle_rows=ROWS // 4)
    return replace(job, data=data, model=replace(job.model, tables=TABLES))


def add_day(folder: Path, day: int, rows: int) -> None:
    (folder / "log" / f"day={day}.csv").write_bytes(as_text(clicks(rows, seed=day), ","))


def test_a_file_that_comes_before_an_anchor_is_told_without_a_restart(tmp_path: Path) -> None:
    with LocalJob(log_job(tmp_path), tmp_path, interval_s=3600.0) as running:
        running.start(run_slowly)
        running.reach(ROWS // 20)
        assert running.trainer(0).anchors == ()
        add_day(tmp_path, 3, 600)
        running.interval_s = 0.5
        running.publish()
        running.wait_for(lambda: running.trainer(0).new_files == 1, "the leader tells of the file")
        assert running.trainer(0).incarnation == 1


def test_replaced_trainers_go_on_with_the_rows_that_the_job_began_with(tmp_path: Path) -> None:
    with LocalJob(log_job(tmp_path), tmp_path) as running:
        running.start(run_slowly)
        running.reach(ROWS // 6)
        add_day(tmp_path, 0, 600)  # sorts before all others
        for index in (1, 0):
            running.kill(running.trainers[index])
            running.wait_exit(running.trainers[index])
            running.replace_trainers(index, leader=0)
            running.wait_for(lambda index=index: running.trainer(index).total_samples, "it has read the data")
            assert running.trainer(index).total_samples == ROWS
        running.wait_for(lambda: running.trainer(0).new_files == 1, "the new leader tells what is left out")
        assert running.result().samples == ROWS
