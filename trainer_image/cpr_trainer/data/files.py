"""Files of data: the blocks that they are read in, the formats that read them, and the files that stay open.

A format reads text, Parquet or the dataset of the user. It fetches a block in the thread that reads, and parses
it in another.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar
from weakref import finalize

from cpr_contract.pinned_data import Constant, TableVersion
from cpr_trainer.errors import DataError, TrainerError, printable
from cpr_trainer.store import Version

CORRECT_COLUMNS = "Correct data.columns, or write the file with the types that docs/data.md lists."
#: The first bytes of a file that show its format.
HEAD_BYTES = 512
_CONVERT = "Convert it to Parquet, or to UTF-8 text, plain or packed by gzip, bzip2 or zstd."
_UNPACK = "Unpack it, and pack its files by gzip, bzip2 or zstd if they should be small."
_UTF_16 = "Convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)."
_STREAM = "Write an Arrow IPC file (pyarrow.ipc.new_file), which has an index of its batches."
_ARRAY = "Write one object a line (jq -c '.[]')."
_TFRECORD = "Convert it to Parquet: parse its examples by TensorFlow, and write their features as columns by pyarrow."
_OTHER_FORMATS = tuple(
    (re.compile(magic, re.DOTALL), name, remedy)
    for magic, name, remedy in (
        (rb"PAR1[^ -~\t\r\n]", "Parquet", "State data.format: Parquet."),
        (rb"ARROW1\0", "an Arrow IPC (Feather) file", "State data.format: Arrow."),
        (rb"ORC[^ -~\t\r\n]", "an ORC file", "State data.format: ORC."),
        (rb'(?:\xef\xbb\xbf)?\s*\{\s*["}]', "JSON", "State data.format: JSONLines, if each line is an object."),
        (rb"PARE(?=.{0,40}\0)", "Parquet with an encrypted footer", "Write it without encryption."),
        (rb"\xff\xfe|\xfe\xff|(?:[^\0]\0){4}|(?:\0[^\0]){4}", "text in UTF-16", _UTF_16),
        (rb"\xfd7zXZ\0", "packed by xz", _CONVERT),
        (rb"\x04\x22\x4d\x18", "packed by lz4", _CONVERT),
        (rb"\xff\x06\0\0sNaPpY", "packed by snappy", _CONVERT),
        (rb"PK\x03\x04", "a zip archive", _UNPACK),
        (rb"7z\xbc\xaf\x27\x1c", "a 7z archive", _UNPACK),
        (rb".{257}ustar", "a tar archive", _UNPACK),
        (rb"\xff{4}", "a stream of Arrow IPC", _STREAM),
        (rb"FEA1\0", "a Feather file of version 1", "Write it by a release of pyarrow since 0.17, or as Parquet."),
        (rb"Obj\x01", "an Avro file", _CONVERT),
        (rb"\s*\[\s*\{", "an array of JSON", _ARRAY),
        # The length of a record, its checksum, and the first field of an example.
        (rb".{3}\0{5}.{4}\n", "a TFRecord file", _TFRECORD),
        (rb"\x93NUMPY", "an array of NumPy", _CONVERT),
        (rb"\x89HDF\r\n", "an HDF5 file", _CONVERT),
        (rb"SQLite format 3\0", "a database of SQLite", _CONVERT),
        (rb".{8}DUCK.\0{7}", "a database of DuckDB", "Write its table as Parquet (COPY ... TO)."),
        (rb"\x80[\x02-\x05]", "a pickle", _CONVERT),
    )
)
_MAX_OPEN = 8
_MAX_CAUSE_LETTERS = 300


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file as it was found. `columns` are the names of a text file's columns; Parquet has them in its footer.

    `table` is the version of the table that it belongs to, `constants` are the values that its log has for the file.
    """

    uri: str
    version: Version
    columns: tuple[str, ...] = ()
    table: TableVersion | None = None
    constants: tuple[Constant, ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """`rows` consecutive rows of a file, after `first` others.

    start, size: bytes of the text, once it is unpacked, or the row group of Parquet and its bytes.
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
    """One file and its blocks. `sequential`: they can only be read one after the other."""

    file: SourceFile
    blocks: tuple[Block, ...]
    sequential: bool


@dataclass(frozen=True, slots=True, eq=False)
class Parsed:
    """A block's columns as a pyarrow table, without the rows that have another number of cells: `ragged`, by row."""

    table: Any
    ragged: dict[int, str]


class Format(Protocol):
    """Reads files of one format. Safe to use from several threads, except for `fetch`."""

    def index(self, uri: str) -> Index:
        """Find a file's blocks. Raises DataError if it is damaged, or lacks a column."""

    def fetch(self, block: Block) -> Any:
        """Read a block, after `index` of its file; cheap if it follows the one fetched before. Raises DataError."""

    def parse(self, block: Block, fetched: Any) -> Parsed:
        """Return the columns of a fetched block. Raises DataError."""

    def location(self, block: Block, row: int) -> str:
        """Return the location of a row (from 0) of a block for a message, as "file, line 7"."""


class Closable(Protocol):
    """A resource with `close`."""

    def close(self) -> object:
        """Close it."""


Opened = TypeVar("Opened", bound=Closable)


class OpenFiles(Generic[Opened]):
    """A cache of open files: those used last stay open, and all are closed with this object. For one thread."""

    def __init__(self, open_file: Callable[[SourceFile], Opened]) -> None:
        self._open_file = open_file
        self._open: OrderedDict[SourceFile, Opened] = OrderedDict()
        # A dataset has no close. `__del__` may run after the files' own, in a cycle.
        finalize(self, _close, self._open)

    @contextmanager
    def use(self, source: SourceFile) -> Iterator[Opened]:
        """Yield an open file; raises what opening it raises.

        After an error the file is closed, because its position is unknown.
        """
        file = self._open.pop(source, None) or self._open_file(source)
        with closed_on_error(file):
            yield file
        self._open[source] = file
        if len(self._open) > _MAX_OPEN:
            self._open.popitem(last=False)[1].close()


def _close(files: Mapping[SourceFile, Closable]) -> None:
    for file in files.values():
        file.close()


@contextmanager
def closed_on_error(file: Closable) -> Iterator[None]:
    """Close a file if this block raises."""
    try:
        yield
    except BaseException:
        file.close()
        raise


@contextmanager
def content_errors(uri: str, remedy: str) -> Iterator[None]:
    """Raise DataError, with the file, for any error of a library that reads its content.

    Errors of the source, of memory and of this package pass unchanged.
    """
    try:
        yield
    except (TrainerError, MemoryError):
        raise
    except Exception as error:
        if is_outage(error):
            raise
        cause = printable(str(error).partition("\n")[0], _MAX_CAUSE_LETTERS).rstrip(".") or type(error).__name__
        raise DataError(f"{uri} cannot be read to its end: {cause}.", remedy) from error


def is_outage(error: BaseException) -> bool:
    """Return True if the source failed, not its content: the caller waits and retries."""
    return isinstance(error, OSError) and error.errno is not None  # pyarrow's own errors carry no number.


def check_head(head: bytes, uri: str, own: str | None = None) -> None:
    """Raise DataError if the first bytes of a file are those of another format than `own`, a name in the table above.

    None: of any format that is not read as a table in text.
    """
    for magic, name, remedy in _OTHER_FORMATS:
        if name != own and magic.match(head):
            raise DataError(f"{uri} is {name}.", remedy)
