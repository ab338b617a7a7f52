"""Jobs that follow their data: files come while members are killed, and the model is that of a calm run on the pins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cpr_contract.codec import from_json
from cpr_contract.env import ROLE_TRAINER
from cpr_contract.manifests import ShardManifest
from cpr_contract.model import TableSpec
from cpr_contract.reports import Result, TrainerState
from cpr_contract.roster import AnchorRef
from cpr_contract.spec import DataFormat, DataSpec, FollowSpec, JobSpec
from cpr_trainer.checkpoint.format.documents import read_document
from cpr_trainer.checkpoint.format.records import read_anchor
from cpr_trainer.checkpoint.restore.dense_loader import read_tensors
from cpr_trainer.store import open_store
from cpr_trainer.trainer.scores import SegmentBoundary
from processes.faults import NEVER_S, SUPERVISED_PODS, killed_processes, reach
from support import table_data
from support.followed_tables import lake_of
from support.local_job import LocalJob, small_job
from support.model import SavedModel, saved_model, single_process_model
from support.pins import Pins
from support.warm_start import run_held

pytestmark = pytest.mark.dist

BATCH = 50
#: A time that no test reaches: a job of such data trains its last batch once a later pin is there.
FAR_S = 1e12
#: A step that no test reaches.
FREE = 10**9


def job_of(folder: Path, trainers: int = 2) -> JobSpec:
    folder.mkdir(exist_ok=True)
    job = small_job(folder, samples=0, trainers=trainers)
    follow = FollowSpec(0.05, until_s=FAR_S)
    data = DataSpec(
        "CSV", f"{folder.parent}/log/day=*", 1, None, BATCH, 5, 0, table_data.COLUMNS, shuffle_rows=300, follow=follow
    )
    tables = (TableSpec("user", 100), TableSpec("item", 50))
    model = replace(job.model, tables=tables)
    return replace(job, model=model, data=data, sparse_updates="PerStep", replay_bytes=64 << 20)


class Log:
    """The folder of the data, to which days come."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.rows = 0
        folder.mkdir()

    def day(self, number: int, rows: int) -> None:
        """Write a day as a program does that writes slowly: in two parts, under its name."""
        text = table_data.as_text(table_data.clicks(rows, seed=number), ",")
        path = self._folder / f"day={number}.csv"
        path.write_bytes(text[: len(text) // 2])
        with path.open("ab") as file:
            file.write(text[len(text) // 2 :])
        self.rows += rows


def all_trained(running: LocalJob, pins: Pins, arrived: int) -> None:
    """Wait until all rows are pinned, and trained but for the last batch, with the anchor at which all stand."""

    def caught_up() -> bool:
        rows, known = pins.read(), pins.order.known_samples
        report = running.trainer(running.leader)
        at_anchor = bool(report.anchors) and report.anchors[-1].samples == known - BATCH
        return rows == arrived and known % BATCH == 0 and report.samples == known - BATCH and at_anchor

    running.wait_for(caught_up, "all files are trained")


def kill_shard(running: LocalJob) -> None:
    running.kill(running.shards[0])
    running.wait_exit(running.shards[0])
    running.replace_shard(0)


def kill_trainer(rank: int) -> Callable[[LocalJob], None]:
    def kill(running: LocalJob) -> None:
        running.kill(running.trainers[rank])
        running.wait_exit(running.trainers[rank])
        running.replace_trainers(rank, leader=1 - rank if rank == running.leader else running.leader)

    return kill


def roll_back(running: LocalJob) -> None:
    running.roll_back(running.trainer(running.leader).anchors[-1])


def check_end(job: JobSpec, anchor: AnchorRef, samples: int) -> None:
    """The last anchor is that of a batch job: with the total, and with full and exact saves."""
    store = open_store(job.snapshots.store, None, None)
    manifest = read_anchor(store, anchor)
    assert (manifest.samples, manifest.total_samples) == (samples, samples)
    saves = [read_document(store, ShardManifest, ref.key)[0] for ref in manifest.shards]
    assert [(save.samples, save.bits, save.chain) for save in saves] == [(samples, 32, ())] * len(saves)


def check_calm_run(found: SavedModel, pins: Pins, job: JobSpec, folder: Path) -> AnchorRef:
    """Another run, which has all pins at its start, and one end, leaves the same bits. Return its anchor."""
    pins.copy_to(job)
    with LocalJob(job, folder / "calm", NEVER_S) as running:
        running.start()
        anchor = running.result()
    check_equal(found, saved_model(job, anchor, folder / "expected"))
    return anchor


def scored_segment(job: JobSpec, anchor: AnchorRef) -> tuple[Tensor, Tensor]:
    """Return the scores of the newest complete segment in an anchor, and the counters at its end."""
    store = open_store(job.snapshots.store, None, None)
    tensors = read_tensors(store, read_anchor(store, anchor))
    return tensors["boundary"], tensors["boundary_counters"]


def check_equal(found: SavedModel, expected: SavedModel) -> None:
    assert torch.equal(found.dense, expected.dense)
    for table, rows_of in zip(found.tables, expected.tables, strict=True):
        assert torch.equal(table, rows_of)


def test_members_are_killed_while_files_come_and_each_row_is_trained_once(tmp_path: Path) -> None:
    """Faults while all wait for files, while these are trained, and at the end; the same pins give the same bits.

    The processes of both trainers are killed in the middle of a segment, and its scores are those of a calm run. Ends
    of segments that are scored are those of steps 39 and 72: other ones come less than 32 steps after one.
    """
    log = Log(tmp_path / "log")
    log.day(1, 430)
    job = job_of(tmp_path / "disturbed")
    pins = Pins(job)
    with LocalJob(job, tmp_path / "disturbed", NEVER_S, dict(SUPERVISED_PODS)) as running:
        running.hold_at(FREE)
        running.start(run_held)
        all_trained(running, pins, log.rows)
        for number, fault in enumerate((kill_shard, kill_trainer(1), kill_trainer(0), roll_back), 2):
            fault(running)
            in_segment = fault is roll_back and 60  # segments end with steps 54 and 69
            running.hold_at(in_segment or FREE)
            log.day(number, 700 + 10 * number)
            running.wait_for(lambda: pins.read() == log.rows, "the file is pinned")
            if fault is not roll_back:
                kill_shard(running)
            if in_segment:
                reach(running, in_segment)
                with killed_processes(ROLE_TRAINER, 0, 1)(running):
                    running.hold_at(FREE)
            all_trained(running, pins, log.rows)
            assert running.trainer(running.leader).state is TrainerState.TRAINING
        log.day(0, 105)
        all_trained(running, pins, log.rows)
        pins.end()
        kill_shard(running)
        anchor = running.result()
        result = from_json(Result, running.trainers[running.leader].termination_message)
    rows, voids = pins.trained()
    assert rows == Counter(range(log.rows))
    assert 0 < voids < BATCH * len(pins.all)
    assert (result.lost, result.total_samples) == ((), log.rows + voids)
    found = saved_model(job, anchor, tmp_path / "found")
    assert found.scored == log.rows
    calm_job = job_of(tmp_path / "calm")
    calm = check_calm_run(found, pins, calm_job, tmp_path)
    boundary, counters = scored_segment(job, anchor)
    expected_boundary, expected_counters = scored_segment(calm_job, calm)
    assert torch.equal(boundary, expected_boundary)
    assert torch.equal(counters, expected_counters)
    segment = result.segment
    assert segment == SegmentBoundary.of(boundary, counters).scores
    assert segment is not None
    assert (segment.first_sample, segment.stop, segment.scored) == (39 * BATCH, 72 * BATCH, 740 + 750 + 105)


def test_only_trainer_ends_as_one_process_does_once_all_is_trained(tmp_path: Path) -> None:
    """The loss of the last batch is divided by its real samples, as if it were a batch of fewer.

    The save at which it waited for files is of few bits; the last one, of the batch after it, is exact.
    """
    log = Log(tmp_path / "log")
    job = job_of(tmp_path / "job", trainers=1)
    job = replace(job, data=replace(job.data, follow=FollowSpec(0.05, idle="Finish")))
    pins = Pins(job)
    with LocalJob(job, tmp_path / "job", NEVER_S, stored_bits=4) as running:
        running.start()
        log.day(1, 420)
        anchor = running.result()
    rows, voids = pins.trained() if pins.read() == log.rows else (Counter(), 0)
    assert (rows, voids) == (Counter(range(log.rows)), 30)
    check_end(job, anchor, 450)
    found = saved_model(job, anchor, tmp_path / "found")
    alone = single_process_model(job, pins.order)
    check_equal(found, alone)
    assert (found.scored, found.auc) == (alone.scored, alone.auc)


@pytest.mark.parametrize("form", ["Delta", "Iceberg"])
def test_members_are_killed_while_versions_of_a_table_come_and_one_is_a_compaction(
    tmp_path: Path, form: DataFormat
) -> None:
    """Each appended row is trained once, and the files that a compaction removed are read as they were pinned."""
    with lake_of(form, tmp_path / "lake") as lake:
        job = job_of(tmp_path / "disturbed")
        data = replace(lake.data, batch_size=BATCH, seed=5, shuffle_rows=300, follow=job.data.follow)
        job = replace(job, data=data, model=replace(job.model, tables=(TableSpec("user", 100),)))
        pins = Pins(job)
        lake.append(0, 230)
        with LocalJob(job, tmp_path / "disturbed", NEVER_S) as running:
            running.start()
            all_trained(running, pins, 230)
            kill_shard(running)
            lake.append(230, 320)
            lake.append(550, 30)
            running.wait_for(lambda: pins.read() == 580, "both versions are pinned")
            kill_trainer(0)(running)
            lake.compact()
            all_trained(running, pins, 580)
            compacted = lake.version()
            running.wait_for(lambda: pins.read() == 580 and versions_of(pins)[-1] == compacted, "it is pinned")
            roll_back(running)
            lake.append(580, 120)
            all_trained(running, pins, 700)
            pins.end()
            anchor = running.result()
        rows, _voids = pins.trained()
        assert rows == Counter(range(700))
        assert len(set(versions_of(pins))) >= 4
        found = saved_model(job, anchor, tmp_path / "found")
        check_calm_run(found, pins, replace(job, snapshots=job_of(tmp_path / "calm").snapshots), tmp_path)


def versions_of(pins: Pins) -> list[int]:
    tables = (pin.segments[-1].files.table for pin in pins.all)
    return [table.version for table in tables if table is not None]
