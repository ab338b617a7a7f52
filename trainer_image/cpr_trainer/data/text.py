"""Tables as text: the Criteo layout, TSV and CSV. A line is a row."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import pyarrow as pa
import pyarrow.csv

from cpr_trainer.data.blocks import Block, Files, Index, Parsed, SourceFile, reading
from cpr_trainer.data.columns import Columns, Dialect, check_names
from cpr_trainer.data.open_files import OpenFiles
from cpr_trainer.data.unpacking import REMEDY, Text, first_line, pieces
from cpr_trainer.errors import DataError

#: Every byte beyond ASCII becomes a question mark, so that lines and cells stay where they are.
_ASCII = bytes(byte if byte < 128 else ord("?") for byte in range(256))  # noqa: PLR2004 -- ASCII ends there


class TextFormat:
    """Reads text in blocks of whole lines, parsed by pyarrow: the columns in use, or all of them.

    Every cell stays the bytes that stand in the file; categories come as dictionaries.
    """

    def __init__(self, files: Files, dialect: Dialect, columns: Columns | None) -> None:
        self._files = files
        self._dialect = dialect
        self._columns = columns
        self._open = OpenFiles(lambda file: Text(files.open(file.uri, file.version), file.uri))

    def index(self, uri: str) -> Index:
        """Go through a file once, for the ends of its lines. Raises DataError."""
        file, blocks, first = SourceFile(uri, self._files.version(uri)), [], 0
        with reading(uri, REMEDY), Text(self._files.open(uri, file.version), uri) as text:
            for start, piece in pieces(text, uri):
                head = 0
                if not start:
                    names, head = self._read_head(piece, uri)
                    file = replace(file, columns=names)
                rows = piece.count(b"\n", head) + (len(piece) > head and not piece.endswith(b"\n"))
                if rows:
                    blocks.append(Block(file, first, rows, start + head, len(piece) - head))
                first += rows
            return Index(file, tuple(blocks), text.packed)

    def fetch(self, block: Block) -> bytes:
        """Read the bytes of a block. Raises DataError."""
        with reading(block.uri, REMEDY), self._open.reading(block.file) as text:
            return text.read(block.start, block.size)

    def parse(self, block: Block, fetched: bytes) -> Parsed:
        """Parse a block. Raises DataError."""
        ragged: dict[int, str] = {}
        with reading(block.uri, REMEDY):
            table = self._parse(fetched, block.file, ragged)
        if table.num_rows + len(ragged) != block.rows:
            raise DataError(
                f"{block.uri} has {block.rows} lines where {table.num_rows + len(ragged)} rows are read.",
                "A row must be one line, without line breaks in quotes, and files must not change.",
            )
        return Parsed(table, ragged)

    def place(self, block: Block, row: int) -> str:
        """Name a row's line, from 1."""
        return f"{block.uri}, line {block.first + row + 1 + self._dialect.header}"

    def _read_head(self, piece: bytes, uri: str) -> tuple[tuple[str, ...], int]:
        """Return the names of a file's columns, by its first line, and the bytes of that which are no row."""
        cells = _cells(first_line(piece, uri), self._dialect)
        numbers = [str(number) for number in range(1, 1 + (self._dialect.columns or len(cells)))]
        names = cells if self._dialect.header else numbers
        if self._columns is not None:
            check_names(self._columns, names, uri)
        return tuple(names), (piece.find(b"\n") + 1 or len(piece)) if self._dialect.header else 0

    def _parse(self, data: bytes, file: SourceFile, ragged: dict[int, str]) -> Any:
        """Return whole lines as a pyarrow table; note those of another number of columns."""

        def note(row: Any) -> Literal["skip"]:
            was, wanted = row.actual_columns, row.expected_columns
            ragged[row.number - 1] = f"it has {was} columns instead of {wanted}"
            return "skip"

        try:
            return self._read(data, file.columns)
        except pa.ArrowInvalid:
            pass  # The most usual cause are ragged lines, which are looked for now.
        # pyarrow decodes a ragged line for `note`, and gives up where it is not UTF-8.
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
        """Let pyarrow parse whole lines. Raises ArrowInvalid, for a ragged one if none are skipped."""
        names = list(columns)
        wanted = names if self._columns is None else self._columns.used
        kinds = dict.fromkeys(wanted, pa.dictionary(pa.int32(), pa.binary()))
        kinds |= dict.fromkeys(self._columns.numeric if self._columns else (), pa.binary())
        return pa.csv.read_csv(
            pa.py_buffer(data),
            # One thread: only then are lines numbered. Blocks are parsed side by side.
            pa.csv.ReadOptions(use_threads=False, block_size=len(data), column_names=names),
            pa.csv.ParseOptions(
                delimiter=self._dialect.delimiter,
                quote_char='"' if self._dialect.quotes else False,
                ignore_empty_lines=False,
                invalid_row_handler=on_ragged,
            ),
            pa.csv.ConvertOptions(column_types=kinds, include_columns=wanted, strings_can_be_null=False),
        )


def _cells(line: str, dialect: Dialect) -> list[str]:
    if not dialect.quotes:
        return line.split(dialect.delimiter)
    return next(csv.reader([line], delimiter=dialect.delimiter), [""])
