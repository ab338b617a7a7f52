"""Tables of clicks in every format that training reads, made of the same rows."""

from __future__ import annotations

import gzip
import json
import weakref
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from threading import RLock

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from pyarrow import feather, orc

from cpr_contract.model import ModelSpec, OptimizerSpec, SparseOptimizerSpec, TableSpec
from cpr_contract.spec import ColumnsSpec, DataSpec, StoreSpec
from cpr_trainer.data.dataset import Batch, Dataset
from cpr_trainer.data.decode import Rows, decode
from cpr_trainer.data.files import Parsed
from cpr_trainer.data.loader import Loader
from cpr_trainer.data.open import open_dataset
from cpr_trainer.data.order import BatchOrder
from cpr_trainer.data.schema import Columns
from cpr_trainer.embedding.bags import FeatureLayout
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


_SCHEMA = pa.schema(
    {name: pa.int64() for name in Click.__dataclass_fields__}
    | {"click": pa.int8(), "price": pa.float64(), "user": pa.string()}
)


def as_table(rows: Sequence[Click]) -> pa.Table:
    return pa.Table.from_pylist([asdict(row) for row in rows], _SCHEMA)


def as_text(rows: Sequence[Click], delimiter: str, *, header: bool = True) -> bytes:
    return text_of(as_table(rows), delimiter, header=header)


def text_of(table: pa.Table, delimiter: str, *, header: bool = True) -> bytes:
    """Return the rows as lines; the ids of a list are separated by "|"."""
    lines = zip(*([_cell(value) for value in column.to_pylist()] for column in table.columns), strict=True)
    named = [table.column_names] if header else []
    return "".join(delimiter.join(line) + "\n" for line in (*named, *lines)).encode()


def _cell(value: object) -> str:
    return "|".join(map(_cell, value)) if isinstance(value, list) else "" if value is None else str(value)


#: By the ending of a file's name: its format.
FORMATS = {
    "csv": "CSV",
    "tsv": "TSV",
    "csv.gz": "CSV",
    "tsv.zst": "TSV",
    "parquet": "Parquet",
    "arrow": "Arrow",
    "orc": "ORC",
    "jsonl": "JSONLines",
}


def write(
    rows: Sequence[Click] | pa.Table, folder: Path, ending: str, *, files: int = 1, columns: ColumnsSpec = COLUMNS
) -> DataSpec:
    """Write the rows as `files` files of one kind; return their spec."""
    folder.mkdir(exist_ok=True)
    table, name = rows if isinstance(rows, pa.Table) else as_table(rows), FORMATS[ending]
    bounds = [number * len(table) // files for number in range(files + 1)]
    for number, (first, end) in enumerate(pairwise(bounds)):
        part, path = table.slice(first, end - first), folder / f"part-{number:03d}.{ending}"
        if name not in {"CSV", "TSV"}:
            _write_batches(part, path, name)
            continue
        text = text_of(part, "," if name == "CSV" else "\t")
        if ending.endswith("gz"):
            text = gzip.compress(text)
        path.write_bytes(pa.compress(text, "zstd", asbytes=True) if ending.endswith("zst") else text)
    lists = name in {"CSV", "TSV"} and any(pa.types.is_list(kind) for kind in table.schema.types)
    return replace(spec(name, f"{folder}/"), columns=replace(columns, separator="|" if lists else None))


def _write_batches(table: pa.Table, path: Path, name: str) -> None:
    """Write about three row groups, record batches or stripes, or an object a line without absent cells."""
    rows = max(1, len(table) // 3)
    if name == "Parquet":
        pq.write_table(table, path, row_group_size=rows)
    elif name == "Arrow":
        feather.write_feather(table, path, chunksize=rows)
    elif name == "ORC":
        orc.write_table(table, path, stripe_size=1 << 16, batch_size=64)
    else:
        # As Spark writes them, but for the first object, which has all keys.
        present = (
            {key: cell for key, cell in row.items() if cell is not None or not number}
            for number, row in enumerate(table.to_pylist())
        )
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in present), "utf-8")


def spec(name: str, uri: str) -> DataSpec:
    data = DataSpec("Parquet", uri, 1, None, 8, 1, 0, columns=COLUMNS)
    return replace(data, format=name)  # type: ignore[arg-type]


def read(data: DataSpec, tables: Sequence[TableSpec] = TABLES) -> Dataset:
    return open_dataset(data, model_of(tables), FILES)


def model_of(tables: Sequence[TableSpec]) -> ModelSpec:
    """A model over these tables."""
    return ModelSpec(4, (4,), (1,), tuple(tables), OptimizerSpec("SGD", 0.1), SparseOptimizerSpec("SGD", 0.1))


def read_through(data: DataSpec, block_bytes: int) -> tuple[int, int]:
    """Read an epoch in blocks of about `block_bytes`; return its samples, and the maximum of rows in memory."""
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
        patch.setattr("cpr_trainer.data.text.BLOCK_BYTES", block_bytes)
        patch.setattr("cpr_trainer.data.reader.decode", decode_and_count)
        dataset = read(data)
        order = BatchOrder.of(data, dataset.layout)
        with closing(Loader(dataset, order, rank=0, trainers=1, first_step=1)) as batches:
            seen = sum(len(batch) for _, batch in batches)
    return seen, most


def everything(dataset: Dataset) -> Batch:
    return dataset.take(np.arange(dataset.layout.rows))


def assert_same(one: Batch, other: Batch) -> None:
    assert np.array_equal(one.dense, other.dense)
    assert np.array_equal(single_ids(one), single_ids(other))
    assert np.array_equal(one.labels, other.labels)
