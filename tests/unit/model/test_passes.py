"""The passes of a network without autograd have the results of autograd, and those of users replace it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from cpr_contract.model import CrossSpec, FeatureSpec, ModelSpec, OptimizerSpec, SparseOptimizerSpec, TableSpec
from cpr_trainer.embedding.bags import FeatureLayout
from cpr_trainer.embedding.feature_vectors import Embeddings, Features, map_embeddings, tensors_of
from cpr_trainer.errors import ModelError
from cpr_trainer.model.dlrm import Dlrm
from cpr_trainer.model.dlrm_pass import DlrmPass
from cpr_trainer.model.entrypoint import loss_share
from cpr_trainer.model.passes import Pass, pass_of
from cpr_trainer.model.replica import DenseReplica

SPEC = ModelSpec(
    embedding_dim=8,
    bottom_mlp=(20, 8),
    top_mlp=(33, 16, 1),
    tables=tuple(TableSpec(f"t{place}", 20) for place in range(5)),
    dense_optimizer=OptimizerSpec("SGD", 0.1),
    sparse_optimizer=SparseOptimizerSpec("SGD", 0.1),
)
DIMS = (8, 3, 6)
#: Tables 0 and 2 lie in one band, and 1 in another.
BANDED = (TableSpec("a", 10), TableSpec("b", 10, precision="bf16"), TableSpec("c", 10))


def of_tables(samples: int) -> Tensor:
    return torch.randn(samples, 5, 8)


def of_features(samples: int) -> Features:
    blocks = [torch.randn(samples, len(places), 8) for places in FeatureLayout.of(FEATURES).pooled]
    return Features(FeatureLayout.of(FEATURES), blocks, [()] * len(blocks))


FEATURES = replace(SPEC, tables=BANDED, features=tuple(FeatureSpec(each.name, each.name, each.name) for each in BANDED))
NETWORKS: dict[str, tuple[ModelSpec, Callable[[int], Embeddings]]] = {
    "dot products": (SPEC, of_tables),
    "a layer as wide as vector registers": (replace(SPEC, bottom_mlp=(32, 8), top_mlp=(16, 1)), of_tables),
    "DCN V2": (replace(SPEC, cross=CrossSpec(2, 4)), of_tables),
    "tables of several dims": (
        replace(SPEC, tables=tuple(TableSpec(f"d{dim}", 10, dim=dim) for dim in DIMS)),
        lambda samples: tuple(torch.randn(samples, dim) for dim in DIMS),
    ),
    "tables of one other dim": (
        replace(SPEC, tables=tuple(replace(table, dim=7) for table in SPEC.tables)),
        lambda samples: torch.randn(samples, 5, 7),
    ),
    "features of two bands": (FEATURES, of_features),
}


def gradients_of(
    own: Pass, dense: Tensor, embeddings: Embeddings, labels: Tensor, network: nn.Module
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Logits, and the gradients of the embeddings, from a step of a pass."""
    into = map_embeddings(lambda values: torch.full_like(values, torch.nan), embeddings)
    own.begin(dense)
    passed = own.finish(
        map_embeddings(Tensor.clone, embeddings),
        lambda logits: loss_share(network, logits, labels.to(logits.dtype), len(labels)),
        tensors_of(into),
    )
    return passed.logits, tensors_of(into)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=str)
@pytest.mark.parametrize("samples", [1, 70])
@pytest.mark.parametrize("kind", NETWORKS)
def test_explicit_pass_equals_autograd(kind: str, samples: int, dtype: torch.dtype, bound: float) -> None:
    """By the norm of the difference of each gradient, over that of the gradient; in a second step, too."""
    torch.manual_seed(7)
    spec, embedded = NETWORKS[kind]
    network = Dlrm(spec, 1).to(dtype)
    explicit = DlrmPass(network, dtype)
    for _ in range(2):
        dense, embeddings = (
            torch.randn(samples, 13, dtype=dtype),
            map_embeddings(lambda values: values.to(dtype), embedded(samples)),
        )
        labels = torch.randint(2, (samples,)).to(dtype)
        leaves = map_embeddings(lambda values: values.clone().requires_grad_(), embeddings)
        logits = network(dense, leaves)
        (of_logits,) = torch.autograd.grad(loss_share(network, logits, labels, samples), logits, retain_graph=True)
        expected = torch.autograd.grad(logits, (*tensors_of(leaves), *network.parameters()), of_logits)
        found = [torch.full_like(each, torch.nan) for each in expected]
        count = len(tensors_of(leaves))
        with torch.no_grad():
            explicit.begin(dense)
            own_logits = explicit.logits(embeddings)
            explicit.gradients(of_logits, found[:count], found[count:])
        for mine, theirs in zip((own_logits, *found), (logits, *expected), strict=True):
            assert (mine - theirs).norm() <= bound * theirs.norm()


def test_explicit_pass_fills_the_spare_place_of_embeddings() -> None:
    network, dense, embeddings = Dlrm(SPEC, 1), torch.randn(9, 13), of_tables(9)
    spare = torch.cat((torch.full((9, 1, 8), torch.nan), embeddings), dim=1)
    of_logits, found = torch.randn(9), []
    for values in (embeddings, spare):
        own, of_embeddings = DlrmPass(network, torch.float32), torch.empty_like(values)
        of_parameters = [torch.empty_like(parameter) for parameter in network.parameters()]
        with torch.no_grad():
            own.begin(dense)
            logits = own.logits(values)
            own.gradients(of_logits, [of_embeddings], of_parameters)
        found.append((logits.clone(), of_embeddings[:, -5:], *of_parameters))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def weights() -> tuple[Tensor, Tensor]:
    return torch.linspace(-1, 1, 13), torch.linspace(-0.5, 0.5, 40)


class Linear(nn.Module):
    """A logit that is linear in everything, with its own equations. `wrong` replaces a result of them."""

    wrong: Tensor | None = None

    def __init__(self, _spec: ModelSpec, _seed: int) -> None:
        super().__init__()
        of_dense, of_vectors = weights()
        self.of_dense, self.of_vectors = nn.Parameter(of_dense), nn.Parameter(of_vectors)
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        return dense @ self.of_dense + embeddings.flatten(1) @ self.of_vectors


class ExplicitLinear(Linear):
    def explicit_pass(self, dtype: torch.dtype) -> LinearEquations:
        assert dtype is torch.float32
        return LinearEquations(self)


class LinearEquations:
    def __init__(self, network: Linear) -> None:
        self._network = network

    def begin(self, dense: Tensor) -> None:
        self._dense = dense

    def logits(self, embeddings: Tensor) -> Tensor:
        self._embeddings = embeddings
        if self._network.wrong is not None:
            return self._network.wrong
        logits: Tensor = self._network.forward(self._dense, embeddings)
        return logits

    def gradients(self, of_logits: Tensor, of_embeddings: Sequence[Tensor], of_parameters: Sequence[Tensor]) -> None:
        of_dense, of_vectors, of_frozen = of_parameters
        of_embeddings[0].copy_(torch.outer(of_logits, self._network.of_vectors).view_as(self._embeddings))
        torch.mv(self._dense.t(), of_logits, out=of_dense)
        torch.mv(self._embeddings.flatten(1).t(), of_logits, out=of_vectors)
        of_frozen.fill_(1)  # a frozen parameter has a gradient, too


def test_network_of_a_user_with_an_explicit_pass_has_the_gradients_of_autograd() -> None:
    dense, embeddings, labels = torch.randn(6, 13), of_tables(6), torch.randint(2, (6,)).float()
    found = []
    for factory in (Linear, ExplicitLinear):
        replica = DenseReplica(SPEC, 1, factory=factory)
        (own,) = replica.passes(1)
        found.append((*gradients_of(own, dense, embeddings, labels, replica.model), replica.gradients))
    (logits, (of_embeddings,), of_parameters), (theirs, (their_embeddings,), their_parameters) = found
    torch.testing.assert_close(logits, theirs)
    torch.testing.assert_close(of_embeddings, their_embeddings)
    torch.testing.assert_close(of_parameters, their_parameters)


def test_explicit_pass_of_a_user_with_other_logits_is_refused() -> None:
    replica = DenseReplica(SPEC, 1, factory=ExplicitLinear)
    replica.model.wrong = torch.zeros(2, 2)
    (own,) = replica.passes(1)
    with pytest.raises(ModelError, match=r"logits of its explicit pass .* returns torch.float32 \[2, 2\]"):
        gradients_of(own, torch.randn(2, 13), of_tables(2), torch.zeros(2), replica.model)


@pytest.mark.parametrize("built_in", [True, False])
def test_network_that_a_user_has_changed_is_not_computed_by_the_equations_of_the_built_in_one(
    *, built_in: bool
) -> None:
    network = Dlrm(SPEC, 1)
    of_parameters = [torch.empty_like(parameter) for parameter in network.parameters()]
    own = pass_of(network, torch.float32, (), of_parameters, built_in=built_in)
    network.top.register_forward_hook(lambda _module, _inputs, output: output * 0)
    logits, _ = gradients_of(own, torch.randn(4, 13), own_embeddings(own), torch.zeros(4), network)
    assert bool(logits.any()) is built_in


def own_embeddings(own: Pass) -> Tensor:
    return torch.randn(4, own.spare + 5, 8)
