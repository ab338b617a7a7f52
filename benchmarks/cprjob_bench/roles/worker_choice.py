"""The number of workers of a job's trainers on this machine, as its first leader measures it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cpr_trainer.data.open import open_dataset
from cpr_trainer.data.order import BatchOrder
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.runtime import read_job
from cpr_trainer.store import Uris
from cpr_trainer.trainer.worker_tuning import choose_workers


def run(environ: Mapping[str, str], path: Path) -> None:
    """Write the number for the job in the environment to `path`. Raises TrainerError."""
    job = read_job(environ)
    dataset = open_dataset(job.data, job.model, Uris(job.snapshots.store))
    order, placement = BatchOrder.of(job.data, dataset.layout), Placement.of(job.model, job.shards)
    path.write_text(f"{choose_workers(job, dataset, order, placement, lambda: None).count}\n")
