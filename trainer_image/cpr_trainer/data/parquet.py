"""Tables as Parquet. A row group is a block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from cpr_trainer.data.arrow_types import check_types
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
                check_types(self._columns, table.schema_arrow, uri)
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
