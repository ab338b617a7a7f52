"""The bound of a step's time: the matrix products of the job's network alone, timed for each line of input."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import TextIO

import torch
from torch import Tensor

from cpr_contract.spec import JobSpec
from cpr_trainer.model.entrypoint import DTYPES, open_device
from cpr_trainer.runtime import read_job
from cpr_trainer.trainer.compute import ComputeWorkers
from cprjob_bench.roles.product_shapes import Dots, Layer, products_of

_SECONDS = 1.0
#: Rows begin at multiples of 64 bytes of float32, as those of `cpr_trainer.model.layer_passes`.
_ALIGNED = 16


def run(environ: Mapping[str, str], source: TextIO, sink: TextIO) -> None:
    """Write the milliseconds of the products of a batch as a line to `sink` for each line of `source`.

    The time is the mean over a second, in the faster of two layouts: all threads on one product, or one thread per
    core on its part of the batch. Raises TrainerError for the job in the environment, ModelError without its device.
    """
    bound = Bound(read_job(environ))
    for _ in source:
        print(f"{bound.milliseconds(_SECONDS):.4f}", file=sink, flush=True)


class Bound:
    """The products of a job's network, in all layouts of threads. On a GPU there is one."""

    def __init__(self, job: JobSpec) -> None:
        device = open_device(job.device)
        counts = {1, torch.get_num_threads()} if job.device == "cpu" else {1}
        self._layouts = [_Layout(job, device, count) for count in sorted(counts)]

    def milliseconds(self, seconds: float) -> float:
        """Return the time of a batch in the faster layout, in ms; layouts alternate for `seconds`."""
        taken_s, rounds = [0.0 for _ in self._layouts], 0
        for layout in self._layouts:  # the first products of a process map memory and choose kernels
            layout.time_s()
        while sum(taken_s) < seconds:
            for place, layout in enumerate(self._layouts):
                taken_s[place] += layout.time_s()
            rounds += 1
        return 1e3 * min(taken_s) / rounds


class _Layout:
    """All products of a batch, with `count` workers, each on its part of the batch."""

    def __init__(self, job: JobSpec, device: torch.device, count: int) -> None:
        self._workers, self._device = ComputeWorkers(count), device
        parts = self._workers.split(job.data.batch_size)
        self._parts = [_part(job, part.stop - part.start, device) for part in parts]

    def time_s(self) -> float:
        """Return the seconds of one batch."""
        began_s = perf_counter()
        self._workers.map(_multiply, self._parts)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return perf_counter() - began_s


#: Products with their buffers.
_Products = Sequence[Callable[[], object]]


def _multiply(products: _Products) -> None:
    for product in products:
        product()


def _part(job: JobSpec, samples: int, device: torch.device) -> _Products:
    """Return the products of `samples` samples."""

    def matrix(*sizes: int) -> Tensor:
        padded = -(-sizes[-1] // _ALIGNED) * _ALIGNED
        values = torch.rand(*sizes[:-1], padded, device=device).to(DTYPES[job.precision])
        return values[..., : sizes[-1]]

    def of_layer(layer: Layer) -> _Products:
        inputs, outputs = matrix(samples, layer.inputs), matrix(samples, layer.outputs)
        weight, gradient = matrix(layer.outputs, layer.inputs), matrix(samples, layer.outputs)
        of_weight, of_inputs = matrix(*weight.shape), matrix(*inputs.shape)
        found: _Products = (
            partial(torch.mm, inputs, weight.t(), out=outputs),
            partial(torch.mm, gradient.t(), inputs, out=of_weight),
            partial(torch.mm, gradient, weight, out=of_inputs),
        )
        return found if layer.to_inputs else found[:2]

    def of_dots(dots: Dots) -> _Products:
        vectors = torch.rand(samples, dots.vectors, dots.dim, device=device).to(DTYPES[job.precision])
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        of_vectors = torch.empty_like(vectors)
        return (
            partial(torch.bmm, vectors, vectors.transpose(1, 2), out=products),
            partial(torch.bmm, products, vectors, out=of_vectors),
        )

    network = products_of(job.model)
    found = [product for layer in network.layers for product in of_layer(layer)]
    return (*found, *(() if network.dots is None else of_dots(network.dots)))
