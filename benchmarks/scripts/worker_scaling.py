"""The speedup by workers of a trainer (`trainers.workers`): .venv/bin/python benchmarks/scripts/worker_scaling.py.

Computes steps of a preset's network on the same random batches in three ways, in turn: one worker on all cores; one
worker per core, which compute parts of each batch in parallel and wait for each other (CPRJob); and one worker per
core, which take whole batches, change shared parameters and do not wait (Hogwild). --compile adds one worker with a
network compiled by torch.compile, which needs a C++ compiler. Only ratios are meaningful.
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
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cpr_contract.choices import Precision
from cpr_contract.model import ModelSpec
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.validate import parse_spec
from cpr_trainer.data.dataset import Batch
from cpr_trainer.embedding.access import AnyAccess, find_access
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.model.replica import DenseReplica
from cpr_trainer.trainer.compute import ComputeWorkers, compute
from cprjob_bench.commands.train_bench import BATCH_SIZE, document
from cprjob_bench.options import TrainPreset

BATCHES, ROWS, SKEW = 8, 1000, 4


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """A batch, the rows that it needs, and their vectors, [u, D]."""

    batch: Batch
    access: AnyAccess
    vectors: Tensor


def model_of(preset: TrainPreset) -> ModelSpec:
    """Return the model of a preset, with small tables."""
    nowhere = Path("/nowhere")
    manifest = document(
        preset,
        rows=ROWS,
        trainers=1,
        shards=1,
        workers=1,
        precision="fp32",
        samples=nowhere,
        store=nowhere,
        interval_s=1,
    )
    return to_job_spec(parse_spec(manifest["spec"]), uid="bench", name="bench").model


def work_of(model: ModelSpec) -> list[Work]:
    """Return random batches with skewed uses of rows."""
    rng, placement = np.random.default_rng(1), Placement.of(model, 1)
    works = []
    for _ in range(BATCHES):
        least = min(table.rows for table in model.tables)
        ids = (least * rng.random((BATCH_SIZE, len(model.tables))) ** SKEW).astype(np.int64)
        dense, labels = rng.normal(size=(BATCH_SIZE, 13)), rng.integers(0, 2, BATCH_SIZE)
        access = find_access(placement, ids)
        batch = Batch(dense.astype(np.float32), ids, labels.astype(np.float32))
        works.append(Work(batch, access, torch.randn(len(access.unique), model.embedding_dim)))
    return works


def train(replica: DenseReplica, works: Sequence[Work], workers: ComputeWorkers, end_s: float) -> int:
    """Take steps until a time of the monotonic clock; return their number."""
    steps = 0
    while time.monotonic() < end_s:
        work = works[steps % len(works)]
        compute(replica, work.batch, work.access, work.vectors.detach, BATCH_SIZE, workers)
        steps += 1
        replica.step(steps)
    return steps


def race(replicas: Sequence[DenseReplica], works: Sequence[Work], end_s: float) -> int:
    """Train all replicas, which share their parameters, in parallel; return the sum of their steps."""
    taken = [0] * len(replicas)

    def run(worker: int) -> None:
        taken[worker] = train(replicas[worker], works, ComputeWorkers(), end_s)

    threads = [threading.Thread(target=run, args=(worker,)) for worker in range(len(replicas))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(taken)


def sharing(model: ModelSpec, precision: Precision, count: int) -> list[DenseReplica]:
    """Return replicas with separate gradients and the parameters of the first."""
    replicas = [DenseReplica(model, 1, precision=precision) for _ in range(count)]
    for other in replicas[1:]:
        other.parameters = replicas[0].parameters
        for mine, shared in zip(other.model.parameters(), replicas[0].model.parameters(), strict=True):
            mine.data = shared.data
    return replicas


def compiled(model: ModelSpec, precision: Precision) -> DenseReplica:
    """Return a replica with a network that is compiled at its first use."""
    replica = DenseReplica(model, 1, precision=precision, explicit=False)
    for part in ("before_embeddings", "with_embeddings"):
        setattr(replica.model, part, torch.compile(getattr(replica.model, part), dynamic=False))
    return replica


def main() -> None:
    """Measure all ways in turn, and print medians, and ratios of windows of the same repeat."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--preset", type=TrainPreset, choices=list(TrainPreset), default=TrainPreset.KAGGLE)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    model, cores = model_of(options.preset), os.cpu_count() or 1
    works, replicas = work_of(model), sharing(model, options.precision, cores)
    alone, workers = ComputeWorkers(), ComputeWorkers(cores)
    ways = ["one", "side by side", "hogwild", *(["compiled"] if options.compile else [])]
    optimised = compiled(model, options.precision) if options.compile else replicas[0]

    def samples_per_s(way: str) -> float:
        torch.set_num_threads(1 if way == "hogwild" else cores)
        end_s = time.monotonic() + options.seconds
        if way == "hogwild":
            steps = race(replicas, works, end_s)
        else:
            replica = optimised if way == "compiled" else replicas[0]
            steps = train(replica, works, workers if way == "side by side" else alone, end_s)
        return float(steps * BATCH_SIZE / (options.seconds + time.monotonic() - end_s))

    found: dict[str, list[float]] = {way: [] for way in ways}
    warm_s = {}
    for way in ways:
        began = time.monotonic()
        samples_per_s(way)
        warm_s[way] = round(time.monotonic() - began, 1)
    for repeat in range(options.repeats):
        for place in range(len(ways)):
            way = ways[(repeat + place) % len(ways)]
            found[way].append(samples_per_s(way))
    ratios = {way: [mine / one for mine, one in zip(found[way], found["one"], strict=True)] for way in ways[1:]}
    values = {
        "precision": options.precision,
        "workers": cores,
        "samples_per_s": {way: round(statistics.median(rates)) for way, rates in found.items()},
        "first_window_s": warm_s,
        "ratio_to_one": {way: round(statistics.median(each), 3) for way, each in ratios.items()},
    }
    json.dump(values, sys.stdout)


if __name__ == "__main__":
    main()
