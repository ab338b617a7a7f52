"""A finished model as files: every row in its place, the dense network by name."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from cpr_contract import CONTRACT_VERSION, env
from cpr_contract.codec import to_json
from cpr_contract.manifests import SavedModel
from cpr_contract.model import ModelSpec, OptimizerSpec, SparseOptimizerSpec, TableSpec
from cpr_contract.requests import ExportRequest
from cpr_contract.roster import AnchorRef
from cpr_contract.spec import DataSpec, JobSpec, SnapshotSpec, StoreSpec
from cpr_trainer.checkpoint.anchor.dense import DenseMeta, commit_anchor
from cpr_trainer.checkpoint.format.documents import DamagedError, LayoutError
from cpr_trainer.checkpoint.write.writer import Writer
from cpr_trainer.errors import ModelError
from cpr_trainer.export.main import run
from cpr_trainer.model.dlrm import Dlrm
from cpr_trainer.placement import Placement, layout_hash
from cpr_trainer.store import Store, open_store
from cpr_trainer.tables.arena import Arena
from cpr_trainer.tables.optimizers import Assignment
from cpr_trainer.tables.segments import Segment, initial_rows
from cpr_trainer.trainer.state import DenseState
from support.saves import draft, full_save, write

DIM, SHARDS = 4, 3
TABLES = (TableSpec("user", 101), TableSpec("a/b", 1), TableSpec("page", 57))
SEED = 7
NO_STREAM = io.BytesIO()


@pytest.fixture
def job(tmp_path: Path) -> JobSpec:
    return JobSpec(
        contract=CONTRACT_VERSION,
        job_uid="uid",
        job_name="job",
        model=ModelSpec(
            DIM, (8, DIM), (8, 1), TABLES, OptimizerSpec("Adagrad", 0.1), SparseOptimizerSpec("RowWiseAdagrad", 0.1)
        ),
        data=DataSpec("Synthetic", None, None, 1000, 100, SEED, 0),
        trainers=1,
        shards=SHARDS,
        snapshots=SnapshotSpec(StoreSpec((tmp_path / "store").as_uri(), None, "bucket", "x"), 2, 30.0, None),
        silence_s=10.0,
    )


def environ(job: JobSpec) -> dict[str, str]:
    return {env.SPEC: to_json(job)}


def the_store(job: JobSpec) -> Store:
    return open_store(job.snapshots.store, None, None)


def value_of(table: int, rows: np.ndarray) -> np.ndarray:
    """What the test puts into a row: its table and number, once per column."""
    return (1000.0 * table + rows)[:, np.newaxis] + np.arange(DIM) / 8


def anchored(job: JobSpec, generation: int, shards: int, negative: dict[int, list[int]]) -> AnchorRef:
    """An anchor of a generation, of so many shards, in which some rows of each table are negative."""
    placement, layout, step = Placement.of(job.model, shards), layout_hash(job.model), 10 * generation
    refs = []
    for index in range(shards):
        arena = np.zeros((placement.size(index), DIM), np.float32)
        for chunk in placement.rows_of(index, chunk=10):
            for slot, (table, row) in enumerate(zip(chunk.tables, chunk.rows, strict=True), chunk.first_slot):
                sign = -1 if int(row) in negative.get(int(table), []) else 1
                arena[slot] = sign * value_of(int(table), np.array([row]))[0]
        manifest = draft(step, index=index, layout=layout, first_place=int(placement.starts[index]))
        manifest = replace(manifest, generation=generation)
        refs.append(full_save(the_store(job), manifest, arena, np.ones((len(arena), 1), np.float32)).ref)
    state = DenseState(job, 1000)
    state.begin({})
    meta = DenseMeta("uid", generation, 1, step, 1000, 100 * step, layout, ())
    return commit_anchor(the_store(job), meta, state.tensors(), tuple(refs), ((),) * shards)


@pytest.fixture
def anchor(job: JobSpec) -> AnchorRef:
    return anchored(job, 1, SHARDS, {})


def test_a_model_is_written_as_files_that_others_read(job: JobSpec, anchor: AnchorRef, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    run(environ(job), ExportRequest(anchor.key), str(folder), NO_STREAM)
    for number, (table, file) in enumerate(zip(TABLES, ("user", "a%2Fb", "page"), strict=True)):
        weight = load_file(folder / "tables" / f"{file}.safetensors")["weight"]
        assert np.array_equal(weight.numpy(), value_of(number, np.arange(table.rows)).astype(np.float32))
    dense = load_file(folder / "dense.safetensors")
    expected = Dlrm(job.model, SEED).state_dict()
    assert dense.keys() == expected.keys()
    assert all(torch.equal(dense[name], expected[name]) for name in expected)
    about = json.loads((folder / "model.json").read_text())
    assert (about["step"], about["samples"], about["anchor"]) == (10, 1000, anchor.key)
    assert [table["name"] for table in about["model"]["tables"]] == ["user", "a/b", "page"]
    left = {path.name for path in folder.rglob("*")}
    assert left == {
        "model.json",
        "transform.json",
        "dense.safetensors",
        "tables",
        "user.safetensors",
        "a%2Fb.safetensors",
        "page.safetensors",
    }


def test_a_model_goes_out_as_an_archive_of_the_same_files(job: JobSpec, anchor: AnchorRef, tmp_path: Path) -> None:
    stream = io.BytesIO()
    run(environ(job), ExportRequest(anchor.key), "-", stream)
    run(environ(job), ExportRequest(anchor.key), str(tmp_path / "out"), NO_STREAM)
    stream.seek(0)
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        found = {each.name: file.read() for each in archive if (file := archive.extractfile(each))}
    assert list(found)[-1] == "model.json"
    assert found == {
        str(path.relative_to(tmp_path / "out")): path.read_bytes()
        for path in (tmp_path / "out").rglob("*")
        if path.is_file()
    }
    assert not Path("-").exists()


def test_a_model_is_not_called_complete_before_it_is(job: JobSpec, anchor: AnchorRef, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    run(environ(job), ExportRequest(anchor.key), str(folder), NO_STREAM)
    part = next(
        entry.key for entry in the_store(job).list("uid/") if "shard-0002" in entry.key and "part-" in entry.key
    )
    the_store(job).delete([part])
    with pytest.raises(DamagedError, match=part):
        run(environ(job), ExportRequest(anchor.key), str(folder), NO_STREAM)
    assert not (folder / "model.json").exists()


def test_an_anchor_of_another_model_is_refused(job: JobSpec, anchor: AnchorRef, tmp_path: Path) -> None:
    other = replace(job, model=replace(job.model, tables=TABLES[:2]))
    with pytest.raises(LayoutError):
        run(environ(other), ExportRequest(anchor.key), str(tmp_path / "out"), NO_STREAM)
    wider = replace(job, model=replace(job.model, bottom_mlp=(16, DIM)))  # the same tables, another network
    with pytest.raises(ModelError, match="is of another network"):
        run(environ(wider), ExportRequest(anchor.key), str(tmp_path / "out"), NO_STREAM)
    with pytest.raises(DamagedError, match="missing"):
        run(environ(job), ExportRequest("uid/no/such/manifest.json"), str(tmp_path / "out"), NO_STREAM)


@pytest.mark.parametrize("shards", [2, SHARDS, 5])
def test_only_the_rows_that_changed_are_written_however_many_shards_there_were(
    job: JobSpec, anchor: AnchorRef, tmp_path: Path, shards: int
) -> None:
    later = anchored(job, 2, shards, {0: [3, 100], 2: [7]})
    folder = tmp_path / "out"
    run(environ(job), ExportRequest(later.key, since=anchor.key), str(folder), NO_STREAM)
    user, only, page = (load_file(folder / "tables" / f"{file}.safetensors") for file in ("user", "a%2Fb", "page"))
    assert user["rows"].tolist() == [3, 100]
    assert np.array_equal(user["weight"].numpy(), -value_of(0, np.array([3, 100])).astype(np.float32))
    assert page["rows"].tolist() == [7]
    assert (only["rows"].shape, only["weight"].shape) == ((0,), (0, DIM))
    told = json.loads((folder / "delta.json").read_text())
    assert told == {"since": anchor.key, "anchor": later.key, "rows": {"user": 2, "a/b": 0, "page": 1}}
    run(environ(job), ExportRequest(later.key), str(folder), NO_STREAM)
    assert not (folder / "delta.json").exists(), "a whole export into the same folder is whole"


def untouched(job: JobSpec, uid: str, step: int, seed: int | None = None) -> AnchorRef:
    """An anchor of the job `uid`, of which no save holds any row. It may tell its seed."""
    placement, layout = Placement.of(job.model, 1), layout_hash(job.model)
    values = np.zeros((placement.total, DIM), np.float32), np.zeros((placement.total, 1), np.float32)
    arena = Arena([Segment(0, *values)], Assignment((placement.total,), (SparseOptimizerSpec("SGD", 0.1),)))
    manifest = draft(step, layout=layout, job_uid=uid, places=placement.total)
    save = write(Writer(the_store(job), arena), manifest, arena.capture_changes(0))
    state = DenseState(job, 1000)
    state.begin({})
    told = None if seed is None else SavedModel(seed, (), "SGD", ())
    meta = DenseMeta(uid, 1, 1, step, 1000, 1000, layout, (), model=told)
    return commit_anchor(the_store(job), meta, state.tensors(), (save.ref,), ((),))


@pytest.mark.parametrize(
    ("uid", "told", "changes"),
    [("uid", None, False), ("other", None, True), ("other", SEED, False), ("other", SEED + 1, True)],
)
def test_rows_that_no_save_holds_follow_from_the_seed_that_their_job_tells(
    job: JobSpec, tmp_path: Path, uid: str, told: int | None, *, changes: bool
) -> None:
    since, until = untouched(job, uid, 10, told), untouched(job, "uid", 20)
    run(environ(job), ExportRequest(until.key, since=since.key), str(tmp_path / "out"), NO_STREAM)
    counts = json.loads((tmp_path / "out" / "delta.json").read_text())["rows"]
    assert counts == {table.name: table.rows if changes else 0 for table in TABLES}
    if told is not None:
        run(environ(job), ExportRequest(since.key), str(tmp_path / "whole"), NO_STREAM)
        whole = load_file(tmp_path / "whole" / "tables" / "page.safetensors")["weight"].numpy()
        assert np.array_equal(whole, initial_rows(job.model, told, 2, np.arange(57)))
