"""Columns from the names of folders: each file below `date=2026-01-01/` has a column `date`, as Hive writes tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from cpr_trainer.data.schema import Columns
from cpr_trainer.errors import DataError

_NULL = "__HIVE_DEFAULT_PARTITION__"
_TEXT = pa.dictionary(pa.int32(), pa.binary())


@lru_cache(64)
def keys_of(uri: str) -> MappingProxyType[str, str | None]:
    """Return the value of each key in the folders of a file. Names and values have percent-encoded characters."""
    path = unquote(uri) if "://" in uri else uri
    pairs = (folder.partition("=") for folder in path.split("/")[:-1] if "=" in folder)
    values = {unquote(key): None if value == _NULL else unquote(value) for key, _, value in pairs if key}
    return MappingProxyType(values)


def with_key_names(names: Sequence[str], uri: str) -> list[str]:
    """Return the columns of a file, and the keys of its folders that are no columns of its own."""
    return [*names, *(key for key in keys_of(uri) if key not in names)]


def with_key_fields(schema: pa.Schema, uri: str, columns: Columns | None) -> pa.Schema:
    """Return a schema with the columns that `with_keys` adds. Raises DataError as that does."""
    return with_keys(schema.empty_table(), uri, columns).schema


def with_keys(table: Any, uri: str, columns: Columns | None) -> Any:
    """Return a pyarrow table with the keys of its file's folders, as far as `columns` use them (None: all).

    A column of the file stays as it is. Raises DataError for a key that is no number, and is used as one.
    """
    for key, value in keys_of(uri).items():
        if key in table.column_names or (columns is not None and key not in columns.used):
            continue
        if columns is not None and key in columns.numeric:
            column: Any = pa.repeat(pa.scalar(_number(key, value, uri), pa.float64()), table.num_rows)
        elif value is None:
            column = pa.nulls(table.num_rows, _TEXT)
        else:
            places = pa.array(np.zeros(table.num_rows, np.int32))
            column = pa.DictionaryArray.from_arrays(places, pa.array([value.encode()], pa.binary()))
        table = table.append_column(key, column)
    return table


def _number(key: str, value: str | None, uri: str) -> float | None:
    try:
        number = None if value is None else float(value)
    except ValueError:
        number = math.nan
    if number is not None and not math.isfinite(number):
        raise DataError(
            f"{uri} is in the folder {key}={value}, which is no number.",
            "Name the key in data.columns.categories, or remove it from data.columns.",
        )
    return number
