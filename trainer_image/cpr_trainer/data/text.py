"""Tables as text: the Criteo layout, TSV and CSV. A line is a row."""

from __future__ import annotations

import csv
from typing import Any, Literal

import pyarrow as pa
import pyarrow.csv

from cpr_contract.spec import ColumnsSpec
from cpr_trainer.data.blocks import Block, Files, Index, Parsed, unreadable
from cpr_trainer.data.columns import Dialect, check_names, numeric, used
from cpr_trainer.data.open_files import OpenFiles
from cpr_trainer.data.unpacking import REMEDY, Text, pieces
from cpr_trainer.errors import DataError


class TextFormat:
    """Reads text in blocks of whole lines, parsed by pyarrow: the columns in use, or all of them.

    Every cell stays the bytes that stand in the file; categories come as dictionaries.
    """

    def __init__(self, files: Files, dialect: Dialect, columns: ColumnsSpec | None) -> None:
        self._files = files
        self._dialect = dialect
        self._columns = columns
        self._names: dict[str, list[str]] = {}
        self._open = OpenFiles(lambda uri: Text(files.open(uri), uri))

    def index(self, uri: str) -> Index:
        """Go through a file once, for the ends of its lines. Raises DataError."""
        blocks, first = [], 0
        with Text(self._files.open(uri), uri) as text:
            for start, piece in pieces(text, uri):
                head = 0 if start else self._read_head(piece, uri)
                rows = piece.count(b"\n", head) + (len(piece) > head and not piece.endswith(b"\n"))
                if rows:
                    blocks.append(Block(uri, first, rows, start + head, len(piece) - head))
                first += rows
            return Index(tuple(blocks), text.packed)

    def fetch(self, block: Block) -> bytes:
        """Read the bytes of a block. Raises DataError."""
        return self._open.get(block.uri).read(block.start, block.size)

    def parse(self, block: Block, fetched: bytes) -> Parsed:
        """Parse a block. Raises DataError."""
        ragged: dict[int, str] = {}
        table = self._parse(fetched, block.uri, ragged)
        if table.num_rows + len(ragged) != block.rows:
            raise DataError(
                f"{block.uri} has {block.rows} lines where {table.num_rows + len(ragged)} rows are read.",
                "A row must be one line, without line breaks in quotes, and files must not change.",
            )
        return Parsed(table, ragged)

    def place(self, block: Block, row: int) -> str:
        """Name a row's line, from 1."""
        return f"{block.uri}, line {block.first + row + 1 + self._dialect.header}"

    def _read_head(self, piece: bytes, uri: str) -> int:
        """Learn the names of a file's columns from its first line; return the bytes of it that are no row."""
        line, end, _ = piece.partition(b"\n")
        cells = _cells(line.decode("utf-8-sig", "replace").rstrip("\r"), self._dialect)
        numbers = [str(number) for number in range(1, 1 + (self._dialect.columns or len(cells)))]
        self._names[uri] = cells if self._dialect.header else numbers
        if self._columns is not None:
            check_names(self._columns, self._names[uri], uri)
        return len(line) + len(end) if self._dialect.header else 0

    def _parse(self, data: bytes, uri: str, ragged: dict[int, str]) -> Any:
        """Return whole lines as a pyarrow table; note those of another number of columns."""

        def note(row: Any) -> Literal["skip"]:
            ragged[row.number - 1] = f"it has {row.actual_columns} columns instead of {row.expected_columns}"
            return "skip"

        names = self._names[uri]
        wanted = names if self._columns is None else used(self._columns)
        kinds = dict.fromkeys(wanted, pa.dictionary(pa.int32(), pa.binary()))
        kinds |= dict.fromkeys(numeric(self._columns) if self._columns else (), pa.binary())
        try:
            return pa.csv.read_csv(
                pa.py_buffer(data),
                # One thread: only then are lines numbered. Blocks are parsed side by side.
                pa.csv.ReadOptions(use_threads=False, block_size=len(data), column_names=names),
                pa.csv.ParseOptions(
                    delimiter=self._dialect.delimiter,
                    quote_char='"' if self._dialect.quotes else False,
                    ignore_empty_lines=False,
                    invalid_row_handler=note,
                ),
                pa.csv.ConvertOptions(column_types=kinds, include_columns=wanted, strings_can_be_null=False),
            )
        except pa.ArrowInvalid as error:
            raise unreadable(uri, error, REMEDY) from error


def _cells(line: str, dialect: Dialect) -> list[str]:
    if not dialect.quotes:
        return line.split(dialect.delimiter)
    return next(csv.reader([line], delimiter=dialect.delimiter), [""])
