"""From a binary stream to blocks of raw columns: decompression and pyarrow's streaming parser."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Literal

import pyarrow as pa
import pyarrow.csv

from cpr_contract.spec import CATEGORICAL_FEATURES, DENSE_FEATURES
from cpr_trainer.data.bad_lines import RaggedRow
from cpr_trainer.errors import DataError

LABEL = "label"
INTEGERS = tuple(f"integer {number}" for number in range(1, DENSE_FEATURES + 1))
CATEGORIES = tuple(f"category {number}" for number in range(1, CATEGORICAL_FEATURES + 1))
COLUMNS = (LABEL, *INTEGERS, *CATEGORIES)

#: About 35 000 lines of Criteo: large enough for numpy, small enough for a processor's cache. Bounds a line's length.
BLOCK_BYTES = 8 * 2**20
_GZIP_MAGIC = b"\x1f\x8b"


def raw_blocks(
    stream: BinaryIO, name: str, columns: list[str], ragged: Callable[[RaggedRow], Literal["skip", "error"]]
) -> Iterator[Any]:
    """Yield pyarrow record batches of `columns` as binary, in file order; lines of another width go to `ragged`.

    Every cell stays the bytes that stand in the file. An empty line is a row of empty cells. Raises DataError for an
    empty file, damaged or truncated gzip, a line longer than a block, and where `ragged` answers "error".
    """
    try:
        yield from pa.csv.open_csv(
            _decompressed(stream),
            # One thread: only then are ragged lines numbered, and blocks the same in every run.
            read_options=pa.csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES, column_names=list(COLUMNS)),
            parse_options=pa.csv.ParseOptions(
                delimiter="\t", quote_char=False, ignore_empty_lines=False, invalid_row_handler=ragged
            ),
            convert_options=pa.csv.ConvertOptions(
                column_types=dict.fromkeys(columns, pa.binary()), include_columns=columns, strings_can_be_null=False
            ),
        )
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # The source failed, not its content: pyarrow's own errors carry no number.
        raise DataError(
            f"{name} cannot be read to its end: {error}.",
            f"It must be plain or gzip text, not empty, of lines under {BLOCK_BYTES >> 20} MiB; write it anew.",
        ) from error


def _decompressed(stream: BinaryIO) -> Any:
    """Return what pyarrow reads from: gzip is told by its first bytes, not by a name."""
    head = stream.read(len(_GZIP_MAGIC))
    whole = pa.PythonFile(io.BufferedReader(_Rejoined(head, stream)), mode="r")
    return pa.CompressedInputStream(whole, "gzip") if head == _GZIP_MAGIC else whole


class _Rejoined(io.RawIOBase):
    """`head`, then what is left of `stream`: a response from a store can't seek back."""

    def __init__(self, head: bytes, stream: BinaryIO) -> None:
        self._head = head
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        chunk, self._head = self._head, b""
        chunk = chunk or self._stream.read(len(buffer))
        buffer[: len(chunk)] = chunk
        return len(chunk)
