from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cpr_contract.choices import Device
from cpr_contract.model import ModelSpec, OptimizerSpec, SparseOptimizerSpec, TableSpec
from cpr_trainer.errors import ModelError
from cpr_trainer.model.dense_optimizer import DenseOptimizer, memory_width
from cpr_trainer.model.dlrm import Dlrm
from cpr_trainer.model.entrypoint import loss_share
from cpr_trainer.model.replica import NETWORK, DenseReplica
from support.devices import on_each_device
from support.oracle import torch_optimizer

SPEC = ModelSpec(
    embedding_dim=4,
    bottom_mlp=(8, 4),
    top_mlp=(6, 1),
    tables=tuple(TableSpec(f"t{place}", 10) for place in range(3)),
    dense_optimizer=OptimizerSpec("Adagrad", 0.05),
    sparse_optimizer=SparseOptimizerSpec("SGD", 0.1),
)
SGD = replace(SPEC, dense_optimizer=OptimizerSpec("SGD", 0.1))
#: Every kind, with its state and without, and every field at least once; by name.
OPTIMIZERS = {
    "SGD": OptimizerSpec("SGD", 0.1),
    "SGD, decay": OptimizerSpec("SGD", 0.1, weight_decay=0.01),
    "SGD, momentum": OptimizerSpec("SGD", 0.1, momentum=0.8),
    "SGD, Nesterov": OptimizerSpec("SGD", 0.1, momentum=0.8, nesterov=True, weight_decay=0.01),
    "Adagrad": OptimizerSpec("Adagrad", 0.05),
    "Adagrad, epsilon": OptimizerSpec("Adagrad", 0.05, epsilon=0.1, weight_decay=0.01),
    "Adam": OptimizerSpec("Adam", 0.01, epsilon=1e-8),
    "Adam, all set": OptimizerSpec("Adam", 0.01, epsilon=1e-3, beta1=0.7, beta2=0.95, weight_decay=0.01),
    "AdamW": OptimizerSpec("AdamW", 0.01, epsilon=1e-8, weight_decay=0.1),
}
GENERATOR = torch.Generator().manual_seed(3)
DENSE, EMBEDDINGS = torch.randn(16, 13, generator=GENERATOR), torch.randn(16, 3, 4, generator=GENERATOR)
LABELS = torch.randint(0, 2, (16,), generator=GENERATOR).float()


def train(replica: DenseReplica, steps: int, slices: tuple[slice, ...] = (slice(None),)) -> None:
    for step in range(1, steps + 1):
        replica.gradients.zero_()
        for part in slices:
            dense, embeddings, labels = (each[part].to(replica.device) for each in (DENSE, EMBEDDINGS, LABELS))
            loss_share(replica.model, replica.model(dense, embeddings), labels, 16).backward()
        replica.step(step)


def with_optimizer(optimizer: OptimizerSpec) -> ModelSpec:
    return replace(SPEC, dense_optimizer=optimizer)


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_steps_equal_those_of_torch_bit_for_bit(optimizer: OptimizerSpec) -> None:
    spec = with_optimizer(optimizer)
    replica, model = DenseReplica(spec, seed=1), Dlrm(spec, seed=1)
    theirs = torch_optimizer(optimizer, model.parameters())
    train(replica, 5)
    for _ in range(5):
        theirs.zero_grad()
        loss_share(model, model(DENSE, EMBEDDINGS), LABELS, 16).backward()
        theirs.step()
    assert torch.equal(replica.parameters, torch.cat([p.detach().flatten() for p in model.parameters()]))


def test_gradients_are_clipped_by_their_norm() -> None:
    optimizer = OptimizerSpec("SGD", 1.0, clip_norm=0.5)
    replica = DenseReplica(with_optimizer(optimizer), seed=1)
    size = len(replica.parameters)
    for scale in (1.0, 1e-3):
        gradients = scale * torch.randn(size, generator=GENERATOR)
        expected = torch.nn.Parameter(replica.parameters.clone())
        expected.grad = gradients.clone()
        norm = torch.nn.utils.clip_grad_norm_([expected], 0.5)
        assert (norm > 0.5) == (scale == 1.0)
        replica.gradients.copy_(gradients)
        replica.step(1)
        assert torch.equal(replica.parameters, (expected - expected.grad).detach())


def test_a_norm_is_the_same_with_any_number_of_threads() -> None:
    """Else trainers with other numbers of CPUs would drift apart, as by a norm from `torch.dot`."""
    parameters, found = torch.zeros(3 * 2**17 + 5), list[torch.Tensor]()
    gradients = torch.randn(len(parameters), generator=GENERATOR)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3, 7):
            torch.set_num_threads(count)
            copy = gradients.clone()
            DenseOptimizer(OptimizerSpec("SGD", 1.0, clip_norm=1.0), parameters, copy, torch.zeros(0, 1)).step(1)
            found.append(copy)
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, found[0]) for one in found)


@on_each_device
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_replica_continues_from_the_state_of_another(optimizer: OptimizerSpec, device: Device) -> None:
    spec = with_optimizer(optimizer)
    whole, first, resumed = (DenseReplica(spec, seed, device) for seed in (1, 1, 2))
    train(whole, 6)
    train(first, 3)
    saved = first.tensors()
    assert saved["network"].shape == (1 + memory_width(optimizer), len(first.parameters))
    train(first, 1)  # The copy is a copy.
    resumed.load(saved)
    train(resumed, 3)
    assert all(torch.equal(found, whole.tensors()[name]) for name, found in resumed.tensors().items())


def test_a_state_of_another_model_is_refused() -> None:
    replica = DenseReplica(SPEC, seed=1)
    for state in (DenseReplica(SGD, 1).live, replica.live[:, 1:], replica.live.double()):
        with pytest.raises(ModelError, match="does not fit"):
            replica.load({NETWORK: state})


@pytest.mark.parametrize("saved", ["SGD", "SGD, momentum", "Adagrad", "Adam"])
@pytest.mark.parametrize("loaded", ["SGD", "SGD, momentum", "Adagrad", "Adam"])
def test_state_of_another_optimizer_is_refused_by_name(saved: str, loaded: str) -> None:
    """Momentum and the sums of Adagrad are both one value for each parameter."""
    tensors = DenseReplica(with_optimizer(OPTIMIZERS[saved]), 1).tensors()
    replica = DenseReplica(with_optimizer(OPTIMIZERS[loaded]), 1)
    if saved == loaded:
        replica.load(tensors)
        return
    with pytest.raises(ModelError, match=r"another network: .*model\.denseOptimizer"):
        replica.load(tensors)


@on_each_device
def test_all_devices_start_equal_and_load_each_others_saves(device: Device) -> None:
    here, there = DenseReplica(SPEC, 1), DenseReplica(SPEC, 1, device)
    assert torch.equal(there.tensors()["network"], here.live)
    train(there, 2)
    saved = there.tensors()
    assert {each.device.type for each in saved.values()} == {"cpu"}
    train(there, 1)  # The copy is a copy.
    here.load(saved)
    there.load(saved)
    assert torch.equal(here.live, saved["network"])
    assert torch.equal(there.live.cpu(), saved["network"])
