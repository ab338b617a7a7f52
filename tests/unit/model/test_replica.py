from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cpr_contract.spec import Device, ModelSpec, OptimizerSpec, SparseOptimizerSpec, TableSpec
from cpr_trainer.model.dlrm import Dlrm
from cpr_trainer.model.entrypoint import loss_share
from cpr_trainer.model.replica import DenseReplica
from support.devices import on_each_device

SPEC = ModelSpec(
    embedding_dim=4,
    bottom_mlp=(8, 4),
    top_mlp=(6, 1),
    tables=tuple(TableSpec(f"t{place}", 10) for place in range(3)),
    dense_optimizer=OptimizerSpec("Adagrad", 0.05),
    sparse_optimizer=SparseOptimizerSpec("SGD", 0.1),
)
SGD = replace(SPEC, dense_optimizer=OptimizerSpec("SGD", 0.1))
GENERATOR = torch.Generator().manual_seed(3)
DENSE, EMBEDDINGS = torch.randn(16, 13, generator=GENERATOR), torch.randn(16, 3, 4, generator=GENERATOR)
LABELS = torch.randint(0, 2, (16,), generator=GENERATOR).float()


def train(replica: DenseReplica, steps: int, slices: tuple[slice, ...] = (slice(None),)) -> None:
    for _ in range(steps):
        replica.zero_gradients()
        for part in slices:
            dense, embeddings, labels = (each[part].to(replica.device) for each in (DENSE, EMBEDDINGS, LABELS))
            loss_share(replica.model, replica.model(dense, embeddings), labels, 16).backward()
        replica.step()


@pytest.mark.parametrize(("spec", "reference"), [(SGD, torch.optim.SGD), (SPEC, torch.optim.Adagrad)])
def test_steps_equal_those_of_torch_bit_for_bit(spec: ModelSpec, reference: type[torch.optim.Optimizer]) -> None:
    replica, model = DenseReplica(spec, seed=1), Dlrm(spec, seed=1)
    optimizer = reference(model.parameters(), lr=spec.dense_optimizer.learning_rate)  # type: ignore[call-arg]
    train(replica, 5)
    for _ in range(5):
        optimizer.zero_grad()
        loss_share(model, model(DENSE, EMBEDDINGS), LABELS, 16).backward()
        optimizer.step()
    assert torch.equal(replica.parameters, torch.cat([p.detach().flatten() for p in model.parameters()]))


@on_each_device
def test_buffers_are_what_the_model_computes_with(device: Device) -> None:
    replica = DenseReplica(SPEC, 1, device)
    assert replica.parameters.is_contiguous()
    assert replica.gradients.is_contiguous()
    assert replica.parameters.shape == replica.gradients.shape
    train(replica, 1)
    assert torch.equal(
        replica.gradients, torch.cat([p.grad.flatten() for p in replica.model.parameters() if p.grad is not None])
    )
    assert replica.gradients.abs().sum() > 0
    replica.parameters.zero_()
    assert not replica.model(DENSE.to(device), EMBEDDINGS.to(device)).any()


@on_each_device
def test_gradients_of_slices_add_up_to_those_of_the_batch(device: Device) -> None:
    whole, sliced = DenseReplica(SPEC, 1, device), DenseReplica(SPEC, 1, device)
    train(whole, 3)
    train(sliced, 3, (slice(0, 5), slice(5, 5), slice(5, 16)))
    torch.testing.assert_close(sliced.state(), whole.state())


@on_each_device
@pytest.mark.parametrize(("spec", "tensors"), [(SGD, 1), (SPEC, 2)])
def test_a_replica_goes_on_from_another_ones_state(spec: ModelSpec, tensors: int, device: Device) -> None:
    whole, first, resumed = (DenseReplica(spec, seed, device) for seed in (1, 1, 2))
    train(whole, 6)
    train(first, 3)
    state = first.state()
    assert state.shape == (tensors, len(first.parameters))
    train(first, 1)  # The copy is a copy.
    resumed.load_state(state)
    train(resumed, 3)
    assert torch.equal(resumed.state(), whole.state())


def test_a_state_of_another_model_is_refused() -> None:
    replica = DenseReplica(SPEC, seed=1)
    for state in (DenseReplica(SGD, 1).state(), replica.state()[:, 1:], replica.state().double()):
        with pytest.raises(ValueError, match="does not fit"):
            replica.load_state(state)


@on_each_device
def test_all_devices_start_alike_and_a_save_fits_them_all(device: Device) -> None:
    here, there = DenseReplica(SPEC, 1), DenseReplica(SPEC, 1, device)
    assert torch.equal(there.tensors()["network"], here.state())
    train(there, 2)
    saved = there.tensors()
    assert {each.device.type for each in saved.values()} == {"cpu"}
    train(there, 1)  # The copy is a copy.
    here.load(saved)
    there.load(saved)
    assert torch.equal(here.state(), saved["network"])
    assert torch.equal(there.state().cpu(), saved["network"])
