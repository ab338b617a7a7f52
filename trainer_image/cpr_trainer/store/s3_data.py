"""Data in an S3-compatible store: objects found, told apart by their ETag, and opened."""

from __future__ import annotations

from typing import BinaryIO

from cpr_trainer.store.connection import Connection
from cpr_trainer.store.object_stream import Version, open_object
from cpr_trainer.store.s3_errors import persistent, translated

S3 = "s3://"


class S3Data:
    """Objects of all buckets of an endpoint; see `Places`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @persistent
    def keys(self, place: str, folder: str) -> list[str]:
        """See `Places.keys`."""
        bucket = place.removeprefix(S3)
        with translated(bucket, folder, self._connection.field):
            found = self._connection.client.list_objects(bucket, folder, recursive=True)
            return [str(item.object_name) for item in found]

    @persistent
    def first_key(self, place: str, prefix: str) -> str | None:
        """See `Places.first_key`."""
        bucket = place.removeprefix(S3)
        with translated(bucket, prefix, self._connection.field):
            found = self._connection.client.list_objects(bucket, prefix, recursive=True)
            return next((str(item.object_name) for item in found), None)

    @persistent
    def version(self, place: str, key: str) -> Version:
        """See `Places.version`."""
        bucket = place.removeprefix(S3)
        with translated(bucket, key, self._connection.field):
            status = self._connection.client.stat_object(bucket, key)
            return Version(int(status.size or 0), str(status.etag))

    def open(self, place: str, key: str, version: Version) -> BinaryIO:
        """See `Places.open`."""
        return open_object(self._connection, place.removeprefix(S3), key, version)
