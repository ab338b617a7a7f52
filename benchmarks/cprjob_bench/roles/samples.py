"""Writes samples to a file, so that their generation is not measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cpr_trainer.data.criteo_writer import write_criteo_tsv
from cpr_trainer.runtime import read_job

_BLOCK_ROWS = 1 << 16


def run(environ: Mapping[str, str], rows: int, path: Path) -> None:
    """Write `rows` samples for the tables of the job in the environment, by its seed."""
    job = read_job(environ)
    write_criteo_tsv(path, rows, job.data.seed, job.model.tables)


def write_sweep(rows: int, tables: int, path: Path) -> None:
    """Write `rows` samples as Parquet: label, x, and c0, c1, ... with the number of a row of each table.

    Each row of each table occurs once, so after one pass no row has its first value.
    """
    rng = np.random.default_rng(rows)
    names = [f"c{place}" for place in range(tables)]
    schema = pa.schema([("label", pa.int8()), ("x", pa.float32()), *((name, pa.int64()) for name in names)])
    with pq.ParquetWriter(path, schema) as writer:
        for first in range(0, rows, _BLOCK_ROWS):
            numbers = pa.array(np.arange(first, min(first + _BLOCK_ROWS, rows)))
            labels = pa.array(rng.integers(0, 2, len(numbers), np.int8))
            values = pa.array(rng.random(len(numbers), np.float32))
            writer.write_table(pa.table([labels, values, *[numbers] * tables], schema))
