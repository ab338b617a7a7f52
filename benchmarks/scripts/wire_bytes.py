"""Frames and bytes of a step between trainers and shards, with an update a push and with an update a step.

Real shard processes, and the exchanges of all trainers on threads, take the steps of a job in the order of
`trainer/step.py`, without a dense network. All frames are counted but those once a second (PING, PONG).
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from cpr_contract.choices import SparseUpdates
from cpr_contract.spec import JobSpec
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.validate import parse_spec
from cpr_operator.cluster.local.pod_folder import PortBlocks
from cpr_trainer.data.loader import Loader
from cpr_trainer.data.open import files_of, open_dataset
from cpr_trainer.data.order import BatchOrder
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.exchange import Exchange
from cpr_trainer.exchange.frames import HEADER_BYTES, Frame, FrameReader, FrameWriter, Header, Operation
from cpr_trainer.trainer.prefetch import Feed, Prefetch
from cprjob_bench.commands.train_bench import document
from cprjob_bench.options import TrainPreset
from cprjob_bench.roles.snapshot.serving import KEY, ShardProcess, running_shard, trainer_roster

SHARDS = 2
#: Steps before the count begins, and counted ones.
WARM_UP, COUNTED = 5, 20
TIME_LIMIT_S = 60.0
_UNCOUNTED = frozenset({Operation.PING, Operation.PONG})


class Counts:
    """Frames and bytes by operation, of all trainers of this process, since the call of `mark` before the last."""

    def __init__(self) -> None:
        self.frames, self.size_bytes = Counter[Operation](), Counter[Operation]()
        self._running = Counter[Operation](), Counter[Operation]()
        self._lock = threading.Lock()

    def mark(self) -> None:
        """Publish the counts since the last call."""
        with self._lock:
            (self.frames, self.size_bytes), self._running = self._running, (Counter(), Counter())

    def note(self, header: Header) -> None:
        """Count a frame."""
        with self._lock:
            frames, size_bytes = self._running
            frames[header.operation] += 1
            size_bytes[header.operation] += HEADER_BYTES + header.payload_bytes

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Count all frames of this process."""
        add, read = FrameWriter.add, FrameReader.read

        def counted_add(writer: FrameWriter, header: Header, *payload: Any) -> None:
            self.note(header)
            add(writer, header, *payload)

        def counted_read(reader: FrameReader, connection: Any) -> Frame | None:
            if (frame := read(reader, connection)) is not None:
                self.note(frame.header)
            return frame

        FrameWriter.add, FrameReader.read = counted_add, counted_read  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            FrameWriter.add, FrameReader.read = add, read  # type: ignore[method-assign]


def job_of(options: argparse.Namespace, trainers: int, updates: SparseUpdates, folder: Path) -> JobSpec:
    """Return a job over synthetic samples."""
    manifest = document(
        options.preset,
        rows=options.rows,
        trainers=trainers,
        shards=SHARDS,
        workers=1,
        precision="fp32",
        samples=folder,
        store=folder,
        interval_s=3600,
    )
    batch_size = manifest["spec"]["data"]["batchSize"]
    samples = (WARM_UP + COUNTED + 1) * batch_size
    manifest["spec"]["data"] = {"format": "Synthetic", "samples": samples, "batchSize": batch_size}
    return replace(to_job_spec(parse_spec(manifest["spec"]), uid="bench", name="bench"), sparse_updates=updates)


def train(job: JobSpec, rank: int, shards: list[ShardProcess], together: threading.Barrier, counts: Counts) -> None:
    """Take the steps of one trainer. Its gradients are zeros."""
    dataset, placement = open_dataset(job.data, job.model, files_of(job)), Placement.of(job.model, job.shards)
    order, merges, dim = BatchOrder.of(job.data, dataset.layout), job.per_step, job.model.embedding_dim
    loader = Loader(dataset, order, rank=rank, trainers=job.trainers, first_step=1)
    with (
        closing(Exchange(job, rank, 1, KEY, order.total_samples)) as exchange,
        Feed(loader, placement, split=not merges) as feed,
    ):
        exchange.follow(trainer_roster(rank, tuple(shard.peer for shard in shards)))
        exchange.wait_ready(TIME_LIMIT_S)
        if merges:
            exchange.commit(0, 0)
        prefetch = Prefetch(feed, exchange, job.prefetch, 0, merges=merges)
        while (vectors := prefetch.take()) is not None:
            step, rows = vectors.slice.step, vectors.slice.access.unique
            vectors.take(lambda lookup: lookup.result(TIME_LIMIT_S))
            if step in {WARM_UP, WARM_UP + COUNTED}:
                exchange.settle(TIME_LIMIT_S)  # no frame is under way
                if together.wait() == 0:
                    counts.mark()
                together.wait()
            prefetch.request(step)
            gradients = np.zeros((len(rows), dim), np.float32)
            if merges:
                exchange.push(step, rows, gradients, 0, TIME_LIMIT_S)
                exchange.wait_received(step, TIME_LIMIT_S)
            together.wait()  # the sum over trainers
            if merges:
                exchange.commit(step, 0)
            else:
                exchange.push(step, rows, gradients, 0, TIME_LIMIT_S)
            prefetch.after_step()
        exchange.settle(TIME_LIMIT_S)


def measure(options: argparse.Namespace, trainers: int, updates: SparseUpdates) -> Counts:
    """Return the frames of `COUNTED` steps of all trainers."""
    counts = Counts()
    with ExitStack() as stack:
        ports = stack.enter_context(closing(PortBlocks(random.Random())))
        shards = []
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        job = job_of(options, trainers, updates, folder)
        for index in range(SHARDS):
            mine = folder / str(index)
            mine.mkdir()
            shards.append(stack.enter_context(running_shard(job, os.environ, ports.take(), mine, index)))
        for shard in shards:
            shard.wait_ready()
        together = threading.Barrier(trainers, timeout=TIME_LIMIT_S)
        threads = stack.enter_context(ThreadPoolExecutor(trainers))
        stack.enter_context(counts.installed())
        ended = [threads.submit(train, job, rank, shards, together, counts) for rank in range(trainers)]
        for each in ended:
            each.result()
    return counts


def main() -> None:
    """Print, for each number of trainers, the frames and bytes of one trainer in a step with both kinds of updates."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--preset", type=TrainPreset, choices=TrainPreset, default=TrainPreset.KAGGLE)
    parser.add_argument("--rows", type=int, default=100_000, help="the maximum number of rows per table")
    parser.add_argument("--trainers", type=int, nargs="+", default=(2, 4))
    options = parser.parse_args()
    table = Table("trainers", "updates", "frames", "bytes", "by operation")
    for trainers in options.trainers:
        for updates in ("PerPush", "PerStep"):
            found, steps = measure(options, trainers, updates), COUNTED * trainers
            kinds = sorted(found.frames.keys() - _UNCOUNTED)
            frames, size_bytes = (sum(of[kind] for kind in kinds) for of in (found.frames, found.size_bytes))
            parts = [(kind.name, found.frames[kind] / steps, found.size_bytes[kind] / steps) for kind in kinds]
            by = (f"{name} {often:g} ({size:,.0f})" for name, often, size in parts)
            table.add_row(str(trainers), updates, f"{frames / steps:.2f}", f"{size_bytes / steps:,.0f}", ", ".join(by))
    Console().print(table)


if __name__ == "__main__":
    main()
