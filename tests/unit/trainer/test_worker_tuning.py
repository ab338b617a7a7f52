"""The number of workers is measured on a separate network, without an effect on training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from cpr_contract.model import ModelSpec
from cpr_contract.spec import JobSpec
from cpr_trainer.data.open import open_dataset
from cpr_trainer.data.order import BatchOrder
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.store import Uris
from cpr_trainer.trainer import worker_tuning
from cpr_trainer.trainer.control import Terminated
from cpr_trainer.trainer.worker_tuning import (
    Trial,
    WorkerChoice,
    candidate_counts,
    choose_count,
    choose_workers,
    measure,
)
from support.local_job import small_job


class Own(nn.Module):
    """A small network with one more layer of a kind to be tried."""

    def __init__(self, spec: ModelSpec, layer: nn.Module) -> None:
        super().__init__()
        width = spec.dense_width + len(spec.tables) * spec.embedding_dim
        self.layers = nn.Sequential(nn.Linear(width, 8), layer, nn.ReLU(), nn.Linear(8, 1))

    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        """Return logits, [n]."""
        return self.layers(torch.cat((dense, embeddings.flatten(1)), dim=1)).squeeze(1)  # type: ignore[no-any-return]


def plain(spec: ModelSpec, _seed: int) -> nn.Module:
    return Own(spec, nn.Identity())


def normalises(spec: ModelSpec, _seed: int) -> nn.Module:
    return Own(spec, nn.BatchNorm1d(8))


def drops(spec: ModelSpec, _seed: int) -> nn.Module:
    return Own(spec, nn.Dropout(0.5))


class Contrasts(Own):
    """Scores each sample against the others of the batch, as losses with in-batch negatives do."""

    def sample_losses(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each sample, [n]."""
        return -labels * logits.log_softmax(dim=0)


def contrasts(spec: ModelSpec, _seed: int) -> nn.Module:
    return Contrasts(spec, nn.Identity())


class Whole(Contrasts):
    """Refuses a batch of few samples."""

    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        """Return logits, [n]."""
        if self.training and len(dense) < 16:
            raise ValueError("too few negatives")
        return super().forward(dense, embeddings)


def whole(spec: ModelSpec, _seed: int) -> nn.Module:
    return Whole(spec, nn.Identity())


class Diverges(Own):
    """A network with a loss that is not a number."""

    def sample_losses(self, logits: Tensor, _labels: Tensor) -> Tensor:
        """Return the loss of each sample, [n]."""
        return logits * torch.nan


def diverges(spec: ModelSpec, _seed: int) -> nn.Module:
    return Diverges(spec, nn.Identity())


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """Let torch compute with two threads, as on two processors."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def job(tmp_path: Path) -> JobSpec:
    """A small job."""
    return small_job(tmp_path, samples=1000)


def of(job: JobSpec, factory: str) -> JobSpec:
    return replace(job, model=replace(job.model, entrypoint=f"{__name__}:{factory}", bottom_mlp=(), top_mlp=()))


def found_for(job: JobSpec) -> WorkerChoice:
    dataset = open_dataset(job.data, job.model, Uris(job.snapshots.store))
    return choose_workers(job, dataset, BatchOrder.of(job.data, dataset.layout), placement(job), lambda: None)


def trial(job: JobSpec, samples: int = 16) -> Trial:
    dataset = open_dataset(job.data, job.model, Uris(job.snapshots.store))
    order = BatchOrder.of(job.data, dataset.layout)
    return Trial(job, dataset.take(order.indices_of(range(samples))), placement(job), job.precision)


def placement(job: JobSpec) -> Placement:
    return Placement.of(job.model, job.shards)


def test_each_number_of_workers_is_measured_equally_often(job: JobSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_tuning, "_ENOUGH_S", 0.0)
    times_s = measure(trial(job), (1, 2, 4), lambda: None)
    assert {count: len(times) for count, times in times_s.items()} == {1: 3, 2: 3, 4: 3}
    assert all(time_s > 0 for times in times_s.values() for time_s in times)


def test_measured_number_of_workers_is_chosen(job: JobSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(_trial: Trial, counts: Sequence[int], _poll_interrupts: object) -> dict[int, list[float]]:
        return {count: [0.1 / count] for count in counts}

    monkeypatch.setattr(worker_tuning, "measure", measured)
    assert found_for(job) == WorkerChoice(2, "measured for the first batch: 100.00 ms with 1, 50.00 ms with 2")


def test_single_candidate_is_not_measured(job: JobSpec) -> None:
    small = replace(job, data=replace(job.data, batch_size=6), trainers=2)
    assert found_for(small) == WorkerChoice(1, "a slice has 3 samples")
    torch.set_num_threads(1)
    assert found_for(job) == WorkerChoice(1, "a trainer has one processor")


@pytest.mark.parametrize("factory", ["normalises", "contrasts", "drops", "whole"])
def test_network_with_dependent_samples_keeps_one_worker(job: JobSpec, factory: str) -> None:
    found = found_for(of(job, factory))
    assert found.count == 1
    assert "depend on each other" in found.reason


@pytest.mark.parametrize("factory", ["plain", None])
def test_network_with_independent_samples_may_be_divided(job: JobSpec, factory: str | None) -> None:
    assert trial(job if factory is None else of(job, factory)).is_divisible()


def test_measured_loss_that_is_no_number_keeps_one_worker(job: JobSpec) -> None:
    assert found_for(of(job, "diverges")) == WorkerChoice(1, "the loss of the first batch is not finite")


def test_random_state_is_restored_after_a_measurement(job: JobSpec) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    found_for(of(job, "drops"))
    assert torch.equal(torch.rand(3), expected)


def test_stop_ends_a_measurement(job: JobSpec) -> None:
    polls = 0

    def poll_interrupts() -> None:
        nonlocal polls
        polls += 1
        if polls > 4:
            raise Terminated

    with pytest.raises(Terminated):
        measure(trial(job), (1, 2), poll_interrupts)
    assert polls == 5


@pytest.mark.parametrize(
    ("processors", "samples", "counts"),
    [
        (1, 2048, (1,)),
        (2, 2048, (1, 2)),
        (6, 2048, (1, 2, 4, 6)),
        (8, 2048, (1, 2, 4, 8)),
        (8, 7, (1, 2, 3)),
        (8, 3, (1,)),
        (8, 0, (1,)),
        (200, 2048, (1, 2, 4, 8, 16, 32, 64)),
    ],
)
def test_candidates_are_doubled_up_to_the_processors_and_the_parts_of_a_slice(
    processors: int, samples: int, counts: tuple[int, ...]
) -> None:
    assert candidate_counts(processors, samples) == counts


@pytest.mark.parametrize(
    ("times_s", "count"),
    [
        ({1: [0.010], 2: [0.008], 4: [0.006]}, 4),
        ({1: [0.010], 2: [0.006], 4: [0.008]}, 2),
        ({1: [0.010], 2: [0.010]}, 1),
        ({1: [0.0102], 2: [0.010]}, 1),
        ({1: [0.0104], 2: [0.010]}, 2),
        ({1: [0.020], 2: [0.0102], 4: [0.010]}, 2),
        ({1: [0.010, 0.010, 0.500], 2: [0.011, 0.011, 0.001]}, 1),
        ({1: [0.010, 0.0102, 0.020], 2: [0.009, 0.0101, 0.018]}, 2),
    ],
)
def test_fewest_workers_that_are_as_fast_as_any_are_chosen(times_s: dict[int, list[float]], count: int) -> None:
    """A gain below 3 % is none, one odd time counts for nothing, nor does a slow round that all numbers share."""
    assert choose_count(times_s).count == count


def test_reason_of_a_choice_has_the_times() -> None:
    found = choose_count({2: [0.0215, 0.0214, 0.0216], 1: [0.0251, 0.0252, 0.0253]})
    assert found.reason == "measured for the first batch: 25.20 ms with 1, 21.50 ms with 2"
