"""Data in an S3-compatible store: listings, versions by ETag, and streams that survive broken connections."""

from __future__ import annotations

import io
import re
from http import HTTPStatus
from typing import Any, BinaryIO

import urllib3

from cpr_trainer.errors import DataError
from cpr_trainer.store.connection import Connection
from cpr_trainer.store.data_files import CHANGED_REMEDY, SeekableStream, Version
from cpr_trainer.store.interface import (
    BucketMissingError,
    ChangedError,
    MissingError,
    StoreUnsuitableError,
    retried,
)
from cpr_trainer.store.objects import list_objects
from cpr_trainer.store.responses import SUITABLE, length_of, released, translated
from cpr_trainer.store.transfers import SLICE_BYTES

S3 = "s3://"

_BUFFER_BYTES = 1 << 20
_RESUMES = 5  # broken connections in a row without a byte
_CONTENT_RANGE = re.compile(r"bytes (?P<first>\d+)-\d+/(?P<size>\d+|\*)")


class S3Data:
    """The data in all buckets of an endpoint; see `DataStore`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @retried
    def keys(self, place: str, folder: str, after: str = "") -> list[str]:
        with translated(self._connection.field):
            found = list_objects(self._connection, place.removeprefix(S3), folder, after=after)
            return [each.key for each in found]

    @retried
    def first_key(self, place: str, prefix: str) -> str | None:
        with translated(self._connection.field):
            found = list_objects(self._connection, place.removeprefix(S3), prefix, page_keys=1)
            return next((each.key for each in found), None)

    @retried
    def version(self, place: str, key: str) -> Version:
        bucket = place.removeprefix(S3)
        with translated(self._connection.field), released(self._connection.send("HEAD", bucket, key)) as response:
            tag, size_bytes = response.headers.get("ETag", "").replace('"', ""), length_of(response)
            if size_bytes is None:
                found = list_objects(self._connection, bucket, key)
                size_bytes = next((each.size_bytes for each in found if each.key == key), None)
        if not tag or size_bytes is None:
            raise StoreUnsuitableError(
                f"{self._connection.endpoint} names no {'size' if tag else 'ETag'} of {place}/{key}.",
                f"Check {self._connection.field}.endpoint. {SUITABLE}",
            )
        return Version(size_bytes, tag)

    def open(self, place: str, key: str, version: Version) -> BinaryIO:
        return open_object(self._connection, place.removeprefix(S3), key, version)


def open_object(connection: Connection, bucket: str, key: str, version: Version) -> io.BufferedReader:
    """Open a version of an object to read, without sending a request.

    Reads raise DataError if the object was deleted or changed, and StoreError while the store fails.
    """
    return io.BufferedReader(_ObjectStream(connection, bucket, key, version), _BUFFER_BYTES)


class _ObjectStream(SeekableStream):
    """Reads the object by one request; sends another after a broken connection or a seek."""

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
        # Slices avoid an allocation of a large buffer for each read. Decoding would copy the bytes twice more.
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

    @retried
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
        """Compare a response with the request, because a server or a proxy may ignore both headers.

        Raises ChangedError for another version, StoreUnsuitableError for bytes from another position.
        """
        stated = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        tag = _opaque(response.headers.get("ETag", ""))
        whole = stated is None and response.status == HTTPStatus.OK
        if stated is not None:
            size = stated["size"]
        else:
            # An encoded body has another length than the object.
            plain = whole and "Content-Encoding" not in response.headers
            size = response.headers.get("Content-Length", "*") if plain else "*"
        if (tag and tag != self._tag) or size not in {str(self._size), "*"}:
            raise ChangedError(self._key)
        first = 0 if whole else -1 if stated is None else int(stated["first"])
        if first != self._position:
            raise StoreUnsuitableError(
                f"{self._connection.endpoint} returned {'the whole object' if whole else 'other bytes'} for "
                f"s3://{self._bucket}/{self._key} from byte {self._position} on.",
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
    """Return an ETag without quotes and without the prefix W/, which a compressing proxy may add."""
    return tag.replace('"', "").removeprefix("W/")
