"""An anchor as a model: exported as files, exported as a delta, and scored on held-out rows."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from cpr_contract import CONTRACT_VERSION, env
from cpr_contract.codec import to_json
from cpr_contract.manifests import DenseManifest, SavedModel
from cpr_contract.model import ModelSpec, OptimizerSpec, SparseOptimizerSpec, TableSpec
from cpr_contract.requests import EvaluationRequest, ExportRequest
from cpr_contract.roster import AnchorRef
from cpr_contract.spec import OPEN_TOTAL, DataSpec, FollowSpec, JobSpec, SnapshotSpec, StoreSpec
from cpr_trainer.arrays import Floats, Ints
from cpr_trainer.checkpoint.anchor.committer import commit_anchor
from cpr_trainer.checkpoint.format.documents import DamagedError, LayoutError
from cpr_trainer.checkpoint.format.records import read_anchor
from cpr_trainer.checkpoint.write.writer import Writer
from cpr_trainer.data.synthetic import SyntheticDataset
from cpr_trainer.embedding.arena import Arena
from cpr_trainer.embedding.bfloat16 import DTYPES, converted, narrow, widen
from cpr_trainer.embedding.optimizers import Assignment
from cpr_trainer.embedding.placement import Placement, layout_hash
from cpr_trainer.embedding.segments import Segment, initial_rows
from cpr_trainer.errors import ModelError
from cpr_trainer.evaluate import evaluate, run
from cpr_trainer.export import main as export
from cpr_trainer.model.dlrm import Dlrm
from cpr_trainer.runtime import BadSpecError
from cpr_trainer.store import Store, open_store
from cpr_trainer.trainer.state import DenseState
from cprjob_serving.exported import DeltaError, apply_delta
from support.oracle import exact_auc
from support.plain_batches import single_ids
from support.saves import draft, full_save, write

DIM, SHARDS, SEED = 4, 3, 7
TABLES = (TableSpec("user", 101), TableSpec("a/b", 1), TableSpec("page", 57))
FILES = ("user", "a%2Fb", "page")
NONE_CHANGED, ALL_CHANGED = {"user": 0, "a/b": 0, "page": 0}, {"user": 101, "a/b": 1, "page": 57}
Rows = Callable[[int, Ints], Any]


@pytest.fixture
def job(tmp_path: Path) -> JobSpec:
    return JobSpec(
        contract=CONTRACT_VERSION,
        job_uid="uid",
        job_name="job",
        model=ModelSpec(
            DIM, (8, DIM), (8, 1), TABLES, OptimizerSpec("Adagrad", 0.1), SparseOptimizerSpec("RowWiseAdagrad", 0.1)
        ),
        data=DataSpec("Synthetic", None, None, 1000, 64, SEED, 0, hold_out=0.3),
        trainers=1,
        shards=SHARDS,
        snapshots=SnapshotSpec(StoreSpec((tmp_path / "store").as_uri(), None, "bucket", "x"), 2, 30.0, None),
        silence_s=10.0,
    )


def store_of(job: JobSpec) -> Store:
    return open_store(job.snapshots.store, None, None)


def numbered(table: int, rows: Ints) -> Any:
    """Rows of their table's and their own number, other in each column."""
    return (1000.0 * table + rows)[:, np.newaxis] + np.arange(DIM) / 8


def random_rows(table: int, rows: Ints) -> Any:
    return np.random.default_rng(table).standard_normal((TABLES[table].rows, DIM), np.float32)[rows]


def save_anchor(job: JobSpec, rows: Rows, *, shards: int = SHARDS, generation: int = 1, step: int = 10) -> AnchorRef:
    """Save an anchor of `shards` shards with these rows, and the first dense network."""
    placement, layout = Placement.of(job.model, shards), layout_hash(job.model)
    refs = []
    for index in range(shards):
        arena = np.zeros((placement.size(index), DIM), np.float32)
        for chunk in placement.rows_of(index, chunk=10):
            for slot, (table, row) in enumerate(zip(chunk.tables, chunk.rows, strict=True), chunk.first_slot):
                arena[slot] = rows(int(table), np.array([row]))[0]
        manifest = draft(step, index=index, layout=layout, first_place=int(placement.starts[index]))
        state = np.ones((len(arena), 1), np.float32)
        stored = converted(arena, np.dtype(DTYPES[job.model.tables[0].precision]))
        refs.append(full_save(store_of(job), replace(manifest, generation=generation), stored, state).ref)
    meta = DenseManifest(CONTRACT_VERSION, "uid", generation, 1, step, 1000, 100 * step, layout, ())
    return commit_anchor(store_of(job), meta, first_dense(job), tuple(refs), ((),) * shards)


def first_dense(job: JobSpec) -> Any:
    state = DenseState(job, 1000)
    state.begin({})
    return state.tensors()


@pytest.fixture
def anchor(job: JobSpec) -> AnchorRef:
    return save_anchor(job, numbered)


def export_model(job: JobSpec, request: ExportRequest, folder: Path | str) -> io.BytesIO:
    stream = io.BytesIO()
    export.run({env.SPEC: to_json(job)}, request, str(folder), stream)
    return stream


def changed_rows(folder: Path) -> dict[str, int]:
    found: dict[str, int] = json.loads((folder / "delta.json").read_text())["rows"]
    return found


# --- files


def test_exported_model_has_files_that_others_read(job: JobSpec, anchor: AnchorRef, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    export_model(job, ExportRequest(anchor.key), folder)
    for number, (table, file) in enumerate(zip(TABLES, FILES, strict=True)):
        weight = load_file(folder / "tables" / f"{file}.safetensors")["weight"]
        assert np.array_equal(weight.numpy(), numbered(number, np.arange(table.rows)).astype(np.float32))
    dense, expected = load_file(folder / "dense.safetensors"), Dlrm(job.model, SEED).state_dict()
    assert dense.keys() == expected.keys()
    assert all(torch.equal(dense[name], expected[name]) for name in expected)
    about = json.loads((folder / "model.json").read_text())
    assert (about["step"], about["samples"], about["anchor"]) == (10, 1000, anchor.key)
    assert [table["name"] for table in about["model"]["tables"]] == ["user", "a/b", "page"]
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    tables = {f"tables/{file}.safetensors" for file in FILES}
    assert files.keys() == {"model.json", "transform.json", "dense.safetensors"} | tables

    stream = export_model(job, ExportRequest(anchor.key), "-")
    stream.seek(0)
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        found = {each.name: part.read() for each in archive if (part := archive.extractfile(each))}
    assert list(found)[-1] == "model.json"
    assert found == files
    assert not Path("-").exists()


def test_tables_in_bf16_are_exported_as_float32(job: JobSpec, tmp_path: Path) -> None:
    tables = tuple(replace(table, precision="bf16") for table in TABLES)
    half, folder = replace(job, model=replace(job.model, tables=tables)), tmp_path / "out"
    export_model(half, ExportRequest(save_anchor(half, random_rows).key), folder)
    for number, (table, file) in enumerate(zip(TABLES, FILES, strict=True)):
        weight = load_file(folder / "tables" / f"{file}.safetensors")["weight"]
        assert np.array_equal(weight.numpy(), widen(narrow(random_rows(number, np.arange(table.rows)))))


def test_export_that_fails_leaves_no_model_json(job: JobSpec, anchor: AnchorRef, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    export_model(job, ExportRequest(anchor.key), folder)
    parts = (each.key for each in store_of(job).list("uid/") if "part-" in each.key)
    part = next(key for key in parts if "shard-0002" in key)
    store_of(job).delete([part])
    with pytest.raises(DamagedError, match=part):
        export_model(job, ExportRequest(anchor.key), folder)
    assert not (folder / "model.json").exists()


def test_anchor_of_another_model_is_refused(job: JobSpec, anchor: AnchorRef, tmp_path: Path) -> None:
    def score(job: JobSpec, key: str) -> None:
        evaluate(job, SyntheticDataset(1000, SEED, job.model.tables), store_of(job), key)

    def write_files(job: JobSpec, key: str) -> None:
        export_model(job, ExportRequest(key), tmp_path / "out")

    fewer = replace(job, model=replace(job.model, tables=TABLES[:2]))
    wider = replace(job, model=replace(job.model, bottom_mlp=(16, DIM)))  # the same tables, another network
    for use in (score, write_files):
        with pytest.raises(LayoutError):
            use(fewer, anchor.key)
        with pytest.raises(ModelError, match="is of another network"):
            use(wider, anchor.key)
        with pytest.raises(DamagedError, match="missing"):
            use(job, "uid/no/such/manifest.json")
    hashed = replace(job, model=replace(job.model, tables=(replace(TABLES[0], ids="XXH64", hash_seed=7), *TABLES[1:])))
    with pytest.raises(LayoutError, match="ids of CPR64 in table user; this job has XXH64 with seed 7"):
        score(hashed, anchor.key)


# --- deltas


@pytest.mark.parametrize("shards", [2, SHARDS, 5])
def test_delta_has_the_changed_rows_of_any_number_of_shards(
    job: JobSpec, anchor: AnchorRef, tmp_path: Path, shards: int
) -> None:
    changed = {(0, 3), (0, 100), (2, 7)}

    def negative(table: int, rows: Ints) -> Any:
        return (-1 if (table, int(rows[0])) in changed else 1) * numbered(table, rows)

    later = save_anchor(job, negative, shards=shards, generation=2, step=20)
    folder = tmp_path / "out"
    export_model(job, ExportRequest(later.key, since=anchor.key), folder)
    user, only, page = (load_file(folder / "tables" / f"{file}.safetensors") for file in FILES)
    assert user["rows"].tolist() == [3, 100]
    assert np.array_equal(user["weight"].numpy(), -numbered(0, np.array([3, 100])).astype(np.float32))
    assert page["rows"].tolist() == [7]
    assert (only["rows"].shape, only["weight"].shape) == ((0,), (0, DIM))
    expected = {"since": anchor.key, "anchor": later.key, "rows": {"user": 2, "a/b": 0, "page": 1}}
    assert json.loads((folder / "delta.json").read_text()) == expected
    export_model(job, ExportRequest(later.key), folder)
    assert not (folder / "delta.json").exists(), "a whole export into the same folder is whole"


def test_base_and_its_deltas_are_the_whole_export(job: JobSpec, anchor: AnchorRef, tmp_path: Path) -> None:
    def changed(rows: set[tuple[int, int]]) -> Rows:
        return lambda table, row: (-1 if (table, int(row[0])) in rows else 1) * numbered(table, row)

    middle = save_anchor(job, changed({(0, 3)}), generation=2, step=20)
    last = save_anchor(job, changed({(0, 3), (2, 7)}), generation=3, step=30)
    export_model(job, ExportRequest(anchor.key), tmp_path / "base")
    export_model(job, ExportRequest(middle.key, since=anchor.key), tmp_path / "one")
    export_model(job, ExportRequest(last.key, since=middle.key), tmp_path / "two")
    export_model(job, ExportRequest(last.key), tmp_path / "whole")
    with pytest.raises(DeltaError, match=f"has the rows since {middle.key}, but .+ is of {anchor.key}"):
        apply_delta(tmp_path / "base", tmp_path / "two", tmp_path / "wrong")
    apply_delta(tmp_path / "base", tmp_path / "one", tmp_path / "applied-1")
    apply_delta(tmp_path / "applied-1", tmp_path / "two", tmp_path / "applied-2")
    applied, whole = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (tmp_path / "applied-2", tmp_path / "whole")
    )
    assert applied == whole
    assert not (tmp_path / "wrong").exists()


def save_untouched(job: JobSpec, uid: str, step: int, seed: int | None = None) -> AnchorRef:
    """Save an anchor of the job `uid` in which no save holds any row; it may record its seed."""
    placement, layout = Placement.of(job.model, 1), layout_hash(job.model)
    values = np.zeros((placement.total, DIM), np.float32), np.zeros((placement.total, 1), np.float32)
    arena = Arena([Segment(0, *values)], Assignment((placement.total,), (SparseOptimizerSpec("SGD", 0.1),)))
    manifest = draft(step, layout=layout, job_uid=uid, places=placement.total)
    save = write(Writer(store_of(job), arena), manifest, arena.capture_changes(0))
    recorded = None if seed is None else SavedModel(seed, (), "SGD", ())
    meta = DenseManifest(CONTRACT_VERSION, uid, 1, 1, step, 1000, 1000, layout, (), model=recorded)
    return commit_anchor(store_of(job), meta, first_dense(job), (save.ref,), ((),))


@pytest.mark.parametrize(
    ("uid", "seed", "counts"),
    [
        pytest.param("uid", None, NONE_CHANGED, id="same-job"),
        pytest.param("other", None, ALL_CHANGED, id="seed-unknown"),
        pytest.param("other", SEED, NONE_CHANGED, id="same-seed"),
        pytest.param("other", SEED + 1, ALL_CHANGED, id="other-seed"),
    ],
)
def test_delta_counts_unsaved_rows_as_changed_unless_the_seed_is_known_to_be_equal(
    job: JobSpec, tmp_path: Path, uid: str, seed: int | None, counts: dict[str, int]
) -> None:
    since, until = save_untouched(job, uid, 10, seed), save_untouched(job, "uid", 20)
    export_model(job, ExportRequest(until.key, since=since.key), tmp_path / "out")
    assert changed_rows(tmp_path / "out") == counts
    if seed is not None:
        export_model(job, ExportRequest(since.key), tmp_path / "whole")
        whole = load_file(tmp_path / "whole" / "tables" / "page.safetensors")["weight"].numpy()
        assert np.array_equal(whole, initial_rows(job.model, seed, 2, np.arange(57)))


# --- scores


def held_out(job: JobSpec) -> tuple[Any, list[Floats]]:
    """The held-out rows, and their vectors of each table."""
    batch = SyntheticDataset(1000, SEED, TABLES).take(np.arange(700, 1000))
    ids = single_ids(batch)
    return batch, [random_rows(table, ids[:, table]) for table in range(len(TABLES))]


def test_evaluation_scores_as_a_forward_pass(job: JobSpec) -> None:
    key = save_anchor(job, random_rows).key
    found = evaluate(job, SyntheticDataset(1000, SEED, TABLES), store_of(job), key)
    batch, vectors = held_out(job)
    labels = torch.from_numpy(batch.labels)
    with torch.no_grad():
        logits = Dlrm(job.model, SEED)(torch.from_numpy(batch.dense), torch.from_numpy(np.stack(vectors, axis=1)))
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
    assert (found.step, found.samples) == (10, 300)
    assert found.auc == pytest.approx(exact_auc(logits.numpy(), batch.labels), abs=1e-3)
    assert found.log_loss == pytest.approx(float(loss), rel=1e-5)
    answer = io.StringIO()
    run({env.SPEC: to_json(job)}, io.StringIO(to_json(EvaluationRequest(key))), answer)
    assert json.loads(answer.getvalue())["auc"] == found.auc


def test_evaluation_of_a_job_that_follows_its_data_needs_data_of_its_own(job: JobSpec) -> None:
    follows = replace(job, data=replace(job.data, format="CSV", uri="/clicks/", hold_out=0.0, follow=FollowSpec(1.0)))
    with pytest.raises(BadSpecError, match="follows its data, so it holds no rows out") as refused:
        run({env.SPEC: to_json(follows)}, io.StringIO(to_json(EvaluationRequest("uid/any"))), io.StringIO())
    assert "evaluation.uri" in refused.value.remedy


def test_export_before_the_end_of_data_has_no_total(job: JobSpec, anchor: AnchorRef, tmp_path: Path) -> None:
    manifest = read_anchor(store_of(job), anchor)
    later = commit_anchor(
        store_of(job),
        replace(manifest, step=11, total_samples=OPEN_TOTAL),
        first_dense(job),
        manifest.shards,
        ((),) * 3,
    )
    for key, total in ((anchor.key, 1000), (later.key, None)):
        export_model(job, ExportRequest(key), tmp_path)
        assert json.loads((tmp_path / "model.json").read_text())["totalSamples"] == total


def test_evaluation_needs_rows_that_are_held_out(job: JobSpec, anchor: AnchorRef) -> None:
    data = replace(job.data, hold_out=0.0)
    with pytest.raises(BadSpecError, match="holds no rows out"):
        evaluate(replace(job, data=data), SyntheticDataset(1000, SEED, TABLES), store_of(job), anchor.key)
