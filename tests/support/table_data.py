"""Tables of clicks in every format that training reads, made of the same rows."""

from __future__ import annotations

import gzip
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import RLock

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from cpr_contract.model import ModelSpec, OptimizerSpec, SparseOptimizerSpec, TableSpec
from cpr_contract.spec import ColumnsSpec, DataSpec, StoreSpec
from cpr_trainer.bags import FeatureLayout
from cpr_trainer.data import tables as data_tables
from cpr_trainer.data import unpacking
from cpr_trainer.data.batch import Batch, Dataset
from cpr_trainer.data.blocks import Parsed
from cpr_trainer.data.columns import Columns
from cpr_trainer.data.loader import Loader
from cpr_trainer.data.order import BatchOrder
from cpr_trainer.data.rows import Rows, decode
from cpr_trainer.data.source import open_dataset
from cpr_trainer.store import Uris
from support.plain_batches import single_ids

COLUMNS = ColumnsSpec(("click",), ("age", "views"), ("price",), ("user", "item"))
TABLES = (TableSpec("user", 100), TableSpec("item", 50))
#: No store is asked: the files are local.
FILES = Uris(StoreSpec("file:///nowhere", None, "bucket", ""))


@dataclass(frozen=True, slots=True)
class Click:
    """One row; None is an absent cell."""

    click: int
    age: int | None = 3
    views: int | None = 0
    price: float | None = 0.5
    user: str | None = "u"
    item: int | None = 7


def clicks(count: int, seed: int = 0) -> list[Click]:
    """Rows that all differ; one cell in eight is absent."""
    random = np.random.default_rng(seed)

    def some(value: object) -> object:
        return None if random.random() < 1 / 8 else value

    return [
        Click(
            int(random.integers(2)),
            some(int(random.integers(-2, 1000))),  # type: ignore[arg-type]
            some(number),  # type: ignore[arg-type]
            some(round(float(random.normal()), 6)),  # type: ignore[arg-type]
            some(f"u{random.integers(60):x}"),  # type: ignore[arg-type]
            some(int(random.integers(2**40))),  # type: ignore[arg-type]
        )
        for number in range(count)
    ]


def as_table(rows: Sequence[Click]) -> pa.Table:
    kinds = {"click": pa.int8(), "price": pa.float64(), "user": pa.string()}
    names = [*Click.__dataclass_fields__]
    return pa.table(
        {name: pa.array([getattr(row, name) for row in rows], kinds.get(name, pa.int64())) for name in names}
    )


def as_text(rows: Sequence[Click], delimiter: str, *, header: bool = True) -> bytes:
    names = [*Click.__dataclass_fields__]
    cells = [[getattr(row, name) for name in names] for row in rows]
    lines = [names] * header + [["" if cell is None else str(cell) for cell in line] for line in cells]
    return "".join(delimiter.join(line) + "\n" for line in lines).encode()


def _write_parquet(rows: Sequence[Click], path: Path) -> None:
    pq.write_table(as_table(rows), path, row_group_size=max(1, len(rows) // 3))


def _zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, "zstd", asbytes=True))


#: By the ending of a file's name: its format, and what writes it.
WRITERS: Mapping[str, tuple[str, Callable[[Sequence[Click], Path], object]]] = {
    "csv": ("CSV", lambda rows, path: path.write_bytes(as_text(rows, ","))),
    "tsv": ("TSV", lambda rows, path: path.write_bytes(as_text(rows, "\t"))),
    "csv.gz": ("CSV", lambda rows, path: path.write_bytes(gzip.compress(as_text(rows, ",")))),
    "tsv.zst": ("TSV", lambda rows, path: path.write_bytes(_zstd(as_text(rows, "\t")))),
    "parquet": ("Parquet", _write_parquet),
}


def write(rows: Sequence[Click], folder: Path, ending: str, *, files: int = 1) -> DataSpec:
    """Write the rows as so many files of one kind; return what names them."""
    name, writer = WRITERS[ending]
    folder.mkdir(exist_ok=True)
    bounds = [number * len(rows) // files for number in range(files + 1)]
    for number in range(files):
        writer(rows[bounds[number] : bounds[number + 1]], folder / f"part-{number:03d}.{ending}")
    return spec(name, f"{folder}/")


def spec(name: str, uri: str) -> DataSpec:
    data = DataSpec("Parquet", uri, 1, None, 8, 1, 0, columns=COLUMNS)
    return replace(data, format=name)  # type: ignore[arg-type]


def read(data: DataSpec, tables: Sequence[TableSpec] = TABLES) -> Dataset:
    return open_dataset(data, model_of(tables), FILES)


def model_of(tables: Sequence[TableSpec]) -> ModelSpec:
    """A model over these tables."""
    return ModelSpec(4, (4,), (1,), tuple(tables), OptimizerSpec("SGD", 0.1), SparseOptimizerSpec("SGD", 0.1))


def read_through(data: DataSpec, block_bytes: int) -> tuple[int, int]:
    """Read an epoch in blocks of about so many bytes; return its samples, and the most rows in memory at once."""
    alive, most, lock = 0, 0, RLock()  # A finalizer may run in the thread that is counting.

    def count(rows: int) -> None:
        nonlocal alive, most
        with lock:
            alive += rows
            most = max(most, alive)

    def decode_and_count(parsed: Parsed, columns: Columns, features: FeatureLayout | None) -> Rows:
        rows = decode(parsed, columns, features)
        count(len(rows))
        weakref.finalize(rows.dense, count, -len(rows))
        return rows

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unpacking, "BLOCK_BYTES", block_bytes)
        patch.setattr(data_tables, "decode", decode_and_count)
        dataset = read(data)
        order = BatchOrder.of(data, dataset.layout)
        with Loader(dataset, order, rank=0, trainers=1, first_step=1) as batches:
            seen = sum(len(batch) for _, batch in batches)
    return seen, most


def everything(dataset: Dataset) -> Batch:
    return dataset.take(np.arange(dataset.layout.rows))


def assert_same(one: Batch, other: Batch) -> None:
    assert np.array_equal(one.dense, other.dense)
    assert np.array_equal(single_ids(one), single_ids(other))
    assert np.array_equal(one.labels, other.labels)
