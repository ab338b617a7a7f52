"""Networks that predict several labels, or numbers: their outputs, losses and scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from cpr_contract.model import ModelSpec, OptimizerSpec, SparseOptimizerSpec, TableSpec
from cpr_trainer.errors import ModelError
from cpr_trainer.evaluation import ProgressiveValidation
from cpr_trainer.model.entrypoint import build_network, loss_share

SPEC = ModelSpec(
    embedding_dim=4,
    bottom_mlp=(),
    top_mlp=(),
    tables=(TableSpec("user", 10),),
    dense_optimizer=OptimizerSpec("SGD", 0.1),
    sparse_optimizer=SparseOptimizerSpec("SGD", 0.1),
    entrypoint="towers:Towers",
    labels=("click", "buy"),
)
GENERATOR = torch.Generator().manual_seed(1)
LOGITS = torch.randn(12, 2, generator=GENERATOR)
LABELS = torch.randint(0, 2, (12, 2), generator=GENERATOR).float()


class Plain(nn.Module):
    """As many outputs as are predicted."""

    def __init__(self, spec: ModelSpec, seed: int) -> None:
        super().__init__()
        self.last = nn.Linear(spec.embedding_dim, len(spec.labels) + len(spec.targets))

    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        outputs: Tensor = self.last(embeddings.sum(dim=1))
        return outputs


class Squared(Plain):
    def sample_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        return (logits - labels).square().sum(dim=1)


class OfEachLabel(Plain):
    def sample_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        return (logits - labels).square()


class OneLogit(Plain):
    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        return super().forward(dense, embeddings).sum(dim=1)


class Metered(Plain):
    def metric_sums(self, logits: Tensor, labels: Tensor) -> Tensor:
        return torch.stack(((logits - labels).square().sum(), torch.tensor(float(len(labels)))))

    def metrics(self, sums: Tensor) -> Mapping[str, float]:
        return {"error": float(sums[0] / sums[1])}


class Chatty(Metered):
    def metrics(self, sums: Tensor) -> Mapping[str, float]:
        return {f"metric {number}": 0.0 for number in range(9)}


class Late(Metered):
    """Names a metric by a number, but not for the two samples of a probe."""

    def metrics(self, sums: Tensor) -> Mapping[str, float]:
        return super().metrics(sums) if sums[1] <= 2 else {1: 0.0}  # type: ignore[dict-item]


class Whole(Metered):
    def metric_sums(self, logits: Tensor, labels: Tensor) -> Tensor:
        return (logits > labels).sum(dim=0)


@pytest.mark.parametrize("sizes", [(12,), (5, 7), (0, 1, 11)])
def test_shares_of_slices_add_up_to_the_mean_over_samples_and_labels(sizes: tuple[int, ...]) -> None:
    parts = zip(LOGITS.split(sizes), LABELS.split(sizes), strict=True)
    shares = [loss_share(build_network(SPEC, 1, factory=Plain), *part, 12) for part in parts]
    expected = torch.stack([binary_cross_entropy_with_logits(LOGITS[:, k], LABELS[:, k]) for k in range(2)]).mean()
    torch.testing.assert_close(sum(shares), expected)


def test_custom_loss_gets_all_labels_of_a_sample() -> None:
    share = loss_share(build_network(SPEC, 1, factory=Squared), LOGITS[:5], LABELS[:5], 12)
    torch.testing.assert_close(share, (LOGITS - LABELS)[:5].square().sum() / 12)


class ByWeight(Metered):
    def metric_sums(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        assert weights is not None
        return torch.stack((((logits - labels).square().sum(dim=1) * weights).sum(), weights.sum()))


WEIGHTS = torch.tensor([0.0, 0.5, 1.0, 3.0]).repeat(3)


@pytest.mark.parametrize("outputs", [1, 2])
def test_weighted_loss_is_that_of_torch_with_its_gradients(outputs: int) -> None:
    logits, labels = LOGITS[:, :outputs].squeeze(1).requires_grad_(), LABELS[:, :outputs].squeeze(1)
    network = build_network(SPEC, 1, factory=Plain)
    parts = zip(logits.split((5, 7)), labels.split((5, 7)), WEIGHTS.split((5, 7)), strict=True)
    share = sum(loss_share(network, part, of_part, 12, weights) for part, of_part, weights in parts)
    weights = WEIGHTS if outputs == 1 else WEIGHTS[:, None]
    expected = nn.BCEWithLogitsLoss(weight=weights)(logits, labels)
    torch.testing.assert_close(share, expected)
    found, by_torch = (torch.autograd.grad(each, logits)[0] for each in (share, expected))  # type: ignore[arg-type]
    torch.testing.assert_close(found, by_torch)


def test_custom_loss_and_custom_metrics_are_weighted() -> None:
    share = loss_share(build_network(SPEC, 1, factory=Squared), LOGITS, LABELS, 12, WEIGHTS)
    losses = (LOGITS - LABELS).square().sum(dim=1)
    torch.testing.assert_close(share, (losses * WEIGHTS).sum() / 12)
    spec = replace(SPEC, has_weights=True)
    scores = ProgressiveValidation.of(0, spec, build_network(spec, 1, factory=ByWeight))
    scores.add(LOGITS, LABELS, 0, WEIGHTS)
    scores.merge(scores.take_delta())
    expected = (losses @ WEIGHTS / WEIGHTS.sum()).item()
    assert dict(scores.metrics())["error"] == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ModelError, match="metric_sums of the network Metered failed: TypeError"):
        build_network(spec, 1, factory=Metered)


def test_number_can_be_predicted_with_a_custom_loss() -> None:
    spec = replace(SPEC, labels=("click",), targets=("dwell",))
    assert build_network(spec, 1, factory=Squared)
    with pytest.raises(ModelError, match="has no loss for dwell, which need not be 0 or 1") as caught:
        build_network(spec, 1, factory=Plain)
    assert "sample_losses" in caught.value.remedy


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (OneLogit, r"forward .* returns torch.float32 \[2\] for 2 samples"),
        (OfEachLabel, r"sample_losses .* returns torch.float32 \[2, 2\] for 2 samples"),
        (Chatty, "metrics .* returns 9 metrics: metric 0, .*at most 8"),
        (Whole, r"metric_sums .* returns torch.int64 \[2\]"),
    ],
)
def test_unsuitable_network_is_refused(factory: Callable[[ModelSpec, int], object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build_network(SPEC, 1, factory=factory)


def test_names_of_metrics_are_checked_whenever_they_are_computed() -> None:
    scores = ProgressiveValidation.of(0, SPEC, build_network(SPEC, 1, factory=Late))
    scores.add(LOGITS, LABELS, 0)
    scores.merge(scores.take_delta())
    with pytest.raises(ModelError, match="Late returns 1 metrics: 1"):
        scores.metrics()
