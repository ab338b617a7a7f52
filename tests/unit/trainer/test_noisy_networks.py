"""Steps of networks with random numbers and buffers, computed again: in any process, and in any order of threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cpr_contract.choices import DenseSync
from cpr_contract.model import ModelSpec, OptimizerSpec, SparseOptimizerSpec, TableSpec
from cpr_trainer.data.dataset import Batch
from cpr_trainer.embedding.access import single_tensor
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.model.replica import DenseReplica
from cpr_trainer.trainer.compute import Computed, ComputeWorkers, compute
from cpr_trainer.trainer.control import RosterChanged
from cpr_trainer.trainer.state import DenseState
from support.local_job import small_job
from support.plain_batches import access_of

SPEC = ModelSpec(
    embedding_dim=4,
    bottom_mlp=(),
    top_mlp=(),
    tables=(TableSpec("t0", 20), TableSpec("t1", 20)),
    dense_optimizer=OptimizerSpec("SGD", 0.1),
    sparse_optimizer=SparseOptimizerSpec("SGD", 0.1),
)
SAMPLES, SEED, RANK = 24, 7, 1


class Layers(nn.Module):
    """A network in two halves, with a layer in each."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.first, self.second = layers
        self.last = nn.Linear(13 + 8, 1)

    def before_embeddings(self, dense: Tensor) -> Tensor:
        found: Tensor = self.first(dense)
        return found

    def with_embeddings(self, begun: Tensor, embeddings: Tensor) -> Tensor:
        logits: Tensor = self.last(self.second(torch.cat((begun, embeddings.flatten(1)), dim=1)))
        return logits.squeeze(1)


def drops(_spec: ModelSpec, _seed: int) -> nn.Module:
    return Layers(nn.Dropout(0.3), nn.Dropout(0.3))


def normalises(_spec: ModelSpec, _seed: int) -> nn.Module:
    return Layers(nn.BatchNorm1d(13), nn.BatchNorm1d(21))


def both(_spec: ModelSpec, _seed: int) -> nn.Module:
    return Layers(nn.BatchNorm1d(13), nn.Dropout(0.3))


def plain(_spec: ModelSpec, _seed: int) -> nn.Module:
    return Layers(nn.ReLU(), nn.Identity())


NETWORKS = pytest.mark.parametrize("factory", [drops, normalises, both])


class InOrder(ComputeWorkers):
    """Workers with parts that run one after the other, in this order."""

    def __init__(self, order: Sequence[int]) -> None:
        super().__init__(len(order))
        self._order = order

    def map(self, do: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        done = {place: do(items[place]) for place in self._order}
        return [done[place] for place in range(len(items))]


class Process:
    """A process that computes steps; its own random numbers are of no account."""

    def __init__(self, factory: Any, workers: ComputeWorkers | None = None, seed: int | None = None) -> None:
        self.replica = DenseReplica(SPEC, 1, factory=factory)
        self.workers = workers or ComputeWorkers()
        if seed is not None:
            torch.manual_seed(seed)

    def compute(self, step: int, rank: int = RANK, fetch: Callable[[Tensor], Tensor] = Tensor.clone) -> Computed:
        random = np.random.default_rng(step)
        ids = random.integers(0, 20, (SAMPLES, 2))
        access = access_of(Placement.of(SPEC, 1), ids)
        vectors = torch.from_numpy(random.normal(size=(len(access.unique), 4)).astype(np.float32))
        labels = random.integers(0, 2, SAMPLES).astype(np.float32)
        batch = Batch(random.normal(size=(SAMPLES, 13)).astype(np.float32), ids, labels)
        names = (SEED, rank, step)
        return compute(self.replica, batch, access, lambda: fetch(vectors), SAMPLES, self.workers, names)

    def train(self, first: int, last: int) -> None:
        for step in range(first, last + 1):
            self.compute(step)
            self.replica.step(step)

    @property
    def bits(self) -> dict[str, bytes]:
        return {name: each.numpy().tobytes() for name, each in self.replica.tensors().items()}


def bits_of(computed: Computed, replica: DenseReplica) -> tuple[bytes, ...]:
    tensors = (computed.logits, single_tensor(computed.row_gradients), replica.gradients, *replica.computed_buffers)
    return tuple(each.numpy().tobytes() for each in tensors)


@NETWORKS
def test_successor_computes_the_bits_of_its_predecessor(factory: Any) -> None:
    calm, first, successor = Process(factory, seed=1), Process(factory, seed=2), Process(factory, seed=3)
    calm.train(1, 6)
    first.train(1, 3)
    successor.replica.load(first.replica.tensors())
    torch.rand(5)
    successor.train(4, 6)
    assert successor.bits == calm.bits


@NETWORKS
def test_step_is_computed_again_from_the_last_complete_step(factory: Any) -> None:
    """A past step, as in a repair; one whose vectors do not come; and one whose group breaks before its sum."""
    calm, disturbed = Process(factory), Process(factory)
    calm.train(1, 4)
    disturbed.train(1, 2)
    saved = disturbed.bits
    disturbed.compute(2)

    def broken(_: Tensor) -> Tensor:
        raise RosterChanged("a member is lost")

    with pytest.raises(RosterChanged):
        disturbed.compute(3, fetch=broken)
    disturbed.compute(3)
    assert disturbed.bits == saved, "only complete steps change a state"
    disturbed.train(3, 4)
    assert disturbed.bits == calm.bits


@NETWORKS
@pytest.mark.parametrize("workers", [2, 3])
def test_workers_in_any_order_compute_the_same_bits(factory: Any, workers: int) -> None:
    expected: set[tuple[bytes, ...]] = set()
    orders = ([*range(workers)], [*reversed(range(workers))], [*range(1, workers), 0])
    for pool in (ComputeWorkers(workers), *map(InOrder, orders)):
        process = Process(factory, pool)
        for _ in range(2):  # at first concurrently, and again in turn; then in turn at once
            expected.add(bits_of(process.compute(4), process.replica))
            assert process.replica.serial
    assert len(expected) == 1


def test_parts_steps_ranks_and_halves_draw_different_numbers() -> None:
    process, masks = Process(drops, ComputeWorkers(2)), list[bytes]()
    for layer in ("first", "second"):
        process.replica.model.get_submodule(layer).register_forward_hook(
            lambda _module, given, found: masks.append((found[:, :13] / given[0][:, :13] != 0).numpy().tobytes())
        )
    process.compute(1)
    del masks[:]
    for rank, step in ((0, 1), (0, 2), (1, 1)):
        process.compute(step, rank)
    assert len(masks) == len({*masks}) == 12


def wait(barrier: threading.Barrier) -> None:
    barrier.wait()


def test_workers_of_other_networks_compute_concurrently() -> None:
    pool, both_there = ComputeWorkers(2), threading.Barrier(2, timeout=20)
    process = Process(plain, pool)
    process.replica.model.get_submodule("first").register_forward_pre_hook(lambda *_: wait(both_there))
    for step in (1, 2):
        process.compute(step)
    assert not process.replica.serial
    assert process.replica.computed_buffers == ()


def test_network_that_draws_later_is_found_out_then() -> None:
    alone, together = Process(drops, ComputeWorkers(2)), Process(drops, InOrder((1, 0)))
    for process in (alone, together):
        layers = [each for each in process.replica.model.modules() if isinstance(each, nn.Dropout)]
        layers[0].p = layers[1].p = 0.0
        process.train(1, 2)
        assert not process.replica.serial
        layers[1].p = 0.5
        process.train(3, 4)
        assert process.replica.serial
    assert alone.bits == together.bits


class Normed(nn.Module):
    """A network with buffers, of two types."""

    def __init__(self, _spec: ModelSpec, _seed: int) -> None:
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(13), nn.Linear(13, 1)

    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        logits: Tensor = self.last(self.norm(dense)).squeeze(1) + embeddings.sum((1, 2))
        return logits


def state_of(folder: Path, rank: int, trainers: int, sync: DenseSync = "AllReduce") -> DenseState:
    """Return the state of a rank that has computed its slice of the first step."""
    job = small_job(folder, samples=1000)
    model = replace(job.model, entrypoint=f"{__name__}:Normed")
    state = DenseState(replace(job, model=model, trainers=trainers, dense_sync=sync), 1000, rank)
    state.begin({})
    with state.replica.computing():
        state.replica.model(numbers_of(rank), torch.zeros(8, 4, 8))
    return state


def numbers_of(rank: int) -> Tensor:
    return torch.rand(8, 13, generator=torch.Generator().manual_seed(rank))


def test_all_ranks_take_the_buffers_of_rank_0(tmp_path: Path) -> None:
    states = [state_of(tmp_path, rank, 3) for rank in range(3)]
    shared = [state.buffers_to_sum() for state in states]
    total = torch.stack([buffers for (buffers,) in shared]).sum(0)
    expected = nn.BatchNorm1d(13)
    expected(numbers_of(0))
    for state, (buffers,) in zip(states, shared, strict=True):
        buffers.copy_(total)
        state.replica.step(1)
        found = {name.removeprefix("norm."): each for name, each in state.replica.buffers().items()}
        assert found.keys() == dict(expected.named_buffers()).keys()
        assert all(torch.equal(each, expected.get_buffer(name)) for name, each in found.items())


@pytest.mark.parametrize(("trainers", "sync"), [(1, "AllReduce"), (2, "ShadowEASGD")])
def test_trainers_without_lockstep_keep_their_own_buffers(tmp_path: Path, trainers: int, sync: DenseSync) -> None:
    state = state_of(tmp_path, trainers - 1, trainers, sync)
    assert state.buffers_to_sum() == ()
    state.replica.step(1)
    assert state.replica.buffers()["norm.num_batches_tracked"] == 1
