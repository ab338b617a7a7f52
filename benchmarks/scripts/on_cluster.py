"""The costs of snapshots, and the recovery of a lost shard, on the tests' cluster.

    .venv/bin/python benchmarks/scripts/on_cluster.py recovery [--mib 64 512 2048] [--repeats N]
    .venv/bin/python benchmarks/scripts/on_cluster.py overhead [--mib 512] [--mtbf 3600]

Has the requirements of `make cluster-up`.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from recovery_timeline import STAGES, Timeline

from cluster.harness import Cluster, until
from cluster.harness.cluster import cluster
from cluster.harness.store import BUCKET
from cluster.jobs import Run, pod_template

TABLES, NUMBERS, DIM = 26, 4, 64
ROW_BYTES = 4 * DIM + 4  # a row and its optimizer state
DATA_KEY = "bench/clicks.parquet"
#: Passes over the data until the first kill; a pass has as many ids of a table as it has rows.
PASSES = 3
#: More than any of these jobs trains.
SAMPLES, MOST_EPOCHS = 20_000_000, 1000
#: Even ids change all rows, the hardest case for saves; in click logs one row in a hundred takes nine accesses in ten.
EVEN, AS_CLICKS = 1.0, math.log(0.01) / math.log(0.9)


@contextmanager
def clicks(up: Cluster, rows: int, skew: float) -> Iterator[None]:
    """Store as many samples as a table has rows until the context ends; with `skew` 1 ids are uniform."""
    rng = np.random.default_rng(1)
    columns: dict[str, Any] = {"click": rng.integers(0, 2, rows, dtype=np.int8)}
    columns |= {f"n{i}": rng.random(rows, dtype=np.float32) for i in range(NUMBERS)}
    columns |= {f"c{i}": (rows * rng.random(rows) ** skew).astype(np.int64) for i in range(TABLES)}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "clicks.parquet")
        pq.write_table(pa.table(columns), file)
        up.store.put(DATA_KEY, file.read_bytes())
    try:
        yield
    finally:
        up.store.delete(DATA_KEY)


@contextmanager
def training(up: Cluster, mib: int, samples: int, skew: float, **changes: Any) -> Iterator[Run]:
    """Run a job of one trainer and one shard of `mib` MiB over about `samples`; enter when most rows have changed."""
    rows = (mib << 20) // ROW_BYTES // TABLES
    template = pod_template()
    template["spec"]["containers"][0]["resources"]["limits"]["memory"] = f"{mib + mib // 4 + 1024}Mi"
    space = up.space(f"bench-{mib}")
    try:
        with clicks(up, rows, skew):
            model = {
                "embeddingDim": DIM,
                "bottomMlp": [32, DIM],
                "topMlp": [32, 1],
                "tables": [{"name": f"c{i}", "rows": rows} for i in range(TABLES)],
                "denseOptimizer": {"kind": "SGD", "learningRate": 0.1},
                "sparseOptimizer": {"kind": "RowWiseAdagrad", "learningRate": 0.05},
            }
            columns = {
                "labels": ["click"],
                "numbers": [f"n{i}" for i in range(NUMBERS)],
                "categories": [f"c{i}" for i in range(TABLES)],
            }
            data = {"format": "Parquet", "uri": f"s3://{BUCKET}/{DATA_KEY}", "columns": columns}
            run = Run.start(
                space,
                f"shard-{mib}",
                model=model,
                data=data | {"epochs": min(-(-samples // rows), MOST_EPOCHS), "batchSize": 2048},
                trainers={"replicas": 1, "template": template},
                shards={"replicas": 1, "template": template},
                **changes,
            )
            run.reach(max(PASSES * rows / samples, PASSES / MOST_EPOCHS), within_s=600)
            yield run
    finally:
        space.remove()


def saved_mib(up: Cluster, save: dict[str, Any]) -> float:
    """Return the MiB that a restore of this save reads, its chain included."""
    newest = json.loads(up.store.get(save["key"]))
    chain = (json.loads(up.store.get(ref["key"])) for ref in newest["chain"])
    return float(sum(part["size_bytes"] for manifest in (newest, *chain) for part in manifest["parts"])) / (1 << 20)


def recoveries(up: Cluster, mib: int, repeats: int) -> tuple[float, list[dict[str, float]]]:
    """Return the MiB read by a restore, and the stages of each recovery, in seconds after the pod was gone."""
    found = []
    changes = {
        "accuracyBudget": {"portionOfLostSamples": 0.9},
        "recovery": {"mode": "Partial", "replay": {"mode": "Off"}},
        "snapshots__interval": {"mode": "Fixed", "seconds": 20},
    }
    with training(up, mib, SAMPLES, EVEN, **changes) as run:
        for _ in range(repeats):
            timeline, victim = Timeline(run, 0), run.pod("shard", 0).name
            size = saved_mib(up, next_save(run))
            timeline.record(partial(run.space.delete_pod, victim, force=True), within_s=120)
            found.append(timeline.at)
        return size, found


def next_save(run: Run) -> dict[str, Any]:
    """Wait for the shard's next save; return its reference."""

    def newest() -> dict[str, Any]:
        return (run.report("shard", 0) or {}).get("newest_save") or {"samples": 0}

    before = newest()["samples"]
    until("the shard has saved again", lambda: newest()["samples"] > before, 120)
    return newest()


def overhead(up: Cluster, mib: int, mtbf_s: int) -> dict[str, float]:
    """Return the costs of saves in a job without failures, at the interval planned for one in `mtbf_s` seconds."""
    changes = {
        "accuracyBudget": {"portionOfLostSamples": 0.1},
        "failurePolicy__expectedJobMtbfSeconds": mtbf_s,
        "snapshots__interval": {"mode": "Auto"},
    }
    with training(up, mib, SAMPLES // 4, AS_CLICKS, **changes) as run:
        run.reach(0.95, within_s=900)
        report: dict[str, Any] = until("the trainer answers", lambda: run.report("trainer", 0), 10)
        status = run.status()
        useful_s = report["samples"] / report["samples_per_s"]
        return {
            "interval, s": status["plan"]["intervalSeconds"],
            "saves": report["saves"],
            "from cut to commit, s": report["commit_s"],
            "stall a save, s": report["save_stall_s"] / report["saves"],
            "of the training time, %": 100 * report["save_stall_s"] / useful_s,
        }


def main() -> None:
    """Print one of the two tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("recovery", "overhead"))
    parser.add_argument("--mib", type=int, nargs="+", default=[64, 512, 2048], help="of one shard")
    parser.add_argument("--repeats", type=int, default=3, help="recoveries of each size")
    parser.add_argument("--mtbf", type=int, default=3600, help="seconds between failures that the plan expects")
    options = parser.parse_args()
    table: Table | None = None
    with cluster() as up:
        for mib in options.mib:
            if options.what == "recovery":
                read, found = recoveries(up, mib, options.repeats)
                values = {"read back, MiB": read} | {
                    f"{stage}, s": statistics.median(at[stage] for at in found) for stage in STAGES
                }
            else:
                values = overhead(up, mib, options.mtbf)
            table = table or Table("shard, MiB", *values)
            table.add_row(str(mib), *(f"{value:.2f}" for value in values.values()))
    Console().print(table or "")


if __name__ == "__main__":
    main()
