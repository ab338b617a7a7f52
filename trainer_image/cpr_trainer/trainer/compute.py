"""The arithmetic of one step on one trainer: forward, loss and backward, divided among its workers.

Workers are threads that compute parts of a slice concurrently on one copy of the dense network. The random numbers
that a network draws in a pass follow from numbers that name the pass, so any process that computes it again draws the
same ones. They are those of torch's default generators, as dropout draws them; other generators are not seeded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from math import isfinite
from typing import TypeVar

import torch
from torch import Tensor

from cpr_trainer.data.dataset import Batch
from cpr_trainer.embedding.access import Access, AnyAccess, Rows, map_rows
from cpr_trainer.embedding.feature_vectors import Embeddings, map_embeddings, part_of, tensors_of
from cpr_trainer.errors import DivergedError
from cpr_trainer.model.entrypoint import loss_share, set_training
from cpr_trainer.model.passes import Pass
from cpr_trainer.model.replica import DenseReplica

_LOG = logging.getLogger(__name__)

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

#: The least samples of a part: a network cannot normalise fewer, as BatchNorm does in training.
LEAST_SAMPLES = 2


def set_threads(threads: int) -> None:
    """Set torch's number of threads to that of the job; 0 keeps the present number.

    Torch divides sums among its threads, so with another number they differ in their last bits.
    """
    own = torch.get_num_threads()
    if threads not in {0, own}:
        _LOG.info("computes with the job's number of threads, %d, in the place of %d", threads, own)
        torch.set_num_threads(threads)


def seed_draws(device: torch.device, *names: int) -> None:
    """Seed torch's default generators, on the CPU and on `device`, for the pass with these numbers."""
    seed = int.from_bytes(blake2b(",".join(map(str, names)).encode(), digest_size=8).digest())
    # torch.manual_seed would also record a seed for devices that nothing uses, which takes longer than this.
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


class ComputeWorkers:
    """A thread pool, with an equal share of the processors for each worker. A single worker is the caller's thread."""

    def __init__(self, workers: int = 1) -> None:
        self._workers = workers
        self._threads: ThreadPoolExecutor | None = None
        if workers > 1:
            share = max(1, torch.get_num_threads() // workers)
            self._threads = ThreadPoolExecutor(workers, "worker", torch.set_num_threads, (share,))

    def split(self, samples: int) -> list[slice]:
        """Divide a slice of `samples` into parts of about the same size, one per worker unless samples are few."""
        count = max(1, min(self._workers, samples // LEAST_SAMPLES))
        return [slice(part * samples // count, (part + 1) * samples // count) for part in range(count)]

    def close(self) -> None:
        """End the threads."""
        if self._threads is not None:
            self._threads.shutdown()

    def map(self, do: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
        """Return the result of `do` for each item, at most one per worker. Raises what `do` raises."""
        if self._threads is None or len(items) == 1:
            return [do(item) for item in items]
        return list(self._threads.map(do, items))


@dataclass(frozen=True, slots=True, eq=False)
class Computed:
    """The results of one slice; the dense gradient is in the replica.

    row_gradients: of the unique rows, in the replica's dtype. logits, labels: float32 [n] or [n, L]. weights: float32
    [n], those of the samples. All on the CPU. loss_share: see `cpr_trainer.model.entrypoint.loss_share`.
    """

    row_gradients: Rows
    logits: Tensor
    labels: Tensor
    loss_share: float
    weights: Tensor | None = None


def compute(  # noqa: PLR0913, PLR0917 -- the network, the samples, and the threads
    replica: DenseReplica,
    batch: Batch,
    access: AnyAccess,
    fetch: Callable[[], Rows],
    batch_size: int,
    workers: ComputeWorkers,
    names: tuple[int, ...] = (),
) -> Computed:
    """Compute a slice of a global batch of `batch_size` samples; its gradients add up over workers and trainers.

    fetch: returns the vectors of the unique rows of `access`, on the CPU; called once everything is computed that does
    not need them. names: numbers that name the slice, such as seed, rank and step; random numbers follow from them. The
    slice is copied to the replica's device, and the results back; the network's buffers change only in
    `DenseReplica.step`.
    Raises DivergedError if the loss is not finite, ModelError if the network's code fails, and what `fetch` raises.
    """
    labels, of_batch = torch.from_numpy(batch.labels), batch.sample_weights
    weights = None if of_batch is None else torch.from_numpy(of_batch)
    with replica.computing():
        if not len(batch):  # Some networks reject a batch without samples.
            replica.gradients.zero_()
            nothing = map_rows(lambda vectors: torch.zeros_like(vectors, dtype=replica.dtype), fetch())
            return Computed(nothing, labels, labels, 0.0, weights)
        # A single sample has no statistics to normalise by, as BatchNorm does in training.
        set_training(replica.model, on=len(batch) > 1)
        device = replica.device
        dense, on_device = torch.from_numpy(batch.dense).to(device), access.to(device)
        truth = labels.to(device), None if weights is None else weights.to(device)
        slices = workers.split(len(batch))
        passes = replica.passes(len(slices))
        each = enumerate(zip(slices, passes, strict=True))
        parts = [_Part(replica, own, truth, samples, batch_size, (*names, part)) for part, (samples, own) in each]

        def embedded() -> Embedded:
            rows = map_rows(lambda values: values.to(device, replica.dtype), fetch())
            spare = {"spare": passes[0].spare} if isinstance(on_device, Access) else {}
            embeddings = on_device.embeddings(rows, **spare)
            return Embedded(embeddings, map_embeddings(torch.empty_like, embeddings))

        computed = _compute_parts(replica, parts, dense, embedded, workers)
    replica.sum_gradients(len(parts))
    summed = on_device.sum_gradients(computed.gradients)
    logits = torch.cat([part.logits for part in parts])
    return Computed(map_rows(Tensor.cpu, summed), logits.cpu(), labels, sum(part.loss for part in parts), weights)


@dataclass(frozen=True, slots=True, eq=False)
class Embedded:
    """The embeddings of a slice, and their gradients, which parts write."""

    embeddings: Embeddings
    gradients: Embeddings


def _compute_parts(
    replica: DenseReplica,
    parts: Sequence[_Part],
    dense: Tensor,
    fetch: Callable[[], Embedded],
    workers: ComputeWorkers,
) -> Embedded:
    """Compute the parts of a slice, concurrently if that has no effect on the results.

    Random numbers and buffers are the network's, not a part's, so their values depend on the order of the parts. A pass
    that used them is therefore computed again part by part, and so are all later ones.
    """
    if replica.serial or len(parts) == 1:
        _begin_serially(parts, dense)
        return _finish_serially(parts, fetch())
    before = torch.get_rng_state()  # changes with each draw
    workers.map(lambda part: part.begin(dense), parts)
    embedded = fetch()
    workers.map(lambda part: part.finish(embedded), parts)
    changed = replica.reset_buffers()
    if not changed and torch.equal(torch.get_rng_state(), before):
        return embedded
    _LOG.info(
        "the network %s: its parts are computed one by one",
        "changes its buffers" if changed else "draws random numbers",
    )
    replica.serial = True
    _begin_serially(parts, dense)
    return _finish_serially(parts, embedded)


def _begin_serially(parts: Sequence[_Part], dense: Tensor) -> None:
    for part in parts:
        part.seed(0)
        part.begin(dense)


def _finish_serially(parts: Sequence[_Part], embedded: Embedded) -> Embedded:
    for part in parts:
        part.seed(1)
        part.finish(embedded)
    return embedded


class _Part:
    """A worker's part of a slice: separate samples and a separate pass, on the shared network.

    truth: the labels of the whole slice, float32 [n] or [n, L], and the weights of its samples, float32 [n] or None.
    """

    loss: float
    logits: Tensor

    def __init__(  # noqa: PLR0913, PLR0917 -- the network, the samples, and the random numbers
        self,
        replica: DenseReplica,
        own: Pass,
        truth: tuple[Tensor, Tensor | None],
        samples: slice,
        batch_size: int,
        names: tuple[int, ...],
    ) -> None:
        self._replica, self._pass = replica, own
        labels, weights = truth
        self._labels = labels[samples]
        self._weights = None if weights is None else weights[samples]
        self._samples = samples
        self._batch_size = batch_size
        self._names = names

    def seed(self, half: int) -> None:
        """Seed the random numbers of `begin` (half 0) or `finish` (half 1)."""
        seed_draws(self._replica.device, *self._names, half)

    def begin(self, dense: Tensor) -> None:
        """Compute the part of the forward pass before the embeddings. dense: float32 [n, N], of the whole slice."""
        self._pass.begin(dense[self._samples])

    def finish(self, embedded: Embedded) -> None:
        """Compute the remaining passes from the embeddings of the whole slice. Raises DivergedError, ModelError."""
        own, of_own = (part_of(each, self._samples) for each in (embedded.embeddings, embedded.gradients))
        passed = self._pass.finish(own, self._loss_share, tensors_of(of_own))
        if not isfinite(passed.loss):
            raise DivergedError("The loss is not finite.", "Start again with a lower learning rate.")
        self.loss, self.logits = passed.loss, passed.logits

    def _loss_share(self, logits: Tensor) -> Tensor:
        return loss_share(self._replica.model, logits, self._labels, self._batch_size, self._weights)
