"""Measures with how many workers a trainer is fastest, on the first batch and a network of its own.

Nothing of it stays: neither the network nor its gradients are the job's, and torch's random numbers go on as before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from time import monotonic, perf_counter

import torch
from torch import Tensor

from cpr_contract.choices import Precision
from cpr_contract.model import ModelSpec
from cpr_contract.spec import JobSpec
from cpr_trainer.data.dataset import Batch, Dataset
from cpr_trainer.data.order import BatchOrder
from cpr_trainer.embedding.access import Rows, as_rows, find_access, map_rows
from cpr_trainer.embedding.placement import Placement, UniqueRows
from cpr_trainer.errors import DivergedError, ModelError
from cpr_trainer.model.replica import DenseReplica
from cpr_trainer.trainer.compute import compute
from cpr_trainer.trainer.crew import ComputeWorkers
from cpr_trainer.trainer.interrupts import PollInterrupts
from cpr_trainer.trainer.workers import Workers, candidates, choose

#: How many rounds are measured at least and at most, after one that warms up, and for how long.
_LEAST_ROUNDS, _MOST_ROUNDS, _ENOUGH_S = 3, 30, 1.0
#: So many samples show whether a network computes each by itself: then results differ by no more than this part.
_FEW, _ROUNDING = 16, 1e-3
#: Vectors are as small as those that rows begin with.
_LARGEST = 0.05


def find_workers(
    job: JobSpec, dataset: Dataset, order: BatchOrder, placement: Placement, poll_interrupts: PollInterrupts
) -> Workers:
    """Return how many workers each trainer of a job should have, as this process measures it.

    `poll_interrupts` is called between two computations. Raises DataError, ModelError, StoreError, and what
    `poll_interrupts` raises.
    """
    samples, processors = order.slice_of(1, 0, job.trainers), torch.get_num_threads()
    counts = candidates(processors, len(samples))
    if counts == (1,):
        return Workers(1, "a trainer has one processor" if processors == 1 else f"a slice has {len(samples)} samples")
    with torch.random.fork_rng(devices=()):
        try:
            few = dataset.take(order.indices_of(samples[:_FEW]))
            if not Trial(job, few, placement, "fp32").is_divisible():
                return Workers(1, "the network computes something else in parts, because samples depend on each other")
            trial = Trial(job, dataset.take(order.indices_of(samples)), placement, job.precision)
            return choose(measure(trial, counts, poll_interrupts))
        except DivergedError:  # Where that is no accident, the first step ends the job.
            return Workers(1, "the loss of the first batch is not finite")


class Trial:
    """A batch that a network of its own computes again and again, with random vectors in the place of rows."""

    def __init__(self, job: JobSpec, batch: Batch, placement: Placement, precision: Precision) -> None:
        self._replica = DenseReplica(job.model, job.data.seed, job.device, precision)
        self._batch = batch
        self._access = find_access(placement, batch.ids)
        self._vectors = _vectors(job.model, self._access.unique, job.data.seed)

    def compute(self, crew: ComputeWorkers) -> tuple[Tensor, ...]:
        """Compute the batch; return logits, and the gradients of the network and of rows. Raises DivergedError."""
        done = compute(self._replica, self._batch, self._access, lambda: self._vectors, len(self._batch), crew)
        rows = done.row_gradients if isinstance(done.row_gradients, tuple) else (done.row_gradients,)
        return (done.logits, self._replica.gradients.cpu().clone(), *rows)

    def is_divisible(self) -> bool:
        """Whether the batch in parts has the same results as the whole, up to rounding.

        With BatchNorm, a loss over pairs of samples, or dropout it has not; and a network may refuse few samples.
        Raises DivergedError, and ModelError if it refuses the whole.
        """
        parts = max(2, len(self._batch) // 4)
        with closing(ComputeWorkers()) as alone, closing(ComputeWorkers(parts)) as together:
            whole = self.compute(alone)
            try:
                divided = self.compute(together)
            except ModelError:
                return False
            return all(
                bool((one - other).norm() <= _ROUNDING * one.norm()) for one, other in zip(whole, divided, strict=True)
            )


def measure(trial: Trial, counts: Sequence[int], poll_interrupts: PollInterrupts) -> Mapping[int, Sequence[float]]:
    """Return how long the batch took in each round, in seconds, with each of these numbers of workers in turn.

    In turn, so that a machine that is slow for a while is slow for all of them. Raises DivergedError, and what
    `poll_interrupts` raises.
    """
    times_s: dict[int, list[float]] = {count: [] for count in counts}
    with ExitStack() as stack:
        crews = {count: stack.enter_context(closing(ComputeWorkers(count))) for count in counts}
        for count in counts:  # Threads and memory come with the first time.
            poll_interrupts()
            trial.compute(crews[count])
        began = monotonic()
        for rounds in range(_MOST_ROUNDS):
            if rounds >= _LEAST_ROUNDS and monotonic() - began > _ENOUGH_S:
                break
            for count in counts if rounds % 2 else reversed(counts):
                poll_interrupts()
                start = perf_counter()
                trial.compute(crews[count])
                times_s[count].append(perf_counter() - start)
    return times_s


def _vectors(model: ModelSpec, unique: UniqueRows, seed: int) -> Rows:
    """Return random vectors for unique rows, alike whenever they are made."""
    generator = torch.Generator().manual_seed(seed % 2**63)
    sizes = [(len(unique.of_band(unique.places, band)), dim) for band, dim in enumerate(model.dims)]
    unit = as_rows(tuple(torch.rand(size, generator=generator) for size in sizes))
    return map_rows(lambda values: (2 * values - 1) * _LARGEST, unit)
