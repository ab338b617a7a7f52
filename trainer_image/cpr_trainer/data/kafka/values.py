"""Decodes values of messages to rows: a JSON object is a row, and a stream of Arrow IPC has any number of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa

from cpr_trainer.data.arrow_types import normalized
from cpr_trainer.data.files import Block, Parsed, content_errors
from cpr_trainer.data.json_lines import JsonLinesFormat
from cpr_trainer.data.schema import Columns, check_columns
from cpr_trainer.errors import printable
from cpr_trainer.store import Uris

#: Blanks outside of texts, which have escapes for both.
_ONE_LINE = bytes.maketrans(b"\n\r", b"  ")
#: Serializers of a schema registry write a zero byte and the number of the schema before a value.
_REGISTRY, _REGISTRY_BYTES = b"\0", 5
_REMEDY = "Messages of one topic must have the same types in columns of the same name."


class Values(Protocol):
    """Decodes values. A damaged one is one bad row. Safe to use from several threads."""

    def rows_of(self, value: bytes) -> int:
        """Return the number of rows of a value."""

    def parse(self, block: Block, values: Sequence[bytes]) -> Parsed:
        """Return the rows of the values of a block. Raises DataError."""


class JsonValues:
    """One JSON object a value, with or without the prefix of a schema registry."""

    def __init__(self, files: Uris, columns: Columns | None) -> None:
        self._lines = JsonLinesFormat(files, columns)

    def rows_of(self, value: bytes) -> int:  # noqa: ARG002 -- see Values
        """Return 1."""
        return 1

    def parse(self, block: Block, values: Sequence[bytes]) -> Parsed:
        """Parse all values at once, as lines."""
        objects = (each[_REGISTRY_BYTES:] if each.startswith(_REGISTRY) else each for each in values)
        return self._lines.parse(block, b"".join(each.translate(_ONE_LINE) + b"\n" for each in objects))


class ArrowValues:
    """One stream of Arrow IPC a value. Columns that a message lacks are nulls."""

    def __init__(self, columns: Columns | None) -> None:
        self._columns = columns

    def rows_of(self, value: bytes) -> int:
        """Return the rows of all record batches."""
        try:
            return int(self._read(value).num_rows)
        except (pa.ArrowException, OSError):
            return 1

    def parse(self, block: Block, values: Sequence[bytes]) -> Parsed:
        """Join the tables of all values."""
        tables: list[Any] = []
        ragged: dict[int, str] = {}
        rows = 0
        for value in values:
            try:
                tables.append(self._read(value))
                rows += tables[-1].num_rows
            except (pa.ArrowException, OSError) as error:
                ragged[rows] = f"it is no stream of Arrow IPC ({printable(str(error))})"
                rows += 1
        with content_errors(block.uri, _REMEDY):
            table = pa.concat_tables(tables, promote_options="permissive").unify_dictionaries() if tables else None
            if table is None:
                names = () if self._columns is None else self._columns.used
                table = pa.table({name: pa.nulls(0) for name in names})
            table = normalized(table.combine_chunks(), self._columns)
        if tables:
            check_columns(self._columns, table.column_names, block.uri, table.schema)
        return Parsed(table, ragged)

    def _read(self, value: bytes) -> Any:
        table = pa.ipc.open_stream(value).read_all()
        if self._columns is None:
            return table
        return table.select([name for name in self._columns.used if name in table.column_names])
