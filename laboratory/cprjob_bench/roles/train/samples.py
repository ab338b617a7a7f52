"""Writes synthetic samples once, so that making them is no part of what is measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cpr_trainer.data.criteo_writer import write_criteo_tsv
from cpr_trainer.runtime import read_job


def run(environ: Mapping[str, str], rows: int, path: Path) -> None:
    """Write `rows` samples for the tables of the job in the environment, by its seed."""
    job = read_job(environ)
    write_criteo_tsv(path, rows, job.data.seed, job.model.tables)
