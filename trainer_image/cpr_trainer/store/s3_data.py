"""Data in an S3-compatible store: objects found, told apart by their ETag, and opened."""

from __future__ import annotations

from typing import BinaryIO

from cpr_trainer.store.answers import SUITABLE, returned, translated
from cpr_trainer.store.connection import Connection
from cpr_trainer.store.listing import list_objects
from cpr_trainer.store.object_stream import Version, open_object
from cpr_trainer.store.persistence import persistent
from cpr_trainer.store.protocol import StoreUnsuitableError
from cpr_trainer.store.s3 import length_of

S3 = "s3://"


class S3Data:
    """Objects of all buckets of an endpoint; see `Places`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @persistent
    def keys(self, place: str, folder: str) -> list[str]:
        """See `Places.keys`."""
        with translated(self._connection.field):
            return [each.key for each in list_objects(self._connection, place.removeprefix(S3), folder)]

    @persistent
    def first_key(self, place: str, prefix: str) -> str | None:
        """See `Places.first_key`."""
        with translated(self._connection.field):
            found = list_objects(self._connection, place.removeprefix(S3), prefix, page_keys=1)
            return next((each.key for each in found), None)

    @persistent
    def version(self, place: str, key: str) -> Version:
        """See `Places.version`."""
        bucket = place.removeprefix(S3)
        with translated(self._connection.field), returned(self._connection.send("HEAD", bucket, key)) as response:
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
        """See `Places.open`."""
        return open_object(self._connection, place.removeprefix(S3), key, version)
