"""An S3-compatible store."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

from minio.deleteobjects import DeleteObject

from cpr_trainer.store.buffers import Buffer, checksum, flat
from cpr_trainer.store.connection import Connection
from cpr_trainer.store.download import download, returned
from cpr_trainer.store.persistence import persistent
from cpr_trainer.store.protocol import Entry, Received
from cpr_trainer.store.s3_errors import refusal, translated
from cpr_trainer.store.throttle import Throttle
from cpr_trainer.store.upload import upload


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
