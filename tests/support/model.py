"""The model of a job, read from its store, and the model that a single process trains."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from cpr_contract.requests import ExportRequest
from cpr_contract.roster import AnchorRef
from cpr_contract.spec import JobSpec
from cpr_trainer.checkpoint.format.records import read_anchor
from cpr_trainer.checkpoint.restore.dense_loader import read_tensors
from cpr_trainer.data.open import files_of, open_dataset
from cpr_trainer.data.order import BatchOrder
from cpr_trainer.data.stream_order import StreamOrder
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.embedding.segments import initial_rows
from cpr_trainer.evaluation import ProgressiveValidation
from cpr_trainer.export.model_folder import export_model
from cpr_trainer.model.dlrm import Dlrm
from cpr_trainer.model.replica import DenseReplica
from cpr_trainer.notebook import Fitted
from cpr_trainer.single_process import SingleProcessTrainer
from cpr_trainer.store import open_store
from cpr_trainer.trainer.scores import Scores
from support.oracle import OracleResult, train


@dataclass(frozen=True, slots=True, eq=False)
class SavedModel:
    """dense: float32 [p]. tables: float32 [rows, D] each; of a dynamic one the rows of its `keys`, uint64."""

    dense: Tensor
    tables: tuple[Tensor, ...]
    auc: float | None
    log_loss: float | None
    scored: int
    metrics: dict[str, float]
    keys: tuple[Tensor | None, ...]


def single_process_model(job: JobSpec, order: StreamOrder | None = None) -> SavedModel:
    """Return the model that one process trains, in the order of data that arrived if one is given."""
    dataset = open_dataset(job.data, job.model, files_of(job))
    trainer = SingleProcessTrainer(job, dataset, job.data.seed)
    if order is not None:
        trainer.order = cast(BatchOrder, order)
        trainer.scores = Scores(ProgressiveValidation.of(0, job.model, trainer.replica.model))
    trainer.train(lambda _: None)
    placement = Placement.of(job.model, 1)
    tables = tuple(
        torch.from_numpy(trainer.tables.arena.rows[placement.places(offset + np.arange(table.rows))])
        for offset, table in zip(placement.offsets, job.model.tables, strict=True)
    )
    scores = trainer.scores.validation
    dense = trainer.replica.parameters.cpu()
    every = (None,) * len(tables)
    return SavedModel(dense, tables, scores.auc(), scores.log_loss(), scores.samples, dict(scores.metrics()), every)


def saved_model(job: JobSpec, anchor: AnchorRef, folder: Path) -> SavedModel:
    store = open_store(job.snapshots.store, None, None)
    export_model(store, job, ExportRequest(anchor.key), folder)
    tables = [load_file(folder / "tables" / f"{table.name}.safetensors") for table in job.model.tables]
    tensors = read_tensors(store, read_anchor(store, anchor))
    replica = DenseReplica(job.model, 0)
    replica.load(tensors)
    validation = ProgressiveValidation.of(1, job.model, replica.model)
    validation.load_state(tensors["evaluation"])
    return SavedModel(
        replica.parameters,
        tuple(table["weight"] for table in tables),
        validation.auc(),
        validation.log_loss(),
        validation.samples,
        dict(validation.metrics()),
        tuple(table.get("keys") for table in tables),
    )


def train_alone(job: JobSpec, unscored: range = range(0)) -> OracleResult:
    """Return the result of one process that reads rows as late as the job's trainer, and leaves `unscored` out."""
    torch.set_num_threads(1)  # Two cores are shared with the processes under test.
    dataset = open_dataset(job.data, job.model, files_of(job))
    order = BatchOrder.of(job.data, dataset.layout)
    seed = job.data.seed
    missed_steps = job.prefetch if job.prefetch > 1 else 0
    first = partial(initial_rows, job.model, seed)
    return train(job.model, dataset, order, seed, first, missed_steps=missed_steps, unscored=unscored)


def assert_close(model: SavedModel, expected: OracleResult) -> None:
    """Equal to rounding: parameters, all rows, AUC up to the histogram's bins, log loss."""
    torch.testing.assert_close(model.dense, expected.dense, rtol=1e-3, atol=1e-5)
    for table, rows in zip(model.tables, expected.tables, strict=True):
        torch.testing.assert_close(table, rows, rtol=1e-3, atol=1e-5)
    assert model.auc is not None
    assert model.log_loss is not None
    assert abs(model.auc - expected.auc) < 1e-4
    assert abs(model.log_loss - expected.log_loss) < 1e-5
    assert model.metrics.keys() == expected.metrics.keys()
    for name, value in expected.metrics.items():
        assert model.metrics[name] == pytest.approx(value, abs=1e-4), name


def assert_norms_close(model: SavedModel, job: JobSpec) -> None:
    """Assert that parameters and tables are those of plain torch: norm(difference) <= 1e-3 norm(change), for each.

    Elementwise bounds cannot hold: a gradient that cancels gives Adam and Adagrad a step of any sign.
    """
    expected, seed = train_alone(job), job.data.seed
    first = [torch.cat([each.detach().flatten() for each in Dlrm(job.model, seed).parameters()])]
    first += [
        torch.from_numpy(initial_rows(job.model, seed, place, np.arange(table.rows)))
        for place, table in enumerate(job.model.tables)
    ]
    for found, torch_value, before in zip(
        (model.dense, *model.tables), (expected.dense, *expected.tables), first, strict=True
    ):
        assert (found - torch_value).norm() <= 1e-3 * (torch_value - before).norm()


def assert_fitted(found: Fitted, job: JobSpec, model: SavedModel) -> None:
    """Assert that the result of `fit` is the model of the job, bit for bit."""
    for table, rows, keys in zip(job.model.tables, model.tables, model.keys, strict=True):
        ids = range(table.rows) if keys is None else keys.numpy()
        assert np.array_equal(found.rows(table.name, ids), rows.numpy())
        if keys is not None:
            assert np.array_equal(keys.numpy(), found.tables.keys(job.model.tables.index(table)))
    parameters = torch.cat([parameter.detach().flatten() for parameter in found.network.parameters()])
    assert torch.equal(parameters, model.dense)
    score = found.progressive
    assert (score.auc, score.log_loss, score.samples) == (model.auc, model.log_loss, model.scored)
