"""A version of a data file: what tells it from another, and an object of an S3-compatible store read as one."""

from __future__ import annotations

import hashlib
import io
import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, BinaryIO

import urllib3

from cpr_trainer.errors import DataError
from cpr_trainer.store.answers import SUITABLE, translated
from cpr_trainer.store.connection import Connection
from cpr_trainer.store.persistence import persistent
from cpr_trainer.store.protocol import BucketMissingError, ChangedError, MissingError, StoreUnsuitableError
from cpr_trainer.store.transfers import SLICE_BYTES

# What tells one content of a data file from another.


_ENDS_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Version:
    """A content: its size, and a tag that another content does not have.

    The tag of an object is its ETag. That of a file is a digest of its first and last 64 KiB: copies of one file on
    several nodes are the same version, whatever times they bear.
    """

    size_bytes: int
    tag: str


def version_of(file: BinaryIO) -> Version:
    """Return the version of a file that is open, and stands at its start after that. Raises OSError."""
    size = file.seek(0, io.SEEK_END)
    ends = hashlib.sha256()
    for place in (0, max(_ENDS_BYTES, size - _ENDS_BYTES)):
        file.seek(place)
        ends.update(file.read(_ENDS_BYTES))
    file.seek(0)
    return Version(size, ends.hexdigest()[:32])


CHANGED_REMEDY = "Restore the file as it was when the job began, or start a new job for the new data."

_BUFFER_BYTES = 1 << 20
_RESUMES = 5  # breaks without a byte between them
_CONTENT_RANGE = re.compile(r"bytes (?P<first>\d+)-\d+/(?P<size>\d+|\*)")


def open_object(connection: Connection, bucket: str, key: str, version: Version) -> io.BufferedReader:
    """Open that version of an object to read: nothing is asked before.

    Reading raises DataError once the object is gone or has changed, and StoreError while the store fails.
    """
    return io.BufferedReader(_ObjectStream(connection, bucket, key, version), _BUFFER_BYTES)


class SeekableStream(io.RawIOBase):
    """A file of `size` bytes that keeps its position; a subclass reads there."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        """See `io.IOBase`."""
        return True

    def seekable(self) -> bool:
        """See `io.IOBase`."""
        return True

    def tell(self) -> int:
        """See `io.IOBase`."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """See `io.IOBase`."""
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position


class _ObjectStream(SeekableStream):
    """Reads on with one request; begins another where the connection breaks, and after a seek."""

    def __init__(self, connection: Connection, bucket: str, key: str, version: Version) -> None:
        super().__init__(version.size_bytes)
        self._connection = connection
        self._bucket = bucket
        self._key = key
        self._tag = _opaque(version.tag)
        self._response: Any = None

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        before = self._position
        position = super().seek(offset, whence)
        if position != before:
            self._drop()
        return position

    def readinto(self, buffer: Any) -> int:
        for _ in range(_RESUMES):
            try:
                return self._read_some(memoryview(buffer).cast("B"))
            except (urllib3.exceptions.HTTPError, OSError):
                self._drop()
        with translated(self._connection.field):
            return self._read_some(memoryview(buffer).cast("B"))

    def _read_some(self, buffer: memoryview) -> int:
        if self._position >= self._size:
            return 0
        if self._response is None:
            self._response = self._request()
        # In slices: memory for a whole stretch would be allocated anew each time. Undecoded: the bytes are those that
        # are stored, and decoding would copy them twice more.
        data = self._response.read(min(len(buffer), SLICE_BYTES), decode_content=False)
        if not data:
            raise urllib3.exceptions.ProtocolError(f"{self._key} ended after {self._position} of {self._size} bytes")
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def _request(self) -> Any:
        uri = f"s3://{self._bucket}/{self._key}"
        try:
            return self._get()
        except ChangedError as error:
            raise DataError(f"{uri} has changed.", CHANGED_REMEDY) from error
        except (MissingError, BucketMissingError) as error:
            raise DataError(f"{uri} is not there any more: {error.message}", CHANGED_REMEDY) from error

    @persistent
    def _get(self) -> Any:
        headers = {"If-Match": f'"{self._tag}"'}
        if self._position:
            headers["Range"] = f"bytes={self._position}-"
        with translated(self._connection.field):
            response = self._connection.send("GET", self._bucket, self._key, headers=headers)
        try:
            self._compare(response)
        except BaseException:
            response.close()
            raise
        return response

    def _compare(self, response: urllib3.BaseHTTPResponse) -> None:
        """Compare an answer with what was asked: a server, or a proxy before it, may ignore both headers.

        Raises ChangedError for another version, StoreUnsuitableError for bytes from another position.
        """
        stated = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        tag = _opaque(response.headers.get("ETag", ""))
        whole = stated is None and response.status == HTTPStatus.OK
        if stated is not None:
            size = stated["size"]
        else:
            # The length of an encoded body is not that of the object.
            plain = whole and "Content-Encoding" not in response.headers
            size = response.headers.get("Content-Length", "*") if plain else "*"
        if (tag and tag != self._tag) or size not in {str(self._size), "*"}:
            raise ChangedError(self._key)
        first = 0 if whole else -1 if stated is None else int(stated["first"])
        if first != self._position:
            raise StoreUnsuitableError(
                f"{self._connection.endpoint} was asked for s3://{self._bucket}/{self._key} from byte {self._position} "
                f"on, and answers {'with the whole object' if whole else 'with other bytes'}.",
                f"It, or a proxy before it, ignores the header Range. {SUITABLE}",
            )

    def _drop(self) -> None:
        if self._response is not None:
            self._response.close()
            self._response.release_conn()
            self._response = None

    def close(self) -> None:
        if not self.closed:
            self._drop()
        super().close()


def _opaque(tag: str) -> str:
    """Return an ETag without quotes, and without the mark by which a proxy that may compress calls it weak."""
    return tag.replace('"', "").removeprefix("W/")
