"""Networks of the user: their checks, and saves of their whole state."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cpr_contract.model import ModelSpec, OptimizerSpec, SparseOptimizerSpec, TableSpec
from cpr_trainer.data.dataset import Batch
from cpr_trainer.embedding.access import Access, single_tensor
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.errors import ModelError
from cpr_trainer.evaluation import ProgressiveValidation
from cpr_trainer.model import entrypoint
from cpr_trainer.model.dlrm import Dlrm
from cpr_trainer.model.entrypoint import build_network, loss_share, start
from cpr_trainer.model.replica import DenseReplica
from cpr_trainer.trainer.compute import ComputeWorkers, compute
from support.plain_batches import access_of

SPEC = ModelSpec(
    embedding_dim=4,
    bottom_mlp=(8, 4),
    top_mlp=(6, 1),
    tables=tuple(TableSpec(f"t{place}", 10) for place in range(3)),
    dense_optimizer=OptimizerSpec("Adagrad", 0.1),
    sparse_optimizer=SparseOptimizerSpec("SGD", 0.1),
)
GENERATOR = torch.Generator().manual_seed(3)
DENSE, EMBEDDINGS = torch.randn(16, 13, generator=GENERATOR), torch.randn(16, 3, 4, generator=GENERATOR)
LABELS = torch.randint(0, 2, (16,), generator=GENERATOR).float()


class Normed(nn.Module):
    """A network with buffers, one of them of integers."""

    def __init__(self, spec: ModelSpec, seed: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(13)
        self.last = nn.Linear(13 + len(spec.tables) * spec.embedding_dim, 1)

    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        logits: Tensor = self.last(torch.cat((self.norm(dense), embeddings.flatten(1)), dim=1))
        return logits.squeeze(1)


class Weighted(Normed):
    """A custom loss: clicks count threefold."""

    def sample_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        losses = nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
        return losses * (1 + 2 * labels)


class TooWide(Normed):
    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        return super().forward(dense, embeddings).unsqueeze(1)


class Deaf(Normed):
    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        return super().forward(dense, torch.zeros_like(embeddings))


class OneLoss(Normed):
    def sample_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        return (logits - labels).square().mean()


class Halved(Normed):
    """Sums into a tensor of its own type, which embeddings of a lower precision do not have."""

    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        sums = torch.zeros(len(dense), embeddings.shape[2])
        for table in embeddings.unbind(1):
            sums.index_add_(0, torch.arange(len(dense)), table)
        return sums.sum(dim=1)


class Secretive(Normed):
    def get_extra_state(self) -> str:
        return "what no tensor holds"


class Narrow(Normed):
    def __init__(self, spec: ModelSpec, seed: int) -> None:
        super().__init__(replace(spec, tables=spec.tables[:1]), seed)


def no_module(spec: ModelSpec, seed: int) -> str:
    return "a network"


def halves(spec: ModelSpec, seed: int) -> nn.Module:
    network = Normed(spec, seed)
    network.last.bias = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    return network


def fails(spec: ModelSpec, seed: int) -> nn.Module:
    raise KeyError("width")


@pytest.fixture
def spec_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], ModelSpec]:
    """Lets a factory be found under a name."""

    def spec_of(factory: object) -> ModelSpec:
        monkeypatch.setattr(entrypoint, "own_factory", factory, raising=False)
        return replace(SPEC, entrypoint="cpr_trainer.model.entrypoint:own_factory")

    return spec_of


def test_seed_fixes_a_network_that_does_not_use_it(spec_of: Callable[[object], ModelSpec]) -> None:
    before = torch.get_rng_state()
    one, same, other = (DenseReplica(spec_of(Normed), seed).live for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), before)


def train(replica: DenseReplica, steps: int) -> None:
    for step in range(1, steps + 1):
        replica.gradients.zero_()
        loss_share(replica.model, start(replica.model, DENSE)(EMBEDDINGS), LABELS, 16).backward()
        replica.step(step)


def test_replica_with_buffers_continues_from_the_tensors_of_another(spec_of: Callable[[object], ModelSpec]) -> None:
    whole, first, resumed = (DenseReplica(spec_of(Normed), seed) for seed in (1, 1, 2))
    assert first.model.get_buffer("norm.num_batches_tracked") == 0, "the probe is not a sample"
    train(whole, 6)
    train(first, 3)
    tensors = first.tensors()
    assert set(tensors) == {
        "network",
        "buffer.norm.running_mean",
        "buffer.norm.running_var",
        "buffer.norm.num_batches_tracked",
    }
    train(first, 1)  # The copies are copies.
    resumed.load(tensors)
    train(resumed, 3)
    for name, value in whole.tensors().items():
        assert torch.equal(resumed.tensors()[name], value), name


def test_tensors_of_another_network_are_refused(spec_of: Callable[[object], ModelSpec]) -> None:
    replica = DenseReplica(spec_of(Normed), 1)
    tensors = replica.tensors()
    with pytest.raises(ModelError, match=r"of another network: the buffer norm\.running_var is missing"):
        replica.load({name: value for name, value in tensors.items() if "running_var" not in name})
    with pytest.raises(ModelError, match=r"norm\.running_mean is \(7,\), not \(13,\)"):
        replica.load(tensors | {"buffer.norm.running_mean": torch.zeros(7)})


def slice_of(samples: int) -> tuple[Batch, Access, Tensor]:
    """The first samples, the rows that they need, and vectors for these."""
    ids = np.random.default_rng(1).integers(0, 10, (samples, 3))
    access = access_of(Placement.of(SPEC, 1), ids)
    vectors = torch.randn(len(access.unique), 4, generator=torch.Generator().manual_seed(5))
    return Batch(DENSE[:samples].numpy(), ids, LABELS[:samples].numpy()), access, vectors


def test_custom_loss_is_minimized(spec_of: Callable[[object], ModelSpec]) -> None:
    batch, access, vectors = slice_of(16)
    replica = DenseReplica(spec_of(Weighted), 1)
    found = compute(replica, batch, access, lambda: vectors, 32, ComputeWorkers())
    embeddings = access.embeddings(vectors).requires_grad_()
    weights = 1 + 2 * LABELS
    expected = nn.functional.binary_cross_entropy_with_logits(replica.model(DENSE, embeddings), LABELS, weights)
    (gradient,) = torch.autograd.grad(expected / 2, embeddings)
    assert found.loss_share == pytest.approx(expected.item() / 2)
    torch.testing.assert_close(found.row_gradients, access.sum_gradients(gradient))


@pytest.mark.parametrize("samples", [0, 1])
def test_batch_statistics_skip_slices_that_are_too_small(spec_of: Callable[[object], ModelSpec], samples: int) -> None:
    replica = DenseReplica(spec_of(Normed), 1)
    (few, access, vectors), whole = slice_of(samples), slice_of(16)
    found = compute(replica, few, access, lambda: vectors, 16, ComputeWorkers())
    assert single_tensor(found.row_gradients).shape == (3 * samples, 4)
    assert bool(replica.gradients.any()) == bool(samples)
    replica.step(1)
    assert replica.model.get_buffer("norm.num_batches_tracked") == 0
    compute(replica, whole[0], whole[1], lambda: whole[2], 16, ComputeWorkers())
    replica.step(2)
    assert replica.model.get_buffer("norm.num_batches_tracked") == 1, "the next slice is one of training again"


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (no_module, "returned str, not a torch.nn.Module"),
        ("a text", "cannot be called"),
        (fails, "failed: KeyError: 'width'"),
        (TooWide, r"forward .* returns torch.float32 \[2, 1\] for 2 samples"),
        (Deaf, "does not use its embeddings"),
        (OneLoss, r"sample_losses .* returns torch.float32 \[\] for 2 samples"),
        (Narrow, r"forward of the network Narrow failed: RuntimeError.* \[n, 3, 4\] embeddings"),
        (halves, "forward of the network Normed failed|not float32"),
        (Secretive, "not of tensors alone"),
    ],
)
def test_unsuitable_network_is_refused(spec_of: Callable[[object], ModelSpec], factory: object, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        DenseReplica(spec_of(factory), 1)


class Late(Normed):
    """Works in the probe; later one of its methods fails, or returns something else."""

    late: Callable[[], object] | None = None
    method = ""

    def _result(self, method: str, usual: object) -> Any:
        return self.late() if self.late and self.method == method else usual

    def before_embeddings(self, dense: Tensor) -> Tensor:
        found: Tensor = self._result("before_embeddings", dense)
        return found

    def with_embeddings(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        found: Tensor = self._result("with_embeddings", self.forward(dense, embeddings))
        return found

    def sample_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        usual = Backwards.apply(logits - labels) if self.method == "backward" and self.late else logits - labels
        found: Tensor = self._result("sample_losses", usual)
        return found

    def metric_sums(self, logits: Tensor, labels: Tensor) -> Tensor:
        found: Tensor = self._result("metric_sums", torch.zeros(3))
        return found

    def metrics(self, sums: Tensor) -> dict[str, float]:
        found: dict[str, float] = self._result("metrics", {"mine": 1.0})
        return found


class Backwards(torch.autograd.Function):
    @staticmethod
    def forward(_context: object, values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def backward(_context: object, _gradient: Tensor) -> Tensor:
        return fails(SPEC, 1)  # type: ignore[return-value]


def build() -> object:
    return fails(SPEC, 1)


def leave() -> object:
    sys.exit(3)


def exhausted() -> object:
    raise MemoryError


def broken() -> object:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def late_network() -> tuple[Late, Callable[[], object]]:
    """A network that computes a slice, its scores and its metrics, as a trainer does."""
    replica = DenseReplica(SPEC, 1, factory=Late)
    network = replica.model
    assert isinstance(network, Late)
    batch, access, vectors = slice_of(16)
    validation = ProgressiveValidation.of(0, SPEC, network)

    def score() -> object:
        computed = compute(replica, batch, access, lambda: vectors, 16, ComputeWorkers())
        validation.add(computed.logits, computed.labels, 0)
        validation.merge(validation.take_delta())
        return dict(validation.metrics())

    return network, score


@pytest.mark.parametrize(
    ("method", "late", "message"),
    [
        *(
            (method, build, r"of the network Late failed: KeyError: 'width' \(.*test_entrypoint.py, line \d+\)")
            for method in (
                "before_embeddings",
                "with_embeddings",
                "sample_losses",
                "backward",
                "metric_sums",
                "metrics",
            )
        ),
        ("with_embeddings", leave, r"SystemExit: 3 \(.*test_entrypoint.py, line \d+\)"),
        ("with_embeddings", lambda: torch.zeros(16, 1), r"returns torch.float32 \[16, 1\] for 16 samples"),
        ("with_embeddings", lambda: torch.zeros(16), "backward pass .* does not require grad"),
        ("sample_losses", lambda: torch.zeros(()), r"returns torch.float32 \[\] for 16 samples"),
        ("metric_sums", lambda: torch.zeros(2), r"returns torch.float32 \[2\] for 16 samples"),
        ("metric_sums", lambda: None, "returns NoneType"),
        ("metrics", lambda: None, "AttributeError"),
        ("metrics", lambda: {"a": "b"}, "ValueError: could not convert string to float: 'b'"),
        ("metrics", lambda: {str(place): 0.0 for place in range(9)}, "returns 9 metrics"),
        ("metrics", lambda: {"x" * 33: 0.0}, "returns 1 metrics: x"),
    ],
)
def test_late_error_of_a_network_is_a_model_error_with_its_line(
    method: str, late: Callable[[], object], message: str
) -> None:
    network, score = late_network()
    assert score() == {"calibration": ANY, "mine": 1.0}
    network.method, network.late = method, late
    with pytest.raises(ModelError, match=message):
        score()


@pytest.mark.parametrize("late", [exhausted, broken])
def test_memory_or_device_error_is_no_model_error(late: Callable[[], object]) -> None:
    network, score = late_network()
    network.method, network.late = "with_embeddings", late
    with pytest.raises((MemoryError, RuntimeError)):
        score()


def lost_volume(_spec: ModelSpec, _seed: int) -> nn.Module:
    raise OSError(errno.ESTALE, "Stale file handle")


def timed_out(_spec: ModelSpec, _seed: int) -> nn.Module:
    raise TimeoutError("the hub does not answer")


def lost_file(_spec: ModelSpec, _seed: int) -> nn.Module:
    raise FileNotFoundError(errno.ENOENT, "No such file", "/weights.pt")


@pytest.mark.parametrize(
    ("factory", "raised"), [(lost_volume, OSError), (timed_out, TimeoutError), (lost_file, ModelError)]
)
def test_outage_while_a_network_is_built_is_no_bad_model(
    spec_of: Callable[[object], ModelSpec], factory: object, raised: type[Exception]
) -> None:
    with pytest.raises(raised):
        build_network(spec_of(factory), 1)


def test_undefined_metrics_are_left_out() -> None:
    network, score = late_network()
    network.method, network.late = "metrics", lambda: {"none": None, "nan": torch.nan, "two": torch.tensor(2)}
    assert score() == {"calibration": ANY, "two": 2.0}
    network.late = lambda: 1 / 0
    assert score() == {"calibration": ANY}


def test_a_network_is_tried_in_the_precision_of_the_job(spec_of: Callable[[object], ModelSpec]) -> None:
    assert DenseReplica(spec_of(Halved), 1).parameters.numel()
    with pytest.raises(ModelError, match=r"\[n, 3, 4\] embeddings, bfloat16"):
        DenseReplica(spec_of(Halved), 1, precision="bf16")


def test_network_can_be_built_without_gradients() -> None:
    with torch.no_grad():
        assert isinstance(build_network(SPEC, 1), Dlrm)


@pytest.mark.parametrize("name", ["not_there:build", "cpr_trainer.model.dlrm:not_there"])
def test_entrypoint_that_cannot_be_imported_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match=f"{name} cannot be imported"):
        build_network(replace(SPEC, entrypoint=name), 1)
