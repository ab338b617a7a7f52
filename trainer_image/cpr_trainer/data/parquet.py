"""Tables as Parquet. A row group is a block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from cpr_trainer.data.blocks import Block, Files, Index, Parsed, SourceFile, unreadable
from cpr_trainer.data.columns import Columns, check_names
from cpr_trainer.data.open_files import OpenFiles
from cpr_trainer.errors import DataError

_REMEDY = "It must be a whole Parquet file; write it anew."


class ParquetFormat:
    """Reads row groups: the columns in use, or all of them."""

    def __init__(self, files: Files, columns: Columns | None) -> None:
        self._files = files
        self._columns = columns
        self._wanted = None if columns is None else list(columns.used)
        # pyarrow cannot read the values of lists as dictionaries.
        texts = [] if columns is None else [each.column for each in columns.inputs if not each.has_bags]
        self._open = OpenFiles(lambda file: _OpenTable(files.open(file.uri, file.version), texts))

    def index(self, uri: str) -> Index:
        """Read a file's footer. Raises DataError."""
        file = SourceFile(uri, self._files.version(uri))
        with self._files.open(uri, file.version) as stream:
            try:
                table = pq.ParquetFile(stream)
            except (pa.ArrowInvalid, OSError) as error:
                raise unreadable(uri, error, _REMEDY) from error
            if self._columns is not None:
                check_names(self._columns, table.schema_arrow.names, uri)
                _check_numbers(self._columns, table.schema_arrow, uri)
                for each in self._columns.inputs:
                    _check_category(each.column, table.schema_arrow.field(each.column).type, uri, bag=each.has_bags)
            blocks, first = [], 0
            for number in range(table.num_row_groups):
                group = table.metadata.row_group(number)
                if group.num_rows:
                    blocks.append(Block(file, first, group.num_rows, number, group.total_byte_size))
                first += group.num_rows
            return Index(file, tuple(blocks), in_turn=False)

    def fetch(self, block: Block) -> Any:
        """Read a row group as a pyarrow table. Raises DataError."""
        try:
            with self._open.reading(block.file) as table:
                return table.read(block.start, self._wanted)
        except (pa.ArrowInvalid, OSError) as error:
            raise unreadable(block.uri, error, _REMEDY) from error

    def parse(self, block: Block, fetched: Any) -> Parsed:
        """Check that a row group is the one that was indexed. Raises DataError."""
        if fetched.num_rows != block.rows:
            raise DataError(f"{block.uri} has changed since it was opened.", "Files must not change while they train.")
        return Parsed(fetched, {})

    def place(self, block: Block, row: int) -> str:
        """Name a row, from 1."""
        return f"{block.uri}, row {block.first + row + 1}"


class _OpenTable:
    """A Parquet file, open; its footer is parsed once."""

    def __init__(self, stream: BinaryIO, texts: Sequence[str]) -> None:
        self._stream = stream
        self._file = pq.ParquetFile(stream, read_dictionary=list(texts), pre_buffer=True)

    def read(self, group: int, columns: list[str] | None) -> Any:
        """Return some columns of a row group, or all, as a pyarrow table."""
        return self._file.read_row_group(group, columns=columns)

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


def _check_numbers(columns: Columns, schema: Any, uri: str) -> None:
    """Raise DataError for a column whose values are no single numbers, or no lists of weights, where they have to."""
    for name in columns.numeric:
        if not _is_number(kind := schema.field(name).type):
            raise DataError(f"{uri}: column {name} is {kind}, not a number.", "Correct data.columns.")
    for name in columns.weights:
        if not (_is_list(kind := schema.field(name).type) and _is_number(kind.value_type)):
            raise DataError(f"{uri}: column {name} is {kind}, not a list of numbers.", "Correct model.features.")


def _check_category(name: str, kind: Any, uri: str, *, bag: bool) -> None:
    """Raise DataError for a category that is no text and no integer, or no list of them where it has to be one."""
    if bag and not (_is_list(kind) and _is_category(kind.value_type)):
        raise DataError(
            f"{uri}: column {name} is {kind}, not a list of texts or integers.",
            "Correct data.columns, or remove the pooling of the table that it feeds: that is for lists.",
        )
    if not bag and not _is_category(kind):
        raise DataError(
            f"{uri}: column {name} is {kind}, not text or an integer.",
            "Correct data.columns: a category is one text or integer a sample; lists need a table with a pooling.",
        )


def _is_list(kind: Any) -> bool:
    types = pa.types
    return any((types.is_list(kind), types.is_large_list(kind), types.is_fixed_size_list(kind)))


def _is_number(kind: Any) -> bool:
    types = pa.types
    return any((types.is_integer(kind), types.is_floating(kind), types.is_boolean(kind), types.is_decimal(kind)))


def _is_category(kind: Any) -> bool:
    types = pa.types
    if types.is_dictionary(kind):
        return _is_category(kind.value_type)
    texts = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return types.is_integer(kind) or types.is_boolean(kind) or any(is_text(kind) for is_text in texts)
