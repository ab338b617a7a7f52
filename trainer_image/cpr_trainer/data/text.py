"""Reads tables in text: the Criteo layout, TSV and CSV, plain or packed. A line is a row."""

from __future__ import annotations

import io
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any, BinaryIO, Literal

import pyarrow as pa
import pyarrow.csv

from cpr_trainer.data.dialect import Dialect
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
from cpr_trainer.data.folder_keys import with_key_names, with_keys
from cpr_trainer.data.schema import Columns, check_columns
from cpr_trainer.errors import DataError
from cpr_trainer.store import Uris

#: About 35 000 lines of Criteo: large enough for numpy, small enough for a processor's cache. Bounds a line's length.
BLOCK_BYTES = 8 * 2**20
REMEDY = "It must be plain, gzip, bzip2 or zstd text of lines under 8 MiB; write it again."
_LINE_ENDS = "Write its lines with line feeds (tr '\\r' '\\n')."
#: By a file's first bytes, not its name. zstd may begin with a skippable frame.
_CODECS = (
    (re.compile(rb"\x1f\x8b"), "gzip"),
    (re.compile(rb"BZh[1-9]1AY&SY"), "bz2"),
    (re.compile(rb"(?s:\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18)"), "zstd"),
)
#: Every byte beyond ASCII becomes a question mark, so that lines and cells stay where they are.
_ASCII = bytes(byte if byte < 128 else ord("?") for byte in range(256))  # noqa: PLR2004 -- ASCII ends there


class LineFormat(ABC):
    """Reads text in blocks of whole lines; a subclass parses them. `own`: its name among other formats of files."""

    own: str | None = None
    #: Lines before the first row.
    header_lines = 0

    def __init__(self, files: Uris, columns: Columns | None) -> None:
        self._files = files
        self._columns = columns
        self._open = OpenFiles(lambda file: Text(files.open(file.uri, file.version), file.uri, self.own))

    @abstractmethod
    def read_head(self, chunk: bytes, uri: str) -> tuple[tuple[str, ...], int]:
        """Return the names of a file's columns, by its first lines, and the size of its header in bytes."""

    @abstractmethod
    def read_table(self, data: bytes, file: SourceFile, ragged: dict[int, str]) -> Any:
        """Return whole lines as a pyarrow table; note those that are no rows in `ragged`."""

    def index(self, uri: str) -> Index:
        """Read a file once to find the ends of its lines. Raises DataError."""
        file, blocks, first = SourceFile(uri, self._files.version(uri)), [], 0
        with content_errors(uri, REMEDY), closing(Text(self._files.open(uri, file.version), uri, self.own)) as text:
            for start, chunk in line_chunks(text, uri):
                head = 0
                if not start:
                    names, head = self.read_head(chunk, uri)
                    file = replace(file, columns=names)
                rows = chunk.count(b"\n", head) + (len(chunk) > head and not chunk.endswith(b"\n"))
                if rows:
                    blocks.append(Block(file, first, rows, start + head, len(chunk) - head))
                first += rows
            return Index(file, tuple(blocks), text.packed)

    def fetch(self, block: Block) -> bytes:
        with content_errors(block.uri, REMEDY), self._open.use(block.file) as text:
            return text.read(block.start, block.size)

    def parse(self, block: Block, fetched: bytes) -> Parsed:
        ragged: dict[int, str] = {}
        with content_errors(block.uri, REMEDY):
            table = with_keys(self.read_table(fetched, block.file, ragged), block.uri, self._columns)
        if table.num_rows + len(ragged) != block.rows:
            raise DataError(
                f"{block.uri} has {block.rows} lines where {table.num_rows + len(ragged)} rows are read.",
                "A row must be one line, without line breaks in quotes or behind an escape, and files must not change.",
            )
        return Parsed(table, ragged)

    def location(self, block: Block, row: int) -> str:
        """Return the number of a row's line, from 1."""
        return f"{block.uri}, line {block.first + row + 1 + self.header_lines}"


class TextFormat(LineFormat):
    """Reads tables in text, parsed by pyarrow: the columns in use, or all of them.

    Every cell keeps the bytes of the file, unless the dialect has others; categories come as dictionaries.
    """

    def __init__(self, files: Uris, dialect: Dialect, columns: Columns | None) -> None:
        super().__init__(files, columns)
        self._dialect = dialect
        self.header_lines = int(dialect.header)

    def read_head(self, chunk: bytes, uri: str) -> tuple[tuple[str, ...], int]:
        dialect = self._dialect
        cells = dialect.names(first_line(chunk, uri))
        names = cells if dialect.header else [str(1 + place) for place in range(dialect.columns or len(cells))]
        check_columns(self._columns, with_key_names(names, uri), uri)
        return tuple(names), (chunk.find(b"\n") + 1 or len(chunk)) if dialect.header else 0

    def read_table(self, data: bytes, file: SourceFile, ragged: dict[int, str]) -> Any:
        def note(row: Any) -> Literal["skip"]:
            ragged[row.number - 1] = f"it has {row.actual_columns} columns instead of {row.expected_columns}"
            return "skip"

        try:
            return self._read(data, file.columns)
        except pa.ArrowInvalid:
            pass  # Ragged lines are the most usual cause: read again, without them.
        # pyarrow decodes a ragged line for `note`, and raises if it is not UTF-8.
        self._read(data.translate(_ASCII), file.columns, note)
        lines = enumerate(data.split(b"\n"))
        plain = (line.translate(_ASCII) if row in ragged else line for row, line in lines)
        return self._read(b"\n".join(plain), file.columns, note)

    def _read(
        self,
        data: bytes,
        columns: tuple[str, ...],
        on_ragged: Callable[[Any], Literal["skip"]] | None = None,
    ) -> Any:
        """Parse whole lines. Raises ArrowInvalid, also for a ragged line without `on_ragged`."""
        dialect, names = self._dialect, list(columns)
        data = dialect.rewritten(data)
        included = names if self._columns is None else [name for name in self._columns.used if name in columns]
        kinds = dict.fromkeys(included, pa.dictionary(pa.int32(), pa.binary()))
        numeric = self._columns.numeric if self._columns else ()
        kinds |= dict.fromkeys(numeric, pa.binary())
        table = pa.csv.read_csv(
            pa.py_buffer(data),
            # One thread: only then are lines numbered. Blocks are parsed in parallel.
            pa.csv.ReadOptions(use_threads=False, block_size=len(data), column_names=names),
            pa.csv.ParseOptions(ignore_empty_lines=False, invalid_row_handler=on_ragged, **dialect.parsing),
            pa.csv.ConvertOptions(column_types=kinds, include_columns=included, strings_can_be_null=False),
        )
        return dialect.cells(table, numeric)


class Text:
    """One file as unpacked bytes, read from any position; in a packed one only reading forward is cheap."""

    def __init__(self, stream: BinaryIO, uri: str, own: str | None = None) -> None:
        """Raises DataError if the file, or its unpacked content, is of another format than text or `own`."""
        self._stream = stream
        self._uri = uri
        self._position = 0
        self._source: Any = None
        with closed_on_error(stream):
            head = stream.read(HEAD_BYTES)
            check_head(head, uri, own)
            self._codec = next((codec for magic, codec in _CODECS if magic.match(head)), None)
            self._rewind()
            if self._codec is not None:
                check_head(self.read(0, HEAD_BYTES), uri, own)

    @property
    def packed(self) -> bool:
        """True if the file is compressed."""
        return self._codec is not None

    def read(self, start: int, size: int) -> bytes:
        """Return the bytes from `start`: `size` of them, or up to the end. Raises DataError for a damaged file."""
        with content_errors(self._uri, REMEDY):
            if self._codec is None and start != self._position:
                self._stream.seek(start)
                self._position = start
            if start < self._position:
                self._rewind()
            while self._position < start:
                if not self._read(min(start - self._position, BLOCK_BYTES)):
                    return b""
            return self._read(size)

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def _read(self, size: int) -> bytes:
        pieces, left = [], size
        while left and (piece := bytes(self._source.read(left))):  # A source may return less than is requested.
            pieces.append(piece)
            left -= len(piece)
        self._position += size - left
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _rewind(self) -> None:
        self._stream.seek(0)
        self._position = 0
        self._source = self._stream
        if self._codec is not None:
            self._source = pa.CompressedInputStream(pa.PythonFile(_Unclosed(self._stream), mode="r"), self._codec)


class _Unclosed(io.RawIOBase):
    """A file for one decompressor, which closes its source at its end: the next decompressor reads the file, too."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self._stream = stream

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._stream.read(size)


def line_chunks(text: Text, uri: str) -> Iterator[tuple[int, bytes]]:
    """Cut a text at ends of lines: yield chunks of up to about `BLOCK_BYTES`, each with its position.

    Raises DataError for a line longer than that.
    """
    start, partial = 0, b""
    while read := text.read(start + len(partial), BLOCK_BYTES):
        data = partial + read
        end = data.rfind(b"\n") + 1
        if not end and len(data) > BLOCK_BYTES:
            raise DataError(
                f"{uri} has a line of more than {BLOCK_BYTES} bytes.", _LINE_ENDS if b"\r" in data else REMEDY
            )
        if end:
            yield start, data[:end]
        start, partial = start + end, data[end:]
    if partial:
        yield start, partial


def first_line(text: bytes, uri: str) -> str:
    """Return the first line of a text without its end. Raises DataError if lines end in a carriage return alone."""
    line = text.partition(b"\n")[0].removesuffix(b"\r")
    if b"\r" in line:
        raise DataError(f"{uri} has lines that end in a carriage return alone.", _LINE_ENDS)
    return line.decode("utf-8-sig", "replace")
