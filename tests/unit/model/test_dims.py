"""Networks over tables of several dims: their inputs, their checks, and the projections of the DLRM."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cpr_contract.choices import Precision
from cpr_contract.model import FeatureSpec, ModelSpec, OptimizerSpec, SparseOptimizerSpec, TableSpec
from cpr_trainer.data.dataset import Batch
from cpr_trainer.embedding.access import find_access
from cpr_trainer.embedding.bags import FeatureLayout
from cpr_trainer.embedding.feature_vectors import Features
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.errors import ModelError
from cpr_trainer.model.dlrm import Dlrm
from cpr_trainer.model.entrypoint import build_network
from cpr_trainer.model.replica import DenseReplica
from cpr_trainer.trainer.compute import ComputeWorkers, compute

DIMS = (4, 3, 6)
SPEC = ModelSpec(
    embedding_dim=4,
    bottom_mlp=(8, 4),
    top_mlp=(6, 1),
    tables=(TableSpec("a", 10), TableSpec("b", 10, dim=3), TableSpec("c", 10, dim=6)),
    dense_optimizer=OptimizerSpec("SGD", 0.1),
    sparse_optimizer=SparseOptimizerSpec("SGD", 0.1),
)


def inputs(samples: int = 5) -> tuple[Tensor, tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(3)
    dense = torch.randn(samples, 13, generator=generator)
    return dense, tuple(torch.randn(samples, dim, generator=generator) for dim in DIMS)


class WithoutLastTable(nn.Module):
    """All vectors concatenated, except those of the last table."""

    def __init__(self, spec: ModelSpec, seed: int) -> None:
        super().__init__()
        self.last = nn.Linear(13 + sum(spec.table_dims[:-1]), 1)

    def forward(self, dense: Tensor, embeddings: tuple[Tensor, ...]) -> Tensor:
        assert isinstance(embeddings, tuple)
        logits: Tensor = self.last(torch.cat((dense, *embeddings[:-1]), dim=1))
        return logits.squeeze(1)


def test_dlrm_projects_vectors_of_other_dims_only() -> None:
    model, (dense, embeddings) = Dlrm(SPEC, seed=1), inputs()
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items() if "projections" in name}
    assert shapes == {"projections.1.weight": (4, 3), "projections.2.weight": (4, 6)}
    weights = [torch.eye(4), *(model.state_dict()[name] for name in shapes)]
    equal = torch.stack([values @ weight.T for values, weight in zip(embeddings, weights, strict=True)], dim=1)
    uniform = Dlrm(replace(SPEC, tables=tuple(replace(table, dim=None) for table in SPEC.tables)), seed=1)
    assert not uniform.projections
    assert uniform.state_dict().keys() == model.state_dict().keys() - shapes.keys()
    torch.testing.assert_close(model(dense, embeddings), uniform(dense, equal), msg="all other parameters start equal")


def test_tables_that_agree_on_another_dim_are_projected_too() -> None:
    spec = replace(SPEC, tables=tuple(replace(table, dim=7) for table in SPEC.tables))
    model, (dense, _) = Dlrm(spec, seed=1), inputs()
    assert model(dense, torch.randn(5, 3, 7)).shape == (5,)
    build_network(spec, 1)


def test_features_of_one_dim_and_two_precisions_are_one_block() -> None:
    tables = (TableSpec("a", 10, precision="bf16"), TableSpec("b", 10), TableSpec("c", 10, precision="bf16"))
    features = tuple(FeatureSpec(table.name, table.name, table.name) for table in tables)
    spec, (dense, _) = replace(SPEC, tables=tables, features=features), inputs()
    block = torch.randn(5, 3, 4)
    parts = Features(FeatureLayout.of(spec), [block[:, [0, 2]], block[:, [1]]], [(), ()])
    model = Dlrm(spec, seed=1)
    assert not model.projections
    assert torch.equal(model(dense, parts), model(dense, block))
    build_network(spec, 1)


def test_projections_learn() -> None:
    model, (dense, embeddings) = Dlrm(SPEC, seed=1), inputs()
    leaves = tuple(each.requires_grad_() for each in embeddings)
    model(dense, leaves).sum().backward()
    assert all(leaf.grad is not None and leaf.grad.abs().sum() > 0 for leaf in leaves)
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in model.parameters())


def test_gradients_of_a_step_are_those_of_autograd_and_0_for_a_table_that_is_not_used() -> None:
    replica = DenseReplica(SPEC, 1, factory=WithoutLastTable)
    placement = Placement.of(SPEC, 2)
    ids = np.array([[1, 2, 3], [1, 4, 3], [5, 2, 9]])
    access = find_access(placement, ids)
    sizes = [len(access.unique.of_band(access.unique.numbers, band)) for band in range(3)]
    vectors = tuple(torch.randn(size, dim) for size, dim in zip(sizes, DIMS, strict=True))
    labels = np.array([1, 0, 1], np.float32)
    found = compute(
        replica, Batch(np.zeros((3, 13), np.float32), ids, labels), access, lambda: vectors, 3, ComputeWorkers()
    )
    leaves = tuple(each.clone().requires_grad_() for each in vectors)
    logits = replica.model(torch.zeros(3, 13), access.embeddings(leaves))
    loss = nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(labels))
    expected: tuple[Tensor | None, ...] = torch.autograd.grad(loss, leaves, allow_unused=True)
    assert isinstance(found.row_gradients, tuple)
    for mine, theirs in zip(found.row_gradients[:2], expected[:2], strict=True):
        torch.testing.assert_close(mine, theirs)
    assert expected[2] is None
    assert torch.equal(found.row_gradients[2], torch.zeros(2, 6))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_user_network_gets_a_vector_of_each_table(precision: Precision) -> None:
    build_network(SPEC, 1, precision, WithoutLastTable)


def test_network_for_one_block_is_refused_with_the_expected_shapes() -> None:
    class Block(nn.Module):
        def __init__(self, spec: ModelSpec, seed: int) -> None:
            super().__init__()
            self.last = nn.Linear(12, 1)

        def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
            logits: Tensor = self.last(embeddings.flatten(1))
            return logits.squeeze(1)

    with pytest.raises(ModelError, match=r"a tuple of 3: \[n, 4\], \[n, 3\], \[n, 6\] embeddings, float32"):
        build_network(SPEC, 1, factory=Block)
    equal = replace(SPEC, tables=tuple(replace(table, dim=None) for table in SPEC.tables))
    build_network(equal, 1, factory=Block)
