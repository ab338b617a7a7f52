"""One download, from the socket into the caller's memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import urllib3
from minio import Minio

from cpr_trainer.store.buffers import extended, size_of, slices
from cpr_trainer.store.protocol import Received


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
