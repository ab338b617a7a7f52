"""The store of saves in a bucket of an S3-compatible server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

from cpr_trainer.store.connection import IF_ABSENT, Connection, Upload, checksum_header
from cpr_trainer.store.interface import Entry, ExistsError, MissingError, Received, retried
from cpr_trainer.store.objects import delete_objects, download, download_into, list_objects, upload
from cpr_trainer.store.probe import probe
from cpr_trainer.store.responses import translated
from cpr_trainer.store.transfers import Buffer, Throttle, checksum, flat


class S3Store:
    """Objects in one bucket, below a prefix. Each object is one request."""

    def __init__(self, connection: Connection, bucket: str, prefix: str) -> None:
        self._connection = connection
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
        views = flat(data)
        crc = checksum(views)
        # Without a checksum some servers store an upload that breaks off as a shorter object.
        condition = IF_ABSENT if if_absent else {}
        self._put(key, Upload(views, throttle), {**checksum_header(crc), **condition})
        return crc

    @retried
    def get(self, key: str) -> bytes:
        with self._translated(key):
            return download(self._connection, self._bucket, self._prefix + key)

    @retried
    def get_into(self, key: str, buffers: Sequence[memoryview]) -> Received:
        with self._translated(key):
            return download_into(self._connection, self._bucket, self._prefix + key, flat(buffers))

    @retried
    def list(self, prefix: str) -> tuple[Entry, ...]:
        with self._translated(prefix):
            found = list_objects(self._connection, self._bucket, self._prefix + prefix)
            entries = (Entry(each.key.removeprefix(self._prefix), each.size_bytes, each.modified_s) for each in found)
            return tuple(sorted(entries, key=attrgetter("key")))

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects, a thousand in a request; absence is success."""
        self._delete([self._prefix + key for key in keys])

    def probe(self, folder: str) -> None:
        probe(self._connection, self._bucket, self._prefix + folder)

    @retried
    def _put(self, key: str, body: Upload, headers: Mapping[str, str]) -> None:
        with self._translated(key):
            upload(self._connection, self._bucket, self._prefix + key, body, headers)

    @retried
    def _delete(self, keys: Sequence[str]) -> None:
        with self._translated(""):
            delete_objects(self._connection, self._bucket, keys)

    @contextlib.contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        """Translate errors; name objects by their keys in this store."""
        try:
            with translated(self._connection.field):
                yield
        except (MissingError, ExistsError) as error:
            raise type(error)(key) from error
