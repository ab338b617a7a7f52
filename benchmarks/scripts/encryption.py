"""Measure TLS between a trainer and shards: .venv/bin/python benchmarks/scripts/encryption.py [--repeats N] [--json].

Lookups and pushes of one process over loopback, encrypted and in clear text in turn. The processor time is that of both
ends. No step is computed, so a job's own step is longer by what TLS adds, and not by the ratio.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from cpr_contract.model import TableSpec
from cpr_contract.spec import JobSpec
from cpr_trainer.embedding.access import find_access
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.exchange import Exchange
from support.certificates import certificates_of, write_ca
from support.exchanges import WAIT_S, follow
from support.shard_job import KEY, small_job
from support.shard_thread import ShardThread

DIM, ROWS, BATCH, STEPS = 16, 100_000, 16_000, 60
_ENDLESS = 10**9
_MIB = 2**20


def large_job() -> JobSpec:
    """Return a job that looks up some 30,000 rows of two tables in a step."""
    job = small_job(Path("unused"), shards=2)
    tables = tuple(TableSpec(f"t{number}", ROWS) for number in range(2))
    return replace(
        job,
        model=replace(job.model, embedding_dim=DIM, tables=tables),
        data=replace(job.data, samples=_ENDLESS, batch_size=BATCH),
    )


def step_ms(job: JobSpec, ca: Path | None) -> tuple[float, float, int]:
    """Return the processor and wall milliseconds of a step, and the bytes of its rows and gradients."""

    def certified(role: str, index: int) -> dict[str, object]:
        return {} if ca is None else {"certificates": certificates_of(ca, job.job_uid, role, index)}

    rng = np.random.default_rng(1)
    rows = find_access(Placement.of(job.model, job.shards), rng.integers(0, ROWS, (BATCH, 2))).unique
    gradients = np.ones((len(rows), DIM), np.float32)
    with ExitStack() as stack:
        shards = [ShardThread(job, index, **certified("shard", index)) for index in range(2)]  # type: ignore[arg-type]
        for shard in shards:
            stack.callback(shard.close)
        exchange = Exchange(job, 0, 1, KEY, _ENDLESS, **certified("trainer", 0))  # type: ignore[arg-type]
        stack.enter_context(closing(exchange))
        follow(exchange, *shards)
        exchange.wait_ready(WAIT_S)
        began, processor = time.perf_counter(), time.process_time()
        for step in range(1, STEPS + 1):
            exchange.lookup(step, rows).result(WAIT_S)
            exchange.push(step, rows, gradients, 0, WAIT_S)
        exchange.settle(WAIT_S)
        wall_s, processor_s = time.perf_counter() - began, time.process_time() - processor
    return processor_s / STEPS * 1000, wall_s / STEPS * 1000, 2 * gradients.nbytes


def main() -> None:
    """Measure both in turn and print the medians of the pairs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=8, help="pairs to measure")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    job = large_job()
    with tempfile.TemporaryDirectory(prefix="cprjob-") as folder:
        ca = Path(folder) / "ca"
        write_ca(ca)
        pairs = [(step_ms(job, ca), step_ms(job, None)) for _ in range(options.repeats + 1)][1:]  # the first warms up
    *_, size_bytes = pairs[0][0]
    found = {
        "mib_per_step": size_bytes / _MIB,
        "added_processor_ms_per_mib": statistics.median(tls[0] - plain[0] for tls, plain in pairs) * _MIB / size_bytes,
        "added_wall_ms_per_mib": statistics.median(tls[1] - plain[1] for tls, plain in pairs) * _MIB / size_bytes,
        "ratio_of_processor_time": statistics.median(tls[0] / plain[0] for tls, plain in pairs),
        "ratio_of_wall_time": statistics.median(tls[1] / plain[1] for tls, plain in pairs),
    }
    lines = "\n".join(f"{name}: {value:.2f}" for name, value in found.items())
    Console().print(json.dumps(found) if options.json else lines, soft_wrap=True, highlight=False)


if __name__ == "__main__":
    main()
