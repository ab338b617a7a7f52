"""Tables of Delta Lake and Iceberg in a folder, and their rows as training reads them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

from cpr_contract.codec import from_json, to_json
from cpr_contract.pinned_data import DataManifest
from cpr_contract.spec import DataFormat, DataSpec
from cpr_trainer.data.files import Block
from cpr_trainer.data.open import format_of, index_data, indices_of_manifest, manifest_of_indices
from cpr_trainer.store import Uris
from support.table_data import FILES, spec


def of_table(form: DataFormat, uri: Path | str, version: int | None = None) -> DataSpec:
    """Return the data of a table, or of one of its versions."""
    return replace(spec(form, str(uri)), version=version)


def pinned(data: DataSpec, files: Uris = FILES) -> DataManifest:
    """Return the pin of a table's present files, as it is read from a store."""
    indices = index_data(data, format_of(data, None, files), files)
    return from_json(DataManifest, to_json(manifest_of_indices("uid", data.uri or "", indices)))


def rows_of(data: DataSpec, files: Uris = FILES, pin: DataManifest | None = None) -> list[dict[str, Any]]:
    """Return the rows of a table in the order of training, all columns of it, by its pin alone."""
    form = format_of(data, None, files)  # another one than that which found the files
    blocks: list[Block] = [block for index in indices_of_manifest(pin or pinned(data, files)) for block in index.blocks]
    return [row for block in blocks for row in form.parse(block, form.fetch(block)).table.to_pylist()]


def by_key(rows: list[dict[str, Any]], key: str = "key") -> list[dict[str, Any]]:
    """Return rows in the order of their keys: libraries return them in any order."""
    return sorted(rows, key=lambda row: row[key])


@contextmanager
def iceberg_catalog(folder: Path) -> Iterator[SqlCatalog]:
    """Yield a catalog in memory with the namespace `lake`, whose tables are in a folder."""
    catalog = SqlCatalog("test", uri="sqlite:///:memory:", warehouse=folder.as_uri())
    catalog.create_namespace("lake")
    try:
        yield catalog
    finally:
        catalog.close()


def clicks_of(first: int, count: int = 3) -> pa.Table:
    """Return rows with the keys from `first` on, and a partition column for each type."""
    keys = range(first, first + count)
    return pa.table(
        {
            "key": pa.array(keys, pa.int64()),
            "click": pa.array([key % 2 for key in keys], pa.int32()),
            "user": pa.array([None if key % 3 == 2 else f"u{key}" for key in keys], pa.string()),
            "tags": pa.array([[f"t{key}", "x"] if key % 2 else [] for key in keys], pa.list_(pa.string())),
        }
    )
