"""A saved model's score on held-out rows is that of a forward pass over them."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from cpr_contract import CONTRACT_VERSION, env
from cpr_contract.codec import to_json
from cpr_contract.model import ModelSpec, OptimizerSpec, SparseOptimizerSpec, TableSpec
from cpr_contract.requests import EvaluationRequest
from cpr_contract.roster import AnchorRef
from cpr_contract.spec import DataSpec, JobSpec, SnapshotSpec, StoreSpec
from cpr_trainer.arrays import Floats
from cpr_trainer.checkpoint.anchor.dense import DenseMeta, commit_anchor
from cpr_trainer.checkpoint.format.documents import LayoutError
from cpr_trainer.data.synthetic import SyntheticDataset
from cpr_trainer.errors import ModelError
from cpr_trainer.evaluate import evaluate, run
from cpr_trainer.model import entrypoint
from cpr_trainer.model.dlrm import Dlrm
from cpr_trainer.placement import Placement, layout_hash
from cpr_trainer.runtime import BadSpecError
from cpr_trainer.store import Store, open_store
from cpr_trainer.trainer.state import DenseState
from support.oracle import exact_auc
from support.plain_batches import single_ids
from support.saves import draft, full_save

DIM, SHARDS, SEED = 4, 3, 7
TABLES = (TableSpec("user", 101), TableSpec("page", 57))


@pytest.fixture
def job(tmp_path: Path) -> JobSpec:
    return JobSpec(
        contract=CONTRACT_VERSION,
        job_uid="uid",
        job_name="job",
        model=ModelSpec(DIM, (8, DIM), (8, 1), TABLES, OptimizerSpec("SGD", 0.1), SparseOptimizerSpec("SGD", 0.1)),
        data=DataSpec("Synthetic", None, None, 1000, 64, SEED, 0, hold_out=0.3),
        trainers=1,
        shards=SHARDS,
        snapshots=SnapshotSpec(StoreSpec((tmp_path / "store").as_uri(), None, "bucket", "x"), 2, 30.0, None),
        silence_s=10.0,
    )


def the_store(job: JobSpec) -> Store:
    return open_store(job.snapshots.store, None, None)


def saved_rows(table: int) -> Floats:
    return np.random.default_rng(table).standard_normal((TABLES[table].rows, DIM), np.float32)


@pytest.fixture
def anchor(job: JobSpec) -> AnchorRef:
    return anchored(job)


def test_rows_of_other_ids_are_not_scored(job: JobSpec, anchor: AnchorRef) -> None:
    tables = replace(TABLES[0], ids="XXH64", hash_seed=7), TABLES[1]
    other = replace(job, model=replace(job.model, tables=tables))
    with pytest.raises(LayoutError, match="ids of CPR64 in table user; this job has XXH64 with seed 7"):
        evaluate(other, SyntheticDataset(1000, SEED, TABLES), the_store(job), anchor.key)


def anchored(job: JobSpec) -> AnchorRef:
    placement, layout = Placement.of(job.model, SHARDS), layout_hash(job.model)
    refs = []
    for index in range(SHARDS):
        arena = np.zeros((placement.size(index), DIM), np.float32)
        for chunk in placement.rows_of(index):
            for slot, (table, row) in enumerate(zip(chunk.tables, chunk.rows, strict=True), chunk.first_slot):
                arena[slot] = saved_rows(int(table))[row]
        manifest = draft(10, index=index, layout=layout, first_place=int(placement.starts[index]))
        refs.append(full_save(the_store(job), manifest, arena, np.empty((len(arena), 0), np.float32)).ref)
    state = DenseState(job, 1000)
    state.begin({})
    meta = DenseMeta("uid", 1, 1, 10, 1000, 1000, layout, ())
    return commit_anchor(the_store(job), meta, state.tensors(), tuple(refs), ((),) * SHARDS)


def test_the_score_is_that_of_a_forward_pass(job: JobSpec, anchor: AnchorRef) -> None:
    dataset = SyntheticDataset(1000, SEED, TABLES)
    found = evaluate(job, dataset, the_store(job), anchor.key)
    batch = dataset.take(np.arange(700, 1000))
    ids = single_ids(batch)
    vectors = np.stack([saved_rows(table)[ids[:, table]] for table in range(2)], axis=1)
    labels = torch.from_numpy(batch.labels)
    with torch.no_grad():
        logits = Dlrm(job.model, SEED)(torch.from_numpy(batch.dense), torch.from_numpy(vectors))
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
    assert (found.step, found.samples) == (10, 300)
    assert found.auc == pytest.approx(exact_auc(logits.numpy(), batch.labels), abs=1e-3)
    assert found.log_loss == pytest.approx(float(loss), rel=1e-5)


class Halves(torch.nn.Module):
    """A network without `forward`, whose dropout leaves nothing in training."""

    def __init__(self, spec: ModelSpec, seed: int) -> None:
        super().__init__()
        self.drop = torch.nn.Dropout(1.0)

    def before_embeddings(self, dense: Tensor) -> Tensor:
        return dense.mean(dim=1)

    def with_embeddings(self, begun: Tensor, embeddings: Tensor) -> Tensor:
        logits: Tensor = begun + self.drop(embeddings.sum(dim=(1, 2)))
        return logits


def test_a_network_of_halves_is_scored_in_evaluation_mode(job: JobSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entrypoint, "own_factory", Halves, raising=False)
    own = replace(job, model=replace(job.model, entrypoint="cpr_trainer.model.entrypoint:own_factory"))
    dataset = SyntheticDataset(1000, SEED, TABLES)
    found = evaluate(own, dataset, the_store(own), anchored(own).key)
    batch = dataset.take(np.arange(700, 1000))
    ids = single_ids(batch)
    sums = sum(saved_rows(table)[ids[:, table]].sum(axis=1) for table in range(2))
    logits = torch.from_numpy(batch.dense.mean(axis=1) + sums)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(batch.labels))
    assert found.log_loss == pytest.approx(float(loss), rel=1e-5)


def test_a_request_is_answered_on_stdout(job: JobSpec, anchor: AnchorRef) -> None:
    answer = io.StringIO()
    run({env.SPEC: to_json(job)}, io.StringIO(to_json(EvaluationRequest(anchor.key))), answer)
    assert json.loads(answer.getvalue())["samples"] == 300


def test_a_job_that_holds_nothing_out_cannot_be_evaluated(job: JobSpec, anchor: AnchorRef) -> None:
    data = replace(job.data, hold_out=0.0)
    with pytest.raises(BadSpecError, match="holds no rows out"):
        evaluate(replace(job, data=data), SyntheticDataset(1000, SEED, TABLES), the_store(job), anchor.key)


def test_an_anchor_of_another_model_is_refused(job: JobSpec, anchor: AnchorRef) -> None:
    other = replace(job, model=replace(job.model, tables=TABLES[:1]))
    with pytest.raises(LayoutError):
        evaluate(other, SyntheticDataset(1000, SEED, TABLES[:1]), the_store(other), anchor.key)
    wider = replace(job, model=replace(job.model, bottom_mlp=(16, DIM)))  # the same tables, another network
    with pytest.raises(ModelError, match="is of another network"):
        evaluate(wider, SyntheticDataset(1000, SEED, TABLES), the_store(job), anchor.key)
