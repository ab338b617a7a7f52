"""Whether several worker threads on one dense copy (Hogwild) would pay: .venv/bin/python bench/workers.py.

Trains the dense network of a preset on the same random batches, in turn with one worker that computes on all cores and
with as many workers as there are cores, each computing on one. Workers share the parameters, take steps without waiting
for each other, and have gradients of their own. Only the ratio means something.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from cpr_contract.spec import ModelSpec, Precision
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.validate import parse_spec
from cpr_operator.cli.bench.train.presets import BATCH_SIZE, Preset, document
from cpr_trainer.model.entrypoint import DTYPES, build_network

BATCHES = 8
Batch = tuple[Tensor, Tensor, Tensor]


def model_of(preset: Preset) -> ModelSpec:
    """The model of a preset; its rows do not matter here."""
    nowhere = Path("/nowhere")
    manifest = document(
        preset, rows=1000, trainers=1, shards=1, precision="fp32", samples=nowhere, store=nowhere, interval_s=1
    )
    return to_job_spec(parse_spec(manifest["spec"]), uid="bench", name="bench").model


def batches_of(model: ModelSpec) -> list[Batch]:
    """Random features, embeddings and labels."""
    torch.manual_seed(1)
    shape = (BATCH_SIZE, len(model.tables), model.embedding_dim)
    return [(torch.randn(BATCH_SIZE, 13), torch.randn(shape), torch.rand(BATCH_SIZE).round()) for _ in range(BATCHES)]


class Worker(threading.Thread):
    """Takes steps until an instant of the monotonic clock, with parameters that others change too."""

    def __init__(self, network: torch.nn.Module, batches: Sequence[Batch], precision: Precision, end_s: float) -> None:
        super().__init__()
        self.steps = 0
        self._network = network
        self._parameters = list(network.parameters())
        self._batches = batches
        self._dtype = DTYPES[precision]
        self._end_s = end_s

    def run(self) -> None:
        """See `threading.Thread`."""
        while time.monotonic() < self._end_s:
            dense, embeddings, labels = self._batches[self.steps % len(self._batches)]
            vectors = embeddings.to(self._dtype).detach().requires_grad_()
            with torch.autocast("cpu", self._dtype, enabled=self._dtype is not torch.float32):
                logits = self._network(dense, vectors)
            loss = binary_cross_entropy_with_logits(logits.float(), labels)
            gradients = torch.autograd.grad(loss, [*self._parameters, vectors])
            for parameter, gradient in zip(self._parameters, gradients, strict=False):
                parameter.data.add_(gradient, alpha=-0.01)  # unseen by autograd: others may be in their backward pass
            self.steps += 1


def samples_per_s(
    model: ModelSpec, batches: Sequence[Batch], precision: Precision, workers: int, wanted_s: float
) -> float:
    """Train with so many workers for a while, on all cores together."""
    torch.set_num_threads((os.cpu_count() or 1) // workers)
    network = build_network(model, 1)
    began_s = time.monotonic()
    threads = [Worker(network, batches, precision, began_s + wanted_s) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(thread.steps for thread in threads) * BATCH_SIZE / (time.monotonic() - began_s)


def main() -> None:
    """Measure both in turn, and print medians and the ratio of windows of the same repeat."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--preset", type=Preset, choices=list(Preset), default=Preset.KAGGLE)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    model, several = model_of(options.preset), os.cpu_count() or 1
    batches = batches_of(model)
    found: dict[int, list[float]] = {1: [], several: []}
    samples_per_s(model, batches, options.precision, 1, 1.0)  # warm
    for repeat in range(options.repeats):
        for workers in (1, several) if repeat % 2 else (several, 1):
            found[workers].append(samples_per_s(model, batches, options.precision, workers, options.seconds))
    ratios = [many / one for one, many in zip(found[1], found[several], strict=True)]
    medians = {f"{workers} workers": statistics.median(values) for workers, values in found.items()}
    json.dump({"precision": options.precision, **medians, "ratio": statistics.median(ratios)}, sys.stdout)


if __name__ == "__main__":
    main()
