"""Reads tables in Parquet. A row group is a block."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from cpr_trainer.data.arrow_types import normalized, normalized_schema
from cpr_trainer.data.files import (
    HEAD_BYTES,
    Block,
    Index,
    OpenFiles,
    Parsed,
    SourceFile,
    check_head,
    closed_on_error,
    content_errors,
    is_outage,
)
from cpr_trainer.data.folder_keys import with_key_fields, with_keys
from cpr_trainer.data.schema import Columns, check_columns
from cpr_trainer.data.table_columns import sources_of, with_constants, with_table_names
from cpr_trainer.errors import DataError
from cpr_trainer.store import Uris

_REMEDY = "It must be a whole Parquet file, with columns of types that pyarrow reads; write it again."
_ARROW_TYPES = b"ARROW:schema"


class ParquetFormat:
    """Reads row groups: the columns in use, or all of them."""

    def __init__(self, files: Uris, columns: Columns | None) -> None:
        self._files = files
        self._columns = columns
        self._names = None if columns is None else list(columns.used)
        # pyarrow cannot read the values of lists as dictionaries.
        texts = [] if columns is None else [each.column for each in columns.inputs if not each.has_bags]
        self._open = OpenFiles(lambda file: _OpenTable(files.open(file.uri, file.version), file, texts))

    def index(self, uri: str) -> Index:
        return self.index_file(SourceFile(uri, self._files.version(uri)))

    def index_file(self, file: SourceFile) -> Index:
        """Read a file's footer. Raises DataError."""
        uri = file.uri
        with self._files.open(uri, file.version) as stream, content_errors(uri, _REMEDY):
            table = _open(stream, uri)
            found = self._schema(table.schema_arrow, file)
            check_columns(self._columns, found.names, uri, found)
            blocks, first = [], 0
            for number in range(table.num_row_groups):
                group = table.metadata.row_group(number)
                if group.num_rows:
                    blocks.append(Block(file, first, group.num_rows, number, group.total_byte_size))
                first += group.num_rows
            return Index(file, tuple(blocks), sequential=False)

    def fetch(self, block: Block) -> Any:
        with content_errors(block.uri, _REMEDY), self._open.use(block.file) as table:
            return table.read(block.start, self._names)

    def parse(self, block: Block, fetched: Any) -> Parsed:
        """Check that a row group is the one that was indexed. Raises DataError."""
        if fetched.num_rows != block.rows:
            raise DataError(f"{block.uri} has changed since it was opened.", "Files must not change while they train.")
        with content_errors(block.uri, _REMEDY):
            return Parsed(self._completed(fetched, block.file), {})

    def _schema(self, schema: pa.Schema, file: SourceFile) -> pa.Schema:
        """Return the schema of the tables that `parse` returns for a file with this one."""
        if file.table is None:
            return with_key_fields(normalized_schema(schema, self._columns), file.uri, self._columns)
        return self._completed(with_table_names(schema.empty_table(), sources_of(schema, file)), file).schema

    def _completed(self, read: Any, file: SourceFile) -> Any:
        """Return the columns that a file has, in plain types, and those that its table or its folders have for it."""
        if file.table is not None:
            return normalized(with_constants(read, file, self._columns), self._columns)
        return with_keys(normalized(read, self._columns), file.uri, self._columns)

    def location(self, block: Block, row: int) -> str:
        return f"{block.uri}, row {block.first + row + 1}"


class _OpenTable:
    """An open Parquet file; its footer is parsed once. Columns of `texts` come as dictionaries if possible."""

    def __init__(self, stream: BinaryIO, file: SourceFile, texts: Sequence[str]) -> None:
        self._stream = stream
        self._coded = True
        with closed_on_error(stream):
            opened = _open(stream, file.uri)
            self._sources = None if file.table is None else sources_of(opened.schema_arrow, file)
            if self._sources is not None:
                texts = [self._sources[name] for name in texts if name in self._sources]
            coded = [name for name in opened.schema_arrow.names if name in texts]
            self._file = pq.ParquetFile(stream, metadata=opened.metadata, read_dictionary=coded, pre_buffer=True)

    def read(self, group: int, columns: list[str] | None) -> Any:
        """Return some columns of a row group, or all, as a pyarrow table."""
        if self._sources is None:
            return self._read(group, columns)
        sources = {name: source for name, source in self._sources.items() if columns is None or name in columns}
        return with_table_names(self._read(group, list(sources.values())), sources)

    def _read(self, group: int, columns: list[str] | None) -> Any:
        try:
            return self._file.read_row_group(group, columns=columns)
        except (pa.ArrowException, OSError) as error:
            if is_outage(error) or not self._coded:
                raise
        # pyarrow cannot read differences of texts (DELTA_BYTE_ARRAY) as dictionaries, though a writer may declare them.
        self._coded = False
        self._file = pq.ParquetFile(self._stream, metadata=_plain_metadata(self._stream), pre_buffer=True)
        return self._file.read_row_group(group, columns=columns)

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


def _open(stream: BinaryIO, uri: str) -> pq.ParquetFile:
    """Open a file. If pyarrow lacks an Arrow type of its footer, all these types are ignored: it may be of no use here.

    Raises DataError for a file of another format, and what pyarrow raises.
    """
    try:
        return pq.ParquetFile(stream)
    except pa.ArrowNotImplementedError:
        return pq.ParquetFile(stream, metadata=_plain_metadata(stream))
    except pa.ArrowInvalid:
        stream.seek(0)
        if not (head := stream.read(HEAD_BYTES)).startswith(b"PAR1"):
            check_head(head, uri)
        raise


def _plain_metadata(stream: BinaryIO) -> Any:
    """Return the metadata of a file without the Arrow types that its writer added to those of Parquet."""
    end = stream.seek(-8, io.SEEK_END)
    size = int.from_bytes(stream.read(4), "little")
    stream.seek(end - size)
    footer = stream.read(size + 8).replace(_ARROW_TYPES, bytes(reversed(_ARROW_TYPES)))
    return pq.read_metadata(io.BytesIO(b"PAR1" + footer))
