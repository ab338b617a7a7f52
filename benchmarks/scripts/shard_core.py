"""The throughput of one core of a shard, compared with memory and the loopback: benchmarks/scripts/shard_core.py.

A real shard process with one processor answers lookups and takes pushes of real batches as fast as one trainer on
another processor can send them. Its CPU time per row gives the cores that any number of trainers need.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import random
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from cpr_contract.spec import JobSpec
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.validate import parse_spec
from cpr_operator.cluster.local.pod_folder import PortBlocks
from cpr_trainer.arrays import Ints
from cpr_trainer.data.open import files_of, open_dataset
from cpr_trainer.data.order import BatchOrder
from cpr_trainer.embedding.access import Access, find_access
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.embedding.unique_rows import UniqueRows
from cpr_trainer.exchange import PendingLookup
from cprjob_bench.commands.machine_load import usage
from cprjob_bench.commands.train_bench import document
from cprjob_bench.options import TrainPreset
from cprjob_bench.roles.snapshot.saves import gradients_for
from cprjob_bench.roles.snapshot.serving import Trainer, running_shard

TIME_LIMIT_S = 60.0
#: Batches that are generated in advance and used in turn.
BATCHES = 32
IN_FLIGHT = 2
GIB = 1 << 30
TRAINERS = (10, 100, 1000)


@dataclasses.dataclass(frozen=True, slots=True)
class Rate:
    """Rows per second, and the shard's CPU time for a million of them.

    rows_per_core_s: rows per second of CPU time. One trainer does not keep the core busy.
    """

    rows_per_s: float
    cpu_s_per_million: float

    @property
    def rows_per_core_s(self) -> float:
        """See above."""
        return 1e6 / self.cpu_s_per_million


@dataclasses.dataclass(frozen=True, slots=True)
class CoreMetrics:
    """The metrics of one preset. The bytes are on the wire, per sample; `gather_rows_per_s` is of memory alone.

    hot_accesses, hot_rows: the portions of the hottest hundredth of all rows in the accesses, and in the unique rows
    of batches.
    """

    rows_per_sample: float
    hot_accesses: float
    hot_rows: float
    bytes_per_sample: float
    lookup: Rate
    push: Rate
    vector_bytes: int
    gather_rows_per_s: float


def job_of(preset: TrainPreset, options: argparse.Namespace, folder: Path) -> JobSpec:
    """Return an endless job of one trainer and one shard over Criteo rows or synthetic samples."""
    data = options.data
    manifest = document(
        preset,
        rows=options.rows,
        trainers=1,
        shards=1,
        workers=1,
        precision=options.precision,
        samples=folder,
        store=folder,
        interval_s=3600,
    )
    source = {"format": "Synthetic"} if data is None else {"format": "Criteo", "uri": str(data.resolve())}
    for table in manifest["spec"]["model"]["tables"]:
        table["precision"] = options.row_precision
    batch_size = manifest["spec"]["data"]["batchSize"]
    manifest["spec"]["data"] = {**source, "samples": 1 << 40, "batchSize": batch_size}
    return to_job_spec(parse_spec(manifest["spec"]), uid=f"bench-{uuid.uuid4().hex}", name="bench")


def batches_of(job: JobSpec) -> Iterator[Access]:
    """Yield the rows of `BATCHES` batches."""
    dataset = open_dataset(job.data, job.model, files_of(job))
    order, placement = BatchOrder.of(job.data, dataset.layout), Placement.of(job.model, 1)
    for step in range(1, BATCHES + 1):
        access = find_access(placement, dataset.take(order.batch_indices(step)).ids)
        assert isinstance(access, Access)  # noqa: S101 -- the tables of presets are of one dim
        yield access


def hot(batches: Sequence[Access], total: int) -> tuple[float, float]:
    """Return `hot_accesses` and `hot_rows` of the second half of the batches; the first half ranks the rows."""
    seen, coming = batches[: len(batches) // 2], batches[len(batches) // 2 :]
    counts = np.zeros(total, np.int64)
    for batch in seen:
        counts[batch.unique.places] += uses(batch)
    hottest = np.zeros(total, np.bool_)
    hottest[np.argsort(counts)[-(total // 100) :]] = True
    accesses = sum(int(uses(batch)[hottest[batch.unique.places]].sum()) for batch in coming)
    rows = sum(int(np.count_nonzero(hottest[batch.unique.places])) for batch in coming)
    return accesses / sum(int(uses(b).sum()) for b in coming), rows / sum(len(b.unique) for b in coming)


def uses(batch: Access) -> Ints:
    """Return the number of uses of each row of a batch, int64 [u]."""
    return np.bincount(batch.inverse.numpy().ravel(), minlength=len(batch.unique))


def rate(work: Callable[[float], int], seconds: float) -> Rate:
    """Time `work`, which runs until a time of the monotonic clock and returns its number of rows."""
    before, began_s = usage()["shard"].cpu_s, time.monotonic()
    rows = work(began_s + seconds)
    wall_s, cpu_s = time.monotonic() - began_s, usage()["shard"].cpu_s - before
    return Rate(rows / wall_s, cpu_s / rows * 1e6)


def look_up(trainer: Trainer, batches: Sequence[UniqueRows], until_s: float) -> int:
    """Look up batches in turn, `IN_FLIGHT` of them at a time."""
    done, pending = 0, deque[tuple[int, PendingLookup]]()
    for rows in itertools.cycle(batches):
        lookup = trainer.exchange.lookup(trainer.step + 1, rows)
        pending.append((len(rows), lookup))
        if len(pending) == IN_FLIGHT:
            count, oldest = pending.popleft()
            oldest.result(TIME_LIMIT_S)
            done += count
            if time.monotonic() > until_s:
                break
    return done


def push(trainer: Trainer, batches: Sequence[UniqueRows], until_s: float) -> int:
    """Push batches in turn, with a full window of pushes in flight."""
    done, dim = 0, trainer.job.model.embedding_dim
    gradients = [gradients_for(rows, dim) for rows in batches]
    for rows, values in itertools.cycle(zip(batches, gradients, strict=True)):
        trainer.step += 1
        trainer.exchange.push(trainer.step, rows, values, 0, TIME_LIMIT_S)
        done += len(rows)
        if time.monotonic() > until_s:
            break
    trainer.exchange.settle(TIME_LIMIT_S)
    return done


def gather_rows_per_s(batches: Sequence[UniqueRows], total: int, dim: int, seconds: float) -> float:
    """Return the rate at which one core copies the same rows from memory into one block."""
    table = np.ones((total, dim), np.float32)
    done, began_s = 0, time.perf_counter()
    for rows in itertools.cycle(batches):
        table.take(rows.places, axis=0)
        done += len(rows)
        if time.perf_counter() - began_s > seconds:
            break
    return done / (time.perf_counter() - began_s)


def loopback_gib_s(seconds: float) -> float:
    """Return the throughput of one connection between two threads."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()

        def send() -> None:
            block = bytes(1 << 20)
            end_s = time.monotonic() + seconds
            while time.monotonic() < end_s:
                sender.sendall(block)
            sender.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=send)
        got, buffer, began_s = 0, bytearray(1 << 20), time.monotonic()
        with receiver:
            thread.start()
            while count := receiver.recv_into(buffer):
                got += count
            thread.join()
        return got / GIB / (time.monotonic() - began_s)


def measure(preset: TrainPreset, options: argparse.Namespace) -> CoreMetrics:
    """Measure one preset."""
    first, last = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = job_of(preset, options, folder)
        accesses = tuple(batches_of(job))
        batches = [access.unique for access in accesses]
        rows = sum(map(len, batches)) / len(batches)
        with (
            closing(PortBlocks(random.Random())) as ports,
            running_shard(job, os.environ, ports.take(), folder) as shard,
            Trainer.of(job, shard) as trainer,
        ):
            for task in Path(f"/proc/{shard.pid}/task").iterdir():
                os.sched_setaffinity(int(task.name), {last})
            look_up(trainer, batches, time.monotonic() + 0.5)
            looked_up = rate(lambda until_s: look_up(trainer, batches, until_s), options.seconds)
            pushed = rate(lambda until_s: push(trainer, batches, until_s), options.seconds)
        dim, total = job.model.embedding_dim, Placement.of(job.model, 1).total
        value_bytes = dim * (2 if options.precision == "bf16" else 4)
        os.sched_setaffinity(0, {first})
        gathered = gather_rows_per_s(batches, total, dim, options.seconds)
        os.sched_setaffinity(0, {first, last})
    hot_accesses, hot_rows = hot(accesses, total)
    return CoreMetrics(
        rows_per_sample=rows / job.data.batch_size,
        hot_accesses=hot_accesses,
        hot_rows=hot_rows,
        bytes_per_sample=rows / job.data.batch_size * (8 + 2 * value_bytes),
        lookup=looked_up,
        push=pushed,
        vector_bytes=value_bytes,
        gather_rows_per_s=gathered,
    )


def shard_cores(found: CoreMetrics, samples_per_s: float) -> float:
    """Return the number of shard cores for `samples_per_s` samples a second."""
    a_row = (found.lookup.cpu_s_per_million + found.push.cpu_s_per_million) / 1e6
    return samples_per_s * found.rows_per_sample * a_row


def show(console: Console, found: dict[str, CoreMetrics], loopback: float, samples_per_s: float) -> None:
    """Print the metrics of one core, and the cores for many trainers."""
    core = Table("one core", "lookups/s", "GiB/s", "of gather", "updates/s", "lookups/s of one trainer", "updates/s")
    skew = Table("a sample", "rows", "bytes", "accesses by the hottest 1 %", "rows among them")
    fleet = Table("cores of shards, GiB/s", *(f"{count:,} trainers" for count in TRAINERS))
    for name, metrics in found.items():
        core.add_row(
            name,
            _millions(metrics.lookup.rows_per_core_s),
            f"{metrics.lookup.rows_per_core_s * metrics.vector_bytes / GIB:.2f}",
            f"{metrics.lookup.rows_per_core_s / metrics.gather_rows_per_s:.0%}",
            _millions(metrics.push.rows_per_core_s),
            _millions(metrics.lookup.rows_per_s),
            _millions(metrics.push.rows_per_s),
        )
        skew.add_row(
            name,
            f"{metrics.rows_per_sample:.1f}",
            f"{metrics.bytes_per_sample:,.0f}",
            f"{metrics.hot_accesses:.0%}",
            f"{metrics.hot_rows:.0%}",
        )
        needs = (
            f"{shard_cores(metrics, count * samples_per_s):,.0f}, "
            f"{count * samples_per_s * metrics.bytes_per_sample / GIB:,.1f}"
            for count in TRAINERS
        )
        fleet.add_row(name, *needs)
    console.print(core, f"One connection over the loopback: {loopback:.2f} GiB/s.", skew, fleet, sep="\n")


def _millions(value: float) -> str:
    return f"{value / 1e6:.1f} M"


def main() -> None:
    """Measure all presets and print them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000, help="the maximum number of rows per table")
    parser.add_argument("--data", type=Path, help="Criteo rows; else samples are synthetic")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--row-precision", choices=("fp32", "bf16"), default="fp32", help="of all tables")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--samples-per-s", type=float, default=32_000.0, help="of one trainer, for the second table")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    presets = track(TrainPreset, "presets", console=Console(stderr=True))
    found = {str(preset): measure(preset, options) for preset in presets}
    loopback = loopback_gib_s(options.seconds)
    if options.json:
        json.dump({"loopback_gib_s": loopback, **{k: dataclasses.asdict(v) for k, v in found.items()}}, sys.stdout)
    else:
        show(Console(), found, loopback, options.samples_per_s)


if __name__ == "__main__":
    main()
