"""Files of a followed job's data without their content: the rows of each, and how often it was written."""

from __future__ import annotations

from collections.abc import Sequence

from cpr_trainer.data.files import Block, Index, SourceFile
from cpr_trainer.errors import DataError
from cpr_trainer.store import Version

_BLOCK_ROWS = 7


class Folder:
    """Files by name: the rows of each, and the number of its writes. Those in `broken` cannot be indexed."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[int, int]] = {}
        self.broken: set[str] = set()

    def write(self, name: str, rows: int) -> None:
        """Write a file, or write it again."""
        self.files[name] = rows, self.files.get(name, (0, 0))[1] + 1

    def find(self, uri: str, *, may_be_empty: bool) -> tuple[str, ...]:
        """Be `Uris.find`."""
        assert uri
        assert may_be_empty
        return tuple(sorted(self.files))

    def version(self, uri: str) -> Version:
        """Be `Uris.version`."""
        if uri not in self.files:
            raise DataError(f"{uri} is not there", "")
        rows, writes = self.files[uri]
        return Version(rows, str(writes))

    def index(self, uris: Sequence[str]) -> list[Index]:
        """Return the index of each file."""
        if broken := self.broken.intersection(uris):
            raise DataError(f"{broken.pop()} cannot be read to its end", "")
        return [self._index(uri) for uri in uris]

    def _index(self, uri: str) -> Index:
        file, rows = SourceFile(uri, self.version(uri)), self.files[uri][0]
        sizes = [_BLOCK_ROWS] * (rows // _BLOCK_ROWS) + [rows % _BLOCK_ROWS]
        blocks = (Block(file, _BLOCK_ROWS * number, size, number, 0) for number, size in enumerate(sizes) if size)
        return Index(file, tuple(blocks), sequential=False)
