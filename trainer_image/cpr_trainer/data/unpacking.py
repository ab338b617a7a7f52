"""Text files as unpacked bytes: gzip and zstd are told by their first bytes, not by a name."""

from __future__ import annotations

import io
from collections.abc import Iterator
from types import TracebackType
from typing import Any, BinaryIO, Self

import pyarrow as pa

from cpr_trainer.data.blocks import unreadable
from cpr_trainer.errors import DataError

#: About 35 000 lines of Criteo: large enough for numpy, small enough for a processor's cache. Bounds a line's length.
BLOCK_BYTES = 8 * 2**20
REMEDY = "It must be plain, gzip or zstd text of lines under 8 MiB; write it anew."
_CODECS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}


class Text:
    """One file, read from any place; in a packed one only the way forward is cheap. To be closed."""

    def __init__(self, stream: BinaryIO, uri: str) -> None:
        self._stream = stream
        self._uri = uri
        head = stream.read(4)
        self._codec = next((codec for magic, codec in _CODECS.items() if head.startswith(magic)), None)
        self._position = 0
        self._source: Any = None
        self._rewind()

    @property
    def packed(self) -> bool:
        """Whether it is compressed."""
        return self._codec is not None

    def read(self, start: int, size: int) -> bytes:
        """Return the bytes from `start`: `size` of them, or up to the end. Raises DataError for a damaged file."""
        try:
            return self._read_at(start, size)
        except (pa.ArrowInvalid, OSError) as error:
            raise unreadable(self._uri, error, REMEDY) from error

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
            raise DataError(f"{uri} has a line of more than {BLOCK_BYTES} bytes.", REMEDY)
        if end:
            yield start, data[:end]
        start, rest = start + end, data[end:]
    if rest:
        yield start, rest
