"""Reads tables in Arrow IPC files (Feather) and in ORC. A record batch, or a stripe, is a block."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, BinaryIO, Protocol

import pyarrow as pa
import pyarrow.orc

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
)
from cpr_trainer.data.folder_keys import with_key_fields, with_keys
from cpr_trainer.data.schema import Columns, check_columns
from cpr_trainer.store import Uris


class Batches(Protocol):
    """An open file: a number of batches of rows, each read at once."""

    schema: pa.Schema
    count: int

    def read(self, number: int) -> Any:
        """Return a record batch of the chosen columns."""


#: Opens a stream for some columns by name, None for all. Raises what pyarrow raises.
OpenBatches = Callable[[Any, Sequence[str] | None], Batches]


class BatchFormat:
    """Reads batches of rows: the columns in use, or all of them. `own` is the format's name among those of files."""

    def __init__(self, files: Uris, columns: Columns | None, open_batches: OpenBatches, own: str) -> None:
        self._files = files
        self._columns = columns
        self._open_batches = open_batches
        self._own = own
        self._remedy = f"It must be {own}, written to its end; write it again."
        self._open = OpenFiles(self._opened)

    def index(self, uri: str) -> Index:
        """Count the rows of each batch, by a column of few bytes. Raises DataError."""
        file = SourceFile(uri, self._files.version(uri))
        source = _Source(self._files.open(uri, file.version))
        with closing(source), content_errors(uri, self._remedy), source.own_errors():
            check_head(source.read(HEAD_BYTES), uri, self._own)
            schema = self._open_batches(source, None).schema
            found = with_key_fields(normalized_schema(schema, self._columns), uri, self._columns)
            check_columns(self._columns, found.names, uri, found)
            narrow = self._open_batches(source, [min(schema, key=_width).name] if schema.names else None)
            blocks, first = [], 0
            for number in range(narrow.count):
                if rows := narrow.read(number).num_rows:
                    blocks.append(Block(file, first, rows, number, 0))
                first += rows
            return Index(file, tuple(blocks), sequential=False)

    def fetch(self, block: Block) -> Any:
        with content_errors(block.uri, self._remedy), self._open.use(block.file) as opened:
            return pa.Table.from_batches([opened.read(block.start)])

    def parse(self, block: Block, fetched: Any) -> Parsed:
        with content_errors(block.uri, self._remedy):
            return Parsed(with_keys(normalized(fetched, self._columns), block.uri, self._columns), {})

    def location(self, block: Block, row: int) -> str:
        return f"{block.uri}, row {block.first + row + 1}"

    def _opened(self, file: SourceFile) -> _OpenFile:
        names = None if self._columns is None else list(self._columns.used)
        return _OpenFile(self._files.open(file.uri, file.version), self._open_batches, names)


class _OpenFile:
    """An open file; its footer is parsed once."""

    def __init__(self, stream: BinaryIO, open_batches: OpenBatches, names: Sequence[str] | None) -> None:
        self._source = _Source(stream)
        with closed_on_error(self._source), self._source.own_errors():
            self._batches = open_batches(self._source, names)

    def read(self, number: int) -> Any:
        """Return a record batch of the chosen columns. Raises what the stream raises."""
        with self._source.own_errors():
            return self._batches.read(number)

    def close(self) -> None:
        """Close the file."""
        self._source.close()


class _Source(io.RawIOBase):
    """A stream for pyarrow, whose readers of IPC and ORC report its errors as damage of the content."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self._stream = stream
        self._error: Exception | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def read(self, size: int = -1) -> bytes:
        try:
            return self._stream.read(size)
        except Exception as error:
            self._error = error
            raise

    def close(self) -> None:
        self._stream.close()
        super().close()

    @contextmanager
    def own_errors(self) -> Iterator[None]:
        """Raise an error of the stream in place of the one that a reader made of it."""
        try:
            yield
        except Exception:
            if self._error is not None:
                raise self._error from None
            raise


class ArrowBatches:
    """The record batches of an Arrow IPC file."""

    def __init__(self, stream: Any, names: Sequence[str] | None) -> None:
        reader = pa.ipc.open_file(stream)
        self.schema, self.count = reader.schema, reader.num_record_batches
        if names is not None:
            fields = [place for place, name in enumerate(self.schema.names) if name in names]
            reader = pa.ipc.open_file(stream, options=pa.ipc.IpcReadOptions(included_fields=fields))
        self._reader = reader

    def read(self, number: int) -> Any:
        """Return a record batch of the chosen columns."""
        return self._reader.get_batch(number)


class OrcBatches:
    """The stripes of an ORC file."""

    def __init__(self, stream: Any, names: Sequence[str] | None) -> None:
        self._file = pa.orc.ORCFile(stream)
        self.schema, self.count = self._file.schema, self._file.nstripes
        self._names = None if names is None else [name for name in names if name in self.schema.names]

    def read(self, number: int) -> Any:
        """Return a stripe of the chosen columns."""
        return self._file.read_stripe(number, columns=self._names)


def arrow_format(files: Uris, columns: Columns | None) -> BatchFormat:
    """Return a reader of Arrow IPC files."""
    return BatchFormat(files, columns, ArrowBatches, "an Arrow IPC (Feather) file")


def orc_format(files: Uris, columns: Columns | None) -> BatchFormat:
    """Return a reader of ORC files."""
    return BatchFormat(files, columns, OrcBatches, "an ORC file")


def _width(field: pa.Field) -> int:
    """Return the bits of a value; texts and lists come last."""
    try:
        return int(field.type.bit_width)
    except ValueError:
        return 1 << 20
