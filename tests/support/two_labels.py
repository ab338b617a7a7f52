"""The example with two labels, as a job of real processes: its data, its network, and how its processes find that."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from cpr_contract.model import SparseOptimizerSpec, TableSpec
from cpr_contract.spec import ColumnsSpec, DataSpec, JobSpec
from support.local_job import small_job

EXAMPLE = Path(__file__).parents[2] / "examples" / "two_labels"
ROWS = 20_000
#: Of two epochs.
SAMPLES = 2 * ROWS


def write_visits(folder: Path) -> str:
    """Write the example's data; return its URI."""
    subprocess.run([sys.executable, EXAMPLE / "shop.py", folder, str(ROWS)], check=True)
    return f"{folder}/"


def two_labels(folder: Path, uri: str, *, trainers: int = 1) -> JobSpec:
    """Return the job, with saves in `folder`. Its processes need `EXAMPLE` on their PYTHONPATH.

    Rows are trained by SGD, where several trainers' gradients of a row add up to the whole batch's in any order. With
    this seed rows that are read a whole step late move no metric by more than 0.0014; with some a few late steps move
    a calibration by 0.02.
    """
    job = small_job(folder, samples=SAMPLES, trainers=trainers)
    model = replace(
        job.model,
        top_mlp=(16,),
        tables=(TableSpec("user", 4000), TableSpec("item", 1000)),
        sparse_optimizer=SparseOptimizerSpec("SGD", 2.0),
        entrypoint="towers:Towers",
        labels=("click", "buy"),
    )
    columns = ColumnsSpec(("click", "buy"), (), ("price",), ("user", "item"))
    return replace(job, model=model, data=DataSpec("Parquet", uri, 2, None, 100, 2, 0, columns=columns))
