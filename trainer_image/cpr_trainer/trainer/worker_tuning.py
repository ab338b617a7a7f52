"""Chooses the number of workers of a trainer: measures the first batch on a separate network, and decides.

Nothing of a measurement stays: the network and its gradients are not the job's, and torch's random state is restored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import takewhile
from statistics import median
from time import monotonic, perf_counter

import torch
from torch import Tensor

from cpr_contract.choices import Precision
from cpr_contract.limits import MAX_WORKERS
from cpr_contract.spec import JobSpec
from cpr_trainer.data.dataset import Batch, Dataset
from cpr_trainer.data.order import Order
from cpr_trainer.embedding.access import as_rows, find_access, map_rows
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.errors import DivergedError, ModelError
from cpr_trainer.model.replica import DenseReplica
from cpr_trainer.trainer.compute import LEAST_SAMPLES, ComputeWorkers, compute
from cpr_trainer.trainer.control import PollInterrupts

#: Measured rounds, at least and at most, after a warm-up round; between the two they end after this time.
_LEAST_ROUNDS, _MOST_ROUNDS, _ENOUGH_S = 3, 30, 1.0
#: Samples that show whether a network computes each one separately: results in parts then differ by at most this part.
_FEW, _ROUNDING = 16, 1e-3
#: Largest value of a random vector: that of the first values of rows.
_LARGEST = 0.05
#: More workers are chosen only if they save more than this part of the time: a smaller gain is within the noise.
_TIE = 0.03


@dataclass(frozen=True, slots=True)
class WorkerChoice:
    """The number of workers of each trainer of a job, and the reason.

    `threads` are torch's threads in the process of a trainer; 0 if each process has its own number.
    """

    count: int
    reason: str
    threads: int = 0


def choose_workers(
    job: JobSpec, dataset: Dataset, order: Order, placement: Placement, poll_interrupts: PollInterrupts
) -> WorkerChoice:
    """Return the number of workers that each trainer of a job should have, as measured in this process.

    `poll_interrupts` is called between two computations. Raises DataError, ModelError, StoreError, and what
    `poll_interrupts` raises.
    """
    samples, processors = order.slice_of(1, 0, job.trainers), torch.get_num_threads()
    counts = candidate_counts(processors, len(samples))
    if counts == (1,):
        reason = "a trainer has one processor" if processors == 1 else f"a slice has {len(samples)} samples"
        return WorkerChoice(1, reason)
    with torch.random.fork_rng(devices=()):
        try:
            few = dataset.take(order.indices_of(samples[:_FEW]))
            if not Trial(job, few, placement, "fp32").is_divisible():
                return WorkerChoice(1, "the network computes other results in parts: its samples depend on each other")
            trial = Trial(job, dataset.take(order.indices_of(samples)), placement, job.precision)
            return choose_count(measure(trial, counts, poll_interrupts))
        except DivergedError:  # If training diverges, too, the first step ends the job.
            return WorkerChoice(1, "the loss of the first batch is not finite")


def candidate_counts(processors: int, samples: int) -> tuple[int, ...]:
    """Return the numbers of workers to measure for a slice of `samples`: 1, 2, 4, ..., and the largest possible one.

    Each worker needs a processor, and enough samples for a part.
    """
    most = max(1, min(processors, samples // LEAST_SAMPLES, MAX_WORKERS))
    doubled = takewhile(lambda count: count < most, (1 << power for power in range(most.bit_length())))
    return (*doubled, most)


def choose_count(times_s: Mapping[int, Sequence[float]]) -> WorkerChoice:
    """Return the fewest workers that are as fast as any.

    times_s: for each number of workers, the time of the same batch in each round; at least one round. Numbers are
    compared by their time divided by that of the fewest workers in the same round, median over rounds: a machine that
    is slow in one round is slow for all of them.
    """
    fewest = times_s[min(times_s)]
    ratios = {
        count: median(time_s / base_s for time_s, base_s in zip(times, fewest, strict=True))
        for count, times in times_s.items()
    }
    least = min(ratios.values())
    chosen = min(count for count, ratio in ratios.items() if ratio <= least * (1 + _TIE))
    listed = ", ".join(f"{1000 * median(times_s[count]):.2f} ms with {count}" for count in sorted(times_s))
    return WorkerChoice(chosen, f"measured for the first batch: {listed}")


class Trial:
    """A batch that a separate network computes repeatedly, with random vectors, always the same, in place of rows."""

    def __init__(self, job: JobSpec, batch: Batch, placement: Placement, precision: Precision) -> None:
        self._replica = DenseReplica(job.model, job.data.seed, job.device, precision)
        self._batch = batch
        self._access = find_access(placement, batch.ids)
        unique, generator = self._access.unique, torch.Generator().manual_seed(job.data.seed % 2**63)
        sizes = [(len(unique.of_band(unique.places, band)), dim) for band, dim in enumerate(job.model.band_dims)]
        unit = as_rows(tuple(torch.rand(size, generator=generator) for size in sizes))
        self._vectors = map_rows(lambda values: (2 * values - 1) * _LARGEST, unit)

    def compute(self, workers: ComputeWorkers) -> tuple[Tensor, ...]:
        """Compute the batch; return logits, and the gradients of the network and of rows. Raises DivergedError."""
        done = compute(self._replica, self._batch, self._access, lambda: self._vectors, len(self._batch), workers)
        rows = done.row_gradients if isinstance(done.row_gradients, tuple) else (done.row_gradients,)
        return (done.logits, self._replica.gradients.cpu().clone(), *rows)

    def is_divisible(self) -> bool:
        """Return whether the batch in parts has the same results as the whole, up to rounding.

        It has not with BatchNorm, dropout, or a loss over pairs of samples; and a network may reject few samples.
        Raises DivergedError, and ModelError if the network rejects the whole batch.
        """
        parts = max(2, len(self._batch) // 4)
        with closing(ComputeWorkers()) as single, closing(ComputeWorkers(parts)) as several:
            whole = self.compute(single)
            try:
                divided = self.compute(several)
            except ModelError:
                return False
            return all(
                bool((one - other).norm() <= _ROUNDING * one.norm()) for one, other in zip(whole, divided, strict=True)
            )


def measure(trial: Trial, counts: Sequence[int], poll_interrupts: PollInterrupts) -> Mapping[int, Sequence[float]]:
    """Return the times of the batch, in seconds, by the number of workers and round.

    The numbers take turns, so that a machine that is slow for a while is slow for all of them. Raises DivergedError,
    and what `poll_interrupts` raises.
    """
    times_s: dict[int, list[float]] = {count: [] for count in counts}
    with ExitStack() as stack:
        pools = {count: stack.enter_context(closing(ComputeWorkers(count))) for count in counts}
        for count in counts:  # The first run starts threads and allocates memory.
            poll_interrupts()
            trial.compute(pools[count])
        began = monotonic()
        for rounds in range(_MOST_ROUNDS):
            if rounds >= _LEAST_ROUNDS and monotonic() - began > _ENOUGH_S:
                break
            for count in counts if rounds % 2 else reversed(counts):
                poll_interrupts()
                start = perf_counter()
                trial.compute(pools[count])
                times_s[count].append(perf_counter() - start)
    return times_s
