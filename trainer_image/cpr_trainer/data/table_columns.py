"""Columns of a table whose log lists its files: by field id or name in each file, or by a value that the log has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from cpr_contract.pinned_data import Constant, TableVersion
from cpr_trainer.data.files import SourceFile
from cpr_trainer.data.schema import Columns
from cpr_trainer.errors import DataError

_FIELD_ID = b"PARQUET:field_id"
_DECIMAL = re.compile(r"decimal128\((\d+), (-?\d+)\)")
#: Types of constants. Values of other types, such as dates, are their text, as in the names of folders.
_KINDS = re.compile(r"u?int(8|16|32|64)|float|double|bool|string|" + _DECIMAL.pattern)


@dataclass(frozen=True, slots=True, eq=False)
class TableSnapshot:
    """One version of a table: the URIs of its data files in their order, each with the values that the log has."""

    version: TableVersion
    files: Mapping[str, tuple[Constant, ...]]


def constants_of(column: Any, name: str) -> list[Constant]:
    """Return each value of a pyarrow array as the constant `name`. Raises ArrowInvalid for bytes that are no text."""
    kind = str(column.type) if _KINDS.fullmatch(str(column.type)) else "string"
    return [Constant(name, kind, text) for text in column.cast(pa.string()).to_pylist()]


def sources_of(schema: pa.Schema, file: SourceFile) -> dict[str, str]:
    """Return the name in the file of each column of its table, without columns that the file lacks.

    Raises DataError for a file without field ids if the table has no other way to find its columns.
    """
    assert file.table is not None, "only files of tables have such columns"
    by_id = {int(field.metadata[_FIELD_ID]): field.name for field in schema if _FIELD_ID in (field.metadata or {})}
    columns = file.table.columns
    if not by_id and any(each.field_id is not None for each in columns) and not any(each.names for each in columns):
        raise DataError(
            f"{file.uri} has no field ids, and the columns of its table are found by them.",
            "Set the table's property schema.name-mapping.default, or write the file again by a writer of the table.",
        )
    found, present = {}, frozenset(schema.names)
    for each in columns:
        if each.field_id is not None and by_id:
            source = by_id.get(each.field_id)
        else:
            source = next((name for name in each.names if name in present), None)
        if source is not None:
            found[each.name] = source
    return found


def with_table_names(table: Any, sources: Mapping[str, str]) -> Any:
    """Return the columns `sources` of a pyarrow table by their names in the table of the file."""
    return table.select(list(sources.values())).rename_columns(list(sources))


def with_constants(read: Any, file: SourceFile, columns: Columns | None) -> Any:
    """Return a pyarrow table with the columns that its file lacks, as far as `columns` use them (None: all).

    They are constants of the file, defaults of columns that were added later, or nulls without a type.
    """
    assert file.table is not None, "only files of tables have constants"
    constants, present = {each.name: each for each in file.constants}, frozenset(read.column_names)
    for each in file.table.columns:
        if each.name in present or (columns is not None and each.name not in columns.used):
            continue
        constant = constants.get(each.name, each.default)
        if constant is None:
            read = read.append_column(each.name, pa.nulls(read.num_rows))
        else:
            read = read.append_column(each.name, pa.repeat(_scalar(constant), read.num_rows))
    return read


def _scalar(constant: Constant) -> Any:
    decimal = _DECIMAL.fullmatch(constant.kind)
    kind = pa.decimal128(int(decimal[1]), int(decimal[2])) if decimal else pa.type_for_alias(constant.kind)
    return pa.scalar(constant.text, pa.string()).cast(kind)
