"""Data files: the protocol of the stores that have them, their versions, and a base class of their streams."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from typing import BinaryIO, Protocol

CHANGED_REMEDY = "Restore the file as it was when the job began, or start a new job for the new data."

_ENDS_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Version:
    """The size of a file, and a tag that differs for another content.

    An object's tag is its ETag. A local file's tag is a digest of its first and last 64 KiB, so copies of a file on
    several nodes are the same version.
    """

    size_bytes: int
    tag: str


class DataStore(Protocol):
    """Files by key. `place` is the URI before the key, as s3://bucket. Thread-safe.

    Every method raises StoreError if the store fails: MissingError without the file, BucketMissingError without the
    place.
    """

    def keys(self, place: str, folder: str, after: str = "") -> list[str]:
        """Return the keys of all files below `folder`, which ends in a slash or is empty, that sort after `after`."""

    def first_key(self, place: str, prefix: str) -> str | None:
        """Return the first key that begins with `prefix`, None without one."""

    def version(self, place: str, key: str) -> Version:
        """Return the present version of a file."""

    def open(self, place: str, key: str, version: Version) -> BinaryIO:
        """Open a file to read, with seek. Reads raise DataError if it was deleted or has another version."""


class SeekableStream(io.RawIOBase):
    """A file of `size` bytes with a position; subclasses implement `readinto`."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position


def version_of(file: BinaryIO) -> Version:
    """Return the version of an open file, and seek to its start. Raises OSError."""
    size = file.seek(0, io.SEEK_END)
    ends = hashlib.sha256()
    for position in (0, max(_ENDS_BYTES, size - _ENDS_BYTES)):
        file.seek(position)
        ends.update(file.read(_ENDS_BYTES))
    file.seek(0)
    return Version(size, ends.hexdigest()[:32])
