"""The nouns of reading: files, the blocks that they are read in, and what turns a block into rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

from cpr_trainer.errors import DataError, TrainerError, printable
from cpr_trainer.store import Version

_MOST_LETTERS = 300
CORRECT_COLUMNS = "Correct data.columns, or write the file with the types that docs/data.md lists."


class Files(Protocol):
    """Where data lies. Safe to use from several threads."""

    def find(self, uri: str) -> tuple[str, ...]:
        """Return the URIs of the files that `uri` names, sorted: one file, all below a prefix, or those of a glob.

        Raises DataError if there is none.
        """

    def version(self, uri: str) -> Version:
        """Return which content a file has now. Raises DataError if it is not there."""

    def open(self, uri: str, version: Version) -> BinaryIO:
        """Open a file of that content to read, with seek. Raises DataError, also later, if it is gone or differs."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file as it was found. `columns` are the names of a text file's columns; Parquet keeps them itself."""

    uri: str
    version: Version
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """`rows` consecutive rows of a file, after `first` others.

    start, size: where they lie: bytes of the text, once it is unpacked, or the row group of Parquet and its bytes.
    """

    file: SourceFile
    first: int
    rows: int
    start: int
    size: int

    @property
    def uri(self) -> str:
        """The file's URI."""
        return self.file.uri


@dataclass(frozen=True, slots=True)
class Index:
    """One file and its blocks. `in_turn`: they can only be read one after the other."""

    file: SourceFile
    blocks: tuple[Block, ...]
    in_turn: bool


@dataclass(frozen=True, slots=True, eq=False)
class Parsed:
    """A block's columns as a pyarrow table, without the rows that have another number of cells: `ragged`, by row."""

    table: Any
    ragged: dict[int, str]


class Format(Protocol):
    """How files of one format are read. Safe to use from several threads, but for `fetch`."""

    def index(self, uri: str) -> Index:
        """Find a file's blocks. Raises DataError if it is damaged, or lacks a column."""

    def fetch(self, block: Block) -> Any:
        """Read a block, after `index` of its file; cheap if it follows the one fetched before. Raises DataError."""

    def parse(self, block: Block, fetched: Any) -> Parsed:
        """Return the columns of what `fetch` returned. Raises DataError."""

    def place(self, block: Block, row: int) -> str:
        """Name a row (from 0) of a block for a message, as "file, line 7"."""


def is_outage(error: BaseException) -> bool:
    """Tell whether the source failed, and not its content: such an error is waited out."""
    return isinstance(error, OSError) and error.errno is not None  # pyarrow's own errors carry no number.


@contextmanager
def reading(uri: str, remedy: str) -> Iterator[None]:
    """Raise DataError, with the file, for whatever a library raises that reads its content.

    Errors of the source, of memory and of this package stay what they are.
    """
    try:
        yield
    except (TrainerError, MemoryError):
        raise
    except Exception as error:
        if is_outage(error):
            raise
        cause = printable(str(error).partition("\n")[0], _MOST_LETTERS).rstrip(".") or type(error).__name__
        raise DataError(f"{uri} cannot be read to its end: {cause}.", remedy) from error
