"""One download, from the socket into the caller's memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import urllib3
from minio import Minio
from minio.error import S3Error

from cpr_trainer.store.buffers import size_of, slices


def download(client: Minio, bucket: str, name: str, views: Sequence[memoryview], offset: int) -> int:
    """Fill `views` from an object's byte `offset` on, as far as there is one; return the object's size in bytes.

    Raises S3Error and what else minio's client and urllib3 raise.
    """
    wanted = size_of(views)
    if not wanted:
        return _size(client, bucket, name)
    try:
        response = client.get_object(bucket, name, offset=offset, length=wanted)
    except S3Error as error:
        if error.code == "InvalidRange":  # the object ends before
            return _size(client, bucket, name)
        raise
    with returned(response):
        _, _, size = response.headers.get("Content-Range", "").rpartition("/")
        if not size.isdecimal():
            raise urllib3.exceptions.ProtocolError("the answer to a request for a range is not one")
        _fill(views, response, min(wanted, int(size) - offset))
        return int(size)


@contextlib.contextmanager
def returned(response: Any) -> Iterator[None]:
    """Give the answer's connection back when it was read to its end, and close it otherwise."""
    try:
        yield
    except BaseException:
        response.close()
        raise
    response.release_conn()


def _fill(views: Sequence[memoryview], response: Any, size_bytes: int) -> None:
    # Through a slice that stays in the cache: as cheap as receiving into the view itself, which urllib3 does not offer.
    left = size_bytes
    for piece in slices(views):
        data = response.read(min(len(piece), left))
        if len(data) < min(len(piece), left):
            raise urllib3.exceptions.ProtocolError(f"the answer ended {left - len(data)} bytes early")
        piece[: len(data)] = data
        left -= len(data)


def _size(client: Minio, bucket: str, name: str) -> int:
    return int(client.stat_object(bucket, name).size or 0)
