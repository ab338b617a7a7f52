"""One download, from the socket into the caller's memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import urllib3
from minio import Minio

from cpr_trainer.store.buffers import size_of, slices


def download(client: Minio, bucket: str, name: str, views: Sequence[memoryview]) -> int:
    """Fill `views` with an object's bytes, as far as there are any; return the object's size in bytes.

    Raises S3Error and what else minio's client and urllib3 raise.
    """
    response = client.get_object(bucket, name)
    with returned(response):
        length = response.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise urllib3.exceptions.ProtocolError("the answer does not say how long it is")
        _fill(views, response, min(size_of(views), int(length)))
        return int(length)


@contextlib.contextmanager
def returned(response: Any) -> Iterator[None]:
    """Give the answer's connection back if it was read to its end, and close it otherwise."""
    try:
        yield
    finally:
        if response.length_remaining:
            response.close()
        response.release_conn()


def _fill(views: Sequence[memoryview], response: Any, size_bytes: int) -> None:
    # Through a slice that stays in the cache: as cheap as receiving into the view itself, which urllib3 does not offer.
    left = size_bytes
    for piece in slices(views):
        data = response.read(min(len(piece), left)) if left else b""
        piece[: len(data)] = data
        left -= len(data)
