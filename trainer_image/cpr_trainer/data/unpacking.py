"""Text files as unpacked bytes. Their first bytes show how they are packed, not their name."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from types import TracebackType
from typing import Any, BinaryIO, Self

import pyarrow as pa

from cpr_trainer.data.blocks import reading
from cpr_trainer.data.open_files import closed_on_error
from cpr_trainer.errors import DataError

#: About 35 000 lines of Criteo: large enough for numpy, small enough for a processor's cache. Bounds a line's length.
BLOCK_BYTES = 8 * 2**20
REMEDY = "It must be plain, gzip, bzip2 or zstd text of lines under 8 MiB; write it anew."
LINE_ENDS = "Write its lines with line feeds (tr '\\r' '\\n')."
_CONVERT = "Convert it to UTF-8 text, plain or packed by gzip, bzip2 or zstd, or to Parquet."
_UTF_16 = "Convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)."
#: zstd may begin with a frame that is skipped.
_CODECS = (
    (re.compile(rb"\x1f\x8b"), "gzip"),
    (re.compile(rb"BZh[1-9]1AY&SY"), "bz2"),
    (re.compile(rb"(?s:\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18)"), "zstd"),
)
_OTHERS = (
    (re.compile(rb"PAR1"), "Parquet", "State data.format: Parquet."),
    (re.compile(rb"\xff\xfe|\xfe\xff|(?:[^\0]\0){4}|(?:\0[^\0]){4}"), "text in UTF-16", _UTF_16),
    (re.compile(rb"\xfd7zXZ\0"), "packed by xz", _CONVERT),
    (re.compile(rb"PK\x03\x04"), "a zip archive", _CONVERT),
    (re.compile(rb"\x04\x22\x4d\x18"), "packed by lz4", _CONVERT),
    (re.compile(rb"ARROW1"), "an Arrow IPC (Feather) file", _CONVERT),
    (re.compile(rb"ORC[^ -~]"), "an ORC file", _CONVERT),
    (re.compile(rb"Obj\x01"), "an Avro file", _CONVERT),
    (re.compile(rb'\s*\{\s*"'), "JSON", _CONVERT),
)
HEAD_BYTES = 64


def first_line(text: bytes, uri: str) -> str:
    """Return the first line of a text without its end. Raises DataError where lines end in a carriage return alone."""
    line = text.partition(b"\n")[0].removesuffix(b"\r")
    if b"\r" in line:
        raise DataError(f"{uri} has lines that end in a carriage return alone.", LINE_ENDS)
    return line.decode("utf-8-sig", "replace")


def check_head(head: bytes, uri: str) -> None:
    """Raise DataError if a file begins as one of a format that is not read as text."""
    for magic, name, remedy in _OTHERS:
        if magic.match(head):
            raise DataError(f"{uri} is {name}.", remedy)


class Text:
    """One file, read from any place; in a packed one only the way forward is cheap. To be closed."""

    def __init__(self, stream: BinaryIO, uri: str) -> None:
        self._stream = stream
        self._uri = uri
        self._position = 0
        self._source: Any = None
        with closed_on_error(stream):
            head = stream.read(HEAD_BYTES)
            check_head(head, uri)
            self._codec = next((codec for magic, codec in _CODECS if magic.match(head)), None)
            self._rewind()

    @property
    def packed(self) -> bool:
        """Whether it is compressed."""
        return self._codec is not None

    def read(self, start: int, size: int) -> bytes:
        """Return the bytes from `start`: `size` of them, or up to the end. Raises DataError for a damaged file."""
        with reading(self._uri, REMEDY):
            return self._read_at(start, size)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def _read_at(self, start: int, size: int) -> bytes:
        if self._codec is None and start != self._position:
            self._stream.seek(start)
            self._position = start
        if start < self._position:
            self._rewind()
        while self._position < start:
            if not self._read(min(start - self._position, BLOCK_BYTES)):
                return b""
        return self._read(size)

    def _read(self, size: int) -> bytes:
        pieces, left = [], size
        while left and (piece := bytes(self._source.read(left))):  # A source may give less than is asked for.
            pieces.append(piece)
            left -= len(piece)
        self._position += size - left
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _rewind(self) -> None:
        self._stream.seek(0)
        self._position = 0
        self._source = self._stream
        if self._codec is not None:
            self._source = pa.CompressedInputStream(pa.PythonFile(_Lent(self._stream), mode="r"), self._codec)


class _Lent(io.RawIOBase):
    """A file for one decompressor, which closes what it reads from when it goes: the next needs it still."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self._stream = stream

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._stream.read(size)


def pieces(text: Text, uri: str) -> Iterator[tuple[int, bytes]]:
    """Cut a text at ends of lines: yield pieces of up to about `BLOCK_BYTES`, each with the place where it starts.

    Raises DataError for a line longer than that.
    """
    start, rest = 0, b""
    while chunk := text.read(start + len(rest), BLOCK_BYTES):
        data = rest + chunk
        end = data.rfind(b"\n") + 1
        if not end and len(data) > BLOCK_BYTES:
            raise DataError(
                f"{uri} has a line of more than {BLOCK_BYTES} bytes.", LINE_ENDS if b"\r" in data else REMEDY
            )
        if end:
            yield start, data[:end]
        start, rest = start + end, data[end:]
    if rest:
        yield start, rest
