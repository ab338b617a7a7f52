"""Writes samples to a file, so that their generation is not measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from cpr_contract.model import CATEGORICAL_FEATURES, DENSE_FEATURES, TableSpec
from cpr_trainer.data.schema import CRITEO_NAMES
from cpr_trainer.data.synthetic import RawRows, SyntheticDataset
from cpr_trainer.runtime import read_job
from cprjob_serving.hashes import U64, WORD_BYTES

_BLOCK_ROWS = 1 << 16
_CSV_BLOCK_ROWS = 1 << 15


def run(environ: Mapping[str, str], rows: int, path: Path) -> None:
    """Write `rows` samples for the tables of the job in the environment, by its seed."""
    job = read_job(environ)
    write_criteo_tsv(path, rows, job.data.seed, job.model.tables)


def write_criteo_tsv(path: Path, rows: int, seed: int, tables: Sequence[TableSpec]) -> None:
    """Write `rows` samples of `SyntheticDataset`, with gzip if the name ends in .gz.

    Reading the file with the same tables gives that dataset, row for row. Columns without a table are empty.
    """
    dataset = SyntheticDataset(rows, seed, tables)
    options = pa.csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    # The names stand for a schema only: no header is written.
    kinds = [pa.int64()] * (1 + DENSE_FEATURES) + [pa.string()] * CATEGORICAL_FEATURES
    schema = pa.schema(list(zip(CRITEO_NAMES, kinds, strict=True)))
    compression = "gzip" if path.suffix == ".gz" else None
    with (
        pa.output_stream(str(path), compression=compression) as stream,
        pa.csv.CSVWriter(stream, schema, write_options=options) as writer,
    ):
        for start in range(0, rows, _CSV_BLOCK_ROWS):
            raw = dataset.raw(np.arange(start, min(start + _CSV_BLOCK_ROWS, rows)))
            writer.write_batch(pa.record_batch(_columns(raw), schema=schema))


def _columns(raw: RawRows) -> list[Any]:
    labels = pa.array(raw.labels.astype(np.int64))
    counts = [pa.array(raw.counts[:, k], mask=raw.missing[:, k]) for k in range(DENSE_FEATURES)]
    tables = raw.categories.shape[1]
    texts = [_strings(raw.categories[:, place]) for place in range(tables)]
    empty = pa.nulls(len(labels), pa.string())
    return [labels, *counts, *texts, *[empty] * (CATEGORICAL_FEATURES - tables)]


def _strings(words: U64) -> Any:
    """Wrap strings of 8 ASCII characters, one to a word, as a pyarrow array."""
    offsets = np.arange(len(words) + 1, dtype=np.int32) * WORD_BYTES
    return pa.StringArray.from_buffers(len(words), pa.py_buffer(offsets), pa.py_buffer(words.astype("<u8")))


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
