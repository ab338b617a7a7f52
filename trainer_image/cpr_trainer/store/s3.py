"""An S3-compatible store: objects in a bucket, and their bytes between memory and the socket."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any
from urllib.parse import SplitResult, parse_qs, urlsplit

import urllib3
from minio import Minio
from minio.deleteobjects import DeleteObject
from minio.signer import sign_v4_s3

from cpr_trainer.store.connection import Connection
from cpr_trainer.store.protocol import Entry, Received
from cpr_trainer.store.s3_errors import error_of, persistent, refusal, translated
from cpr_trainer.store.transfers import Buffer, Throttle, checksum, extended, flat, size_of, slices


class S3Store:
    """Objects in one bucket, below a prefix. An object is one request: parts of saves are sent several at once."""

    def __init__(self, connection: Connection, bucket: str, prefix: str) -> None:
        self._connection = connection
        self._client = connection.client
        self._bucket = bucket
        self._prefix = prefix

    def put(
        self,
        key: str,
        data: Buffer | Sequence[Buffer],
        *,
        if_absent: bool = False,
        throttle: Throttle | None = None,
    ) -> int:
        """Write an object; see `Store.put`."""
        views = flat(data)
        crc = checksum(views)
        # Some servers take an upload that breaks off for a shorter object unless they know what has to arrive.
        headers = {"X-Amz-Checksum-Crc32c": base64.b64encode(crc.to_bytes(4, "big")).decode()}
        if if_absent:
            headers["If-None-Match"] = "*"
        self._put(key, views, headers, throttle)
        return crc

    @persistent
    def get(self, key: str) -> bytes:
        """Read an object; see `Store.get`."""
        with translated(self._bucket, key):
            response = self._client.get_object(self._bucket, self._prefix + key)
            with returned(response):
                return bytes(response.read())

    @persistent
    def get_into(self, key: str, buffers: Sequence[memoryview]) -> Received:
        """Read an object into memory; see `Store.get_into`."""
        with translated(self._bucket, key):
            return download(self._client, self._bucket, self._prefix + key, flat(buffers))

    @persistent
    def list(self, prefix: str) -> tuple[Entry, ...]:
        """All objects whose keys begin with `prefix`; see `Store.list`."""
        with translated(self._bucket, prefix):
            found = self._client.list_objects(self._bucket, self._prefix + prefix, recursive=True)
            entries = (
                Entry(item.object_name.removeprefix(self._prefix), item.size, item.last_modified.timestamp())
                for item in found
            )
            return tuple(sorted(entries, key=attrgetter("key")))

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects, a thousand in a request; absence is success."""
        self._delete(tuple(keys))

    @persistent
    def _put(
        self, key: str, views: Sequence[memoryview], headers: Mapping[str, str], throttle: Throttle | None
    ) -> None:
        with translated(self._bucket, key):
            upload(self._connection, self._bucket, self._prefix + key, views, headers, throttle)

    @persistent
    def _delete(self, keys: Sequence[str]) -> None:
        doomed = [DeleteObject(self._prefix + key) for key in keys]
        with translated(self._bucket, "objects to delete"):
            for failure in self._client.remove_objects(self._bucket, doomed):
                raise refusal(failure.code, failure.message, self._bucket, failure.name)


# One upload, straight from memory to the socket.
#
# minio's client signs a hash of the body, which costs more than sending it. Here the signature leaves the body out, as
# those of presigned URLs do; a checksum header, which is signed, tells the store what has to arrive.


_UNSIGNED = "UNSIGNED-PAYLOAD"


def upload(  # noqa: PLR0913, PLR0917 -- one request
    connection: Connection,
    bucket: str,
    name: str,
    views: Sequence[memoryview],
    headers: Mapping[str, str],
    throttle: Throttle | None,
) -> None:
    """Put an object of the bytes of `views`, with `headers` beside those of any upload.

    Raises S3Error and what else minio's client and urllib3 raise.
    """
    url, region = _place(connection.client, bucket, name)
    credentials = connection.credentials.retrieve()
    now = datetime.now(UTC)
    unsigned: dict[str, str | list[str] | tuple[str]] = {
        "Host": url.netloc,
        "Content-Length": str(size_of(views)),
        "Content-Type": "application/octet-stream",
        "X-Amz-Content-Sha256": _UNSIGNED,
        "X-Amz-Date": now.strftime("%Y%m%dT%H%M%SZ"),
        **headers,
    }
    if credentials.session_token:
        unsigned["X-Amz-Security-Token"] = credentials.session_token
    signed = sign_v4_s3(
        method="PUT",
        url=url,
        region=region,
        headers=unsigned,
        credentials=credentials,
        content_sha256=_UNSIGNED,
        date=now,
    )
    response = connection.http.urlopen(
        "PUT", url.geturl(), body=_paced(views, throttle), headers=signed, redirect=False
    )
    if response.status != 200:  # noqa: PLR2004 -- OK
        raise error_of(response)


def _place(client: Minio, bucket: str, name: str) -> tuple[SplitResult, str]:
    """Return an object's URL and its region: the client knows styles of addresses and asks for regions.

    It tells both in a presigned URL.
    """
    url = urlsplit(client.presigned_put_object(bucket, name))
    scope = parse_qs(url.query)["X-Amz-Credential"][0]  # key/date/region/s3/aws4_request
    return url._replace(query=""), scope.split("/")[-3]


def _paced(views: Sequence[memoryview], throttle: Throttle | None) -> Iterator[memoryview]:
    for piece in slices(views):
        if throttle:
            throttle.wait(len(piece))
        yield piece


# One download, from the socket into the caller's memory.


def download(client: Minio, bucket: str, name: str, views: Sequence[memoryview]) -> Received:
    """Fill `views` with an object's bytes, as far as there are any.

    Raises S3Error and what else minio's client and urllib3 raise.
    """
    response = client.get_object(bucket, name)
    with returned(response):
        length = response.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise urllib3.exceptions.ProtocolError("the answer does not say how long it is")
        return Received(int(length), _fill(views, response, min(size_of(views), int(length))))


@contextlib.contextmanager
def returned(response: Any) -> Iterator[None]:
    """Give the answer's connection back if it was read to its end, and close it otherwise."""
    try:
        yield
    finally:
        if response.length_remaining:
            response.close()
        response.release_conn()


def _fill(views: Sequence[memoryview], response: Any, size_bytes: int) -> int:
    """Read so many bytes into the views, and return their CRC-32C.

    They come through a slice that stays in the cache: urllib3 does not offer to receive them in place. Left as they
    came: to decode them would copy them twice more.
    """
    left, crc = size_bytes, 0
    for piece in slices(views):
        room = piece[:left]
        while room:
            data = response.read(len(room), decode_content=False)
            if not data:
                raise urllib3.exceptions.ProtocolError(f"the answer ended {left} bytes early")
            room[: len(data)] = data
            crc = extended(crc, memoryview(data))
            room, left = room[len(data) :], left - len(data)
    return crc
