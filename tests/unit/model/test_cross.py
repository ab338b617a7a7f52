"""The cross network of DCN V2 in the DLRM, compared with plain torch."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from torch import Tensor, nn
from torch.nn import functional

from cpr_contract.choices import ExportFormat
from cpr_contract.model import CrossSpec, ModelSpec, OptimizerSpec, SparseOptimizerSpec, TableSpec
from cpr_contract.requests import PROGRAMS
from cpr_contract.spec import DataSpec
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.sizes import dense_size
from cpr_operator.api.validate import parse_spec
from cpr_trainer.data.synthetic import SyntheticDataset
from cpr_trainer.embedding.segments import initial_rows
from cpr_trainer.export.model_folder import transform_of
from cpr_trainer.export.program import write_network
from cpr_trainer.model.dlrm import Dlrm
from cpr_trainer.model.replica import DenseReplica
from cpr_trainer.single_process import SingleProcessTrainer
from support.documents import edited
from support.plain_batches import single_ids
from support.plain_dcn import PlainDcn
from support.programs import run_program
from support.serving import serving_job

DIM, RANK, LAYERS, NUMERIC = 4, 3, 2, 5
TABLES = tuple(TableSpec(f"t{place}", 40) for place in range(3))
SPEC = ModelSpec(
    embedding_dim=DIM,
    bottom_mlp=(8, DIM),
    top_mlp=(6, 5, 1),
    tables=TABLES,
    dense_optimizer=OptimizerSpec("Adagrad", 0.05),
    sparse_optimizer=SparseOptimizerSpec("Adagrad", 0.05),
    numeric=NUMERIC,
    cross=CrossSpec(LAYERS, RANK),
)
EXAMPLES = Path(__file__).parents[3] / "examples"


def inputs(dtype: torch.dtype, samples: int = 64) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(3)
    dense = torch.randn(samples, NUMERIC, generator=random, dtype=torch.float64)
    return dense.to(dtype), torch.randn(samples, len(TABLES), DIM, generator=random, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_cross_network_and_its_gradients_are_those_of_plain_torch(dtype: torch.dtype, tolerance: float) -> None:
    network = Dlrm(SPEC, seed=1).to(dtype)
    with torch.no_grad():  # a bias begins at zero
        for parameter in network.parameters():
            parameter.add_(torch.linspace(-0.1, 0.1, parameter.numel(), dtype=dtype).view_as(parameter))
    plain = PlainDcn(SPEC).to(dtype).take(network)
    found, expected = list[Tensor](), list[Tensor]()
    for model, results in ((network, found), (plain, expected)):
        dense, embeddings = inputs(dtype)
        logits = model(dense, embeddings.requires_grad_())
        results += [logits, *torch.autograd.grad(logits.square().sum(), (embeddings, *model.parameters()))]
    for mine, its in zip(found, expected, strict=True):
        assert (mine - its).norm() <= tolerance * its.norm()


def test_cross_network_begins_with_torchrecs_shapes_and_variances() -> None:
    layer = Dlrm(replace(SPEC, embedding_dim=64, bottom_mlp=(64,), cross=CrossSpec(1, 100)), seed=1).cross
    assert layer is not None
    first = layer.state_dict()
    assert {name: tuple(value.shape) for name, value in first.items()} == {
        "layers.0.down.weight": (100, 256),
        "layers.0.up.weight": (256, 100),
        "layers.0.up.bias": (256,),
    }
    assert not first["layers.0.up.bias"].any()
    for name in ("down", "up"):
        assert first[f"layers.0.{name}.weight"].var().item() == pytest.approx(2 / 356, rel=0.02), "Xavier"


def test_trained_model_is_that_of_plain_torch() -> None:
    """Forty steps on synthetic clicks, with optimizers of torch for the network and for the tables."""
    model = replace(SPEC, numeric=None)
    data = DataSpec("Synthetic", None, None, 40 * 64, 64, 7, 0)
    job = replace(serving_job(data, TABLES, (), None), model=model)
    dataset = SyntheticDataset(40 * 64, data.seed, TABLES)
    trainer = SingleProcessTrainer(job, dataset, data.seed)
    network = trainer.replica.model
    assert isinstance(network, Dlrm)
    plain = PlainDcn(model).take(network)
    rows = (initial_rows(model, data.seed, place, np.arange(each.rows)) for place, each in enumerate(TABLES))
    tables = [nn.Embedding.from_pretrained(torch.from_numpy(each), freeze=False) for each in rows]
    dense_rate, sparse = model.dense_optimizer, model.sparse_optimizer
    optimizers = [torch.optim.Adagrad(plain.parameters(), dense_rate.learning_rate, eps=dense_rate.epsilon)]
    optimizers += [torch.optim.Adagrad(each.parameters(), sparse.learning_rate, eps=sparse.epsilon) for each in tables]
    for step in range(1, trainer.order.steps + 1):
        batch = dataset.take(trainer.order.batch_indices(step))
        ids = torch.from_numpy(single_ids(batch)).long()
        vectors = torch.stack([table(ids[:, place]) for place, table in enumerate(tables)], dim=1)
        logits = plain(torch.from_numpy(batch.dense), vectors)
        for each in optimizers:
            each.zero_grad()
        functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(batch.labels)).backward()
        for each in optimizers:
            each.step()
    trainer.train(lambda _: None)
    for mine, its in zip(network.parameters(), plain.parameters(), strict=True):
        assert (mine - its).norm() <= 1e-4 * its.norm()
    for place, table in enumerate(tables):
        offset = trainer.tables.placement.offsets[place]
        slots = trainer.tables.placement.places(offset + np.arange(table.num_embeddings))
        found = torch.from_numpy(trainer.tables.arena.rows[slots])
        assert (found - table.weight).norm() <= 1e-4 * table.weight.norm()


@pytest.mark.parametrize("form", ["torch-export", "onnx"])
def test_exported_cross_network_computes_what_it_computes_in_training(tmp_path: Path, form: ExportFormat) -> None:
    model = replace(SPEC, numeric=None)
    job = replace(serving_job(DataSpec("Synthetic", None, 1, 100, 64, 7, 0), TABLES, (), None), model=model)
    network = Dlrm(model, seed=1).eval()
    write_network(network, model, transform_of(job), form, tmp_path)
    dense, (_, embeddings) = torch.randn(64, 13), inputs(torch.float32)
    named = {"dense": dense.numpy()}
    named |= {table.name: embeddings[:, place].numpy() for place, table in enumerate(TABLES)}
    expected = network(dense, embeddings).detach().numpy()
    np.testing.assert_allclose(run_program(tmp_path / PROGRAMS[form], named), expected, rtol=1e-5, atol=1e-6)


def test_served_weights_compute_the_same_in_numpy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delitem(sys.modules, "serve", raising=False)
    serve: Any = importlib.import_module("serve")
    network, (dense, embeddings) = Dlrm(SPEC, seed=1), inputs(torch.float32)
    weights = {name: value.numpy() for name, value in network.state_dict().items()}
    safetensors.numpy.save_file(weights, tmp_path / "dense.safetensors")
    named = {"dense": dense.numpy(), **{str(place): embeddings[:, place].numpy() for place in range(len(TABLES))}}
    found = serve.dlrm(safetensors.numpy.load_file(tmp_path / "dense.safetensors"))(named)
    np.testing.assert_allclose(found, network(dense, embeddings).detach().numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "edits",
    [
        {},
        {"interaction": {"kind": "DCNv2", "layers": 2, "rank": 3}, "numeric": 2},
        {"denseOptimizer": {"kind": "Adam", "learningRate": 0.1}, "tables": [{"name": "a", "rows": 9, "dim": 7}]},
        {"denseOptimizer": {"kind": "SGD", "learningRate": 0.1, "momentum": 0.9}},
    ],
    ids=["dots", "cross", "projected", "momentum"],
)
def test_planned_size_is_that_of_the_network(edits: dict[str, object]) -> None:
    numeric = [f"n{place}" for place in range(2)]
    columns = {"labels": ["click"], "numbers": numeric, "categories": ["a", "b"]}
    data = {"format": "CSV", "uri": "s3://b/k", "epochs": 1, "columns": columns}
    if "tables" in edits:
        columns["categories"] = ["a"]
    of_model = {f"spec.model.{name}": each for name, each in edits.items()}
    spec = parse_spec(edited({"spec.data": data} | of_model)["spec"])
    replica, size = DenseReplica(to_job_spec(spec, "uid", "name").model, 1), dense_size(spec.model)
    assert size is not None
    assert size.parameters == replica.parameters.numel()
    assert size.trainer_bytes == replica.live.nbytes + replica.gradients.nbytes
