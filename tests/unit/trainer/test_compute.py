"""One step's arithmetic: in which order it needs what, and what a lower precision changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cpr_contract.choices import Device, Precision
from cpr_contract.model import ModelSpec, OptimizerSpec, SparseOptimizerSpec, TableSpec
from cpr_trainer.data.dataset import Batch
from cpr_trainer.embedding.access import Access, single_tensor
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.errors import DivergedError
from cpr_trainer.model.dlrm import Dlrm
from cpr_trainer.model.entrypoint import build_network, loss_share
from cpr_trainer.model.replica import DenseReplica
from cpr_trainer.trainer.compute import Computed, ComputeWorkers, compute
from support.devices import on_each_device
from support.plain_batches import access_of, single_ids

SPEC = ModelSpec(
    embedding_dim=8,
    bottom_mlp=(32, 8),
    top_mlp=(32, 1),
    tables=tuple(TableSpec(f"t{place}", 20) for place in range(3)),
    dense_optimizer=OptimizerSpec("SGD", 0.1),
    sparse_optimizer=SparseOptimizerSpec("SGD", 0.1),
)
SAMPLES = 64


def batch() -> tuple[Batch, Access, Tensor]:
    """A batch, the rows it needs, and their vectors."""
    rng = np.random.default_rng(5)
    ids = rng.integers(0, 20, (SAMPLES, 3))
    labels = rng.integers(0, 2, SAMPLES).astype(np.float32)
    access = access_of(Placement.of(SPEC, 2), ids)
    vectors = torch.from_numpy(rng.normal(size=(len(access.unique), 8)).astype(np.float32))
    return Batch(rng.normal(size=(SAMPLES, 13)).astype(np.float32), ids, labels), access, vectors


def computed(
    precision: Precision, workers: int | ComputeWorkers = 1, device: Device = "cpu"
) -> tuple[Computed, DenseReplica]:
    samples, access, vectors = batch()
    replica = DenseReplica(SPEC, 1, device, precision)
    pool = ComputeWorkers(workers) if isinstance(workers, int) else workers
    return compute(replica, samples, access, lambda: vectors, SAMPLES, pool), replica


@on_each_device
def test_step_equals_autograd(device: Device) -> None:
    """And all of it is on the CPU, but for the gradient in the replica."""
    samples, access, vectors = batch()
    network, leaf = build_network(SPEC, 1), vectors.clone().requires_grad_()
    logits = network(torch.from_numpy(samples.dense), leaf[access.inverse.long()].view(SAMPLES, 3, 8))
    loss_share(network, logits, torch.from_numpy(samples.labels), SAMPLES).backward()
    found, replica = computed("fp32", device=device)
    assert {each.device.type for each in (single_tensor(found.row_gradients), found.logits, found.labels)} == {"cpu"}
    assert replica.gradients.device.type == device
    torch.testing.assert_close(found.logits, logits.detach())
    torch.testing.assert_close(found.row_gradients, leaf.grad)
    gradients = torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])
    torch.testing.assert_close(replica.gradients.cpu(), gradients)


@on_each_device
def test_vectors_are_fetched_once_after_the_bottom_network(device: Device) -> None:
    samples, access, vectors = batch()
    happened = []

    def hooked(spec: ModelSpec, seed: int) -> Dlrm:
        network = Dlrm(spec, seed)
        network.bottom.register_forward_hook(lambda *_: happened.append("bottom"))
        network.top.register_forward_hook(lambda *_: happened.append("top"))
        return network

    replica = DenseReplica(SPEC, 1, device, factory=hooked)
    happened.clear()  # what the probe did

    def fetch() -> Tensor:
        happened.append("fetch")
        return vectors

    compute(replica, samples, access, fetch, SAMPLES, ComputeWorkers())
    assert happened == ["bottom", "fetch", "top"]


@on_each_device
def test_bfloat16_changes_a_step_by_its_rounding_only(device: Device) -> None:
    (exact, full), (rounded, half) = computed("fp32", device=device), computed("bf16", device=device)
    exact_rows, rounded_rows = single_tensor(exact.row_gradients), single_tensor(rounded.row_gradients)
    assert exact_rows.dtype is torch.float32
    assert rounded_rows.dtype is torch.bfloat16
    assert half.gradients.dtype is half.parameters.dtype is rounded.logits.dtype is torch.float32
    assert 0 < (rounded.logits - exact.logits).abs().max() < 0.1
    for found, expected in ((half.gradients, full.gradients), (rounded_rows.float(), exact_rows)):
        assert torch.cosine_similarity(found.flatten(), expected.flatten(), dim=0) > 0.99


@on_each_device
def test_loss_that_is_no_number_ends_training(device: Device) -> None:
    samples, access, vectors = batch()
    with pytest.raises(DivergedError, match="not finite"):
        compute(DenseReplica(SPEC, 1, device), samples, access, lambda: vectors * torch.nan, SAMPLES, ComputeWorkers())


@on_each_device
def test_batch_without_weight_changes_nothing(device: Device) -> None:
    samples, access, vectors = batch()
    replica = DenseReplica(SPEC, 1, device)
    before = replica.parameters.clone()
    weightless = replace(samples, sample_weights=np.zeros(SAMPLES, np.float32))
    found = compute(replica, weightless, access, lambda: vectors, SAMPLES, ComputeWorkers(3))
    replica.step(1)
    assert (found.loss_share, found.weights is None) == (0, False)
    assert not single_tensor(found.row_gradients).any()
    assert torch.equal(replica.parameters, before)


@on_each_device
def test_empty_slice_is_computed(device: Device) -> None:
    samples, _, _ = batch()
    ids = single_ids(samples)[:0]
    none = Batch(samples.dense[:0], ids, samples.labels[:0])
    access = access_of(Placement.of(SPEC, 2), ids)
    found = compute(DenseReplica(SPEC, 1, device), none, access, lambda: torch.empty(0, 8), SAMPLES, ComputeWorkers())
    assert single_tensor(found.row_gradients).shape == (0, 8)
    assert found.loss_share == 0.0


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_workers_change_a_step_by_its_rounding_only(workers: int) -> None:
    (alone, one), (together, all_of_them) = computed("fp32"), computed("fp32", workers)
    torch.testing.assert_close(together.logits, alone.logits)
    torch.testing.assert_close(together.row_gradients, alone.row_gradients)
    torch.testing.assert_close(all_of_them.gradients, one.gradients)
    assert together.loss_share == pytest.approx(alone.loss_share)


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_workers_compute_the_same_bits_in_any_order(workers: int) -> None:
    """Sums of three floats depend on their order."""
    first, before = computed("fp32", workers)
    for order in ([*range(workers)], [*reversed(range(workers))], [*range(1, workers), 0]):
        second, after = computed("fp32", InOrder(order))
        assert torch.equal(single_tensor(first.row_gradients), single_tensor(second.row_gradients))
        assert torch.equal(before.gradients, after.gradients)


class InOrder(ComputeWorkers):
    """Workers that come one after the other, in this order."""

    def __init__(self, order: Sequence[int]) -> None:
        super().__init__(len(order))
        self._order = order

    def map(self, do: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        done = {place: do(items[place]) for place in self._order}
        return [done[place] for place in range(len(items))]


@pytest.fixture
def four_threads() -> Iterator[None]:
    """Let torch compute with four threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("four_threads")
def test_workers_compute_concurrently_on_equal_shares_of_the_processors() -> None:
    pool, all_are_there = ComputeWorkers(2), threading.Barrier(2)

    def compute_part(_: slice) -> int:
        all_are_there.wait()
        return torch.get_num_threads()

    assert pool.map(compute_part, pool.split(100)) == [2, 2]
    assert torch.get_num_threads() == 4, "the caller has all of them"


@pytest.mark.parametrize(("samples", "sizes"), [(1, [1]), (3, [3]), (5, [2, 3]), (9, [2, 2, 2, 3])])
def test_no_worker_gets_a_single_sample(samples: int, sizes: list[int]) -> None:
    parts = ComputeWorkers(4).split(samples)
    assert [part.stop - part.start for part in parts] == sizes
    assert [*range(samples)] == [each for part in parts for each in range(part.start, part.stop)]
