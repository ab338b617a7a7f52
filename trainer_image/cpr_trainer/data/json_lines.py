"""Reads tables in JSON lines, plain or packed: a line is an object, and its keys are columns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.json

from cpr_trainer.data.arrow_types import normalized
from cpr_trainer.data.files import Block, Index, Parsed, SourceFile
from cpr_trainer.data.folder_keys import keys_of, with_key_names
from cpr_trainer.data.schema import check_columns, is_list
from cpr_trainer.data.text import LineFormat

_BOM = b"\xef\xbb\xbf"


class JsonLinesFormat(LineFormat):
    """Reads objects by pyarrow, which finds the types of a block's columns; an absent key is a null."""

    own = "JSON"

    def read_head(self, chunk: bytes, uri: str) -> tuple[tuple[str, ...], int]:  # noqa: ARG002 -- see `check`
        """Return the keys of the first block. Other blocks, and other files, may have more."""
        head = len(_BOM) if chunk.startswith(_BOM) else 0
        return tuple(self._objects(chunk[head:], {}).column_names), head

    def read_table(self, data: bytes, file: SourceFile, ragged: dict[int, str]) -> Any:
        table = self._objects(data, ragged)
        names = self._columns.used if self._columns else dict.fromkeys((*file.columns, *table.column_names))
        own = [name for name in names if name in file.columns or name not in keys_of(file.uri)]
        absent = pa.nulls(table.num_rows)
        return pa.table({name: table[name] if name in table.column_names else absent for name in own})

    def check(self, indices: Sequence[Index]) -> None:
        """Raise DataError for a column that the first block of no file has."""
        known = dict.fromkeys(name for index in indices for name in with_key_names(index.file.columns, index.file.uri))
        check_columns(self._columns, tuple(known), indices[0].file.uri if len(indices) == 1 else "The data")

    def parse(self, block: Block, fetched: bytes) -> Parsed:
        """Check the types of a block, too."""
        parsed = super().parse(block, fetched)
        table = normalized(parsed.table, self._columns)
        check_columns(self._columns, table.column_names, self.location(block, 0), table.schema)
        return Parsed(table, parsed.ragged)

    @staticmethod
    def _objects(data: bytes, ragged: dict[int, str]) -> Any:
        """Return the objects as a table with all of their keys; note other lines."""
        lines = data.split(b"\n")
        if not lines[-1]:
            lines.pop()
        try:
            if (table := _parsed(data)).num_rows == len(lines):
                return table
        except pa.ArrowInvalid:
            pass  # A line that is no object is the most usual cause: read again, without them.
        ragged |= {row: "it is no JSON object" for row, line in enumerate(lines) if not _is_object(line)}
        return _parsed(b"\n".join(line for row, line in enumerate(lines) if row not in ragged))


def _parsed(data: bytes) -> Any:
    """Return the objects in the types that pyarrow infers, but texts that look like times are texts."""
    if not data:
        return pa.table({})
    # One block: then a column has one type.
    options = pa.json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    table = pa.json.read_json(pa.BufferReader(data), options)
    of_times = [field for field in table.schema if _without_times(field.type) != field.type]
    if not of_times:
        return table
    schema = pa.schema([field.with_type(_without_times(field.type)) for field in of_times])
    return pa.json.read_json(pa.BufferReader(data), options, pa.json.ParseOptions(explicit_schema=schema))


def _without_times(kind: Any) -> Any:
    if is_list(kind):
        return pa.list_(_without_times(kind.value_type))
    return pa.string() if pa.types.is_timestamp(kind) else kind


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
