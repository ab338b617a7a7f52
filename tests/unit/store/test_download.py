"""A response must have the length in its header, or in the listing."""

from __future__ import annotations

import io
from collections.abc import Mapping

import pytest
import urllib3

from cpr_trainer.store import checksum
from cpr_trainer.store.objects import download, download_into
from support.scripted_http import answer, scripted


def listing(size_bytes: int) -> urllib3.HTTPResponse:
    entry = f"<Key>name</Key><Size>{size_bytes}</Size><LastModified>2026-01-01T00:00:00Z</LastModified>"
    page = f"<ListBucketResult><Contents>{entry}</Contents></ListBucketResult>"
    return answer(200, page.encode())


@pytest.mark.parametrize("length", [{"Content-Length": "5"}, {}, {"Content-Length": "many"}])
def test_response_that_ends_early_is_an_error(length: Mapping[str, str]) -> None:
    connection, _ = scripted(answer(200, b"abc", length), listing(5))
    with pytest.raises(urllib3.exceptions.HTTPError):
        download_into(connection, "bucket", "name", [memoryview(bytearray(5))])
    connection, _ = scripted(answer(200, b"abc", length), listing(5))
    with pytest.raises(urllib3.exceptions.HTTPError):
        download(connection, "bucket", "name")


@pytest.mark.parametrize(("capacity", "requests"), [(5, 1), (2, 2), (9, 2)])
def test_response_without_a_length_is_compared_with_the_listing(capacity: int, requests: int) -> None:
    """A caller with the expected length needs no listing."""
    connection, http = scripted(answer(200, b"abcde"), listing(5))
    found = bytearray(capacity)
    received = download_into(connection, "bucket", "name", [memoryview(found)])
    assert (received.size_bytes, received.crc32c) == (5, checksum(b"abcde"[:capacity]))
    assert found.startswith(b"abcde"[:capacity])
    assert len(http.sent) == requests


def test_partly_read_response_is_closed() -> None:
    response = answer(200, b"abcde", {"Content-Length": "5"})
    connection, _ = scripted(response)
    assert download_into(connection, "bucket", "name", [memoryview(bytearray(2))]).size_bytes == 5
    assert response.closed


def test_response_in_small_pieces_is_joined() -> None:
    body = bytes(range(250)) * 10

    class Drops(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(min(size or 0, 7))

    connection, _ = scripted(
        urllib3.HTTPResponse(Drops(body), status=200, headers={"content-length": str(len(body))}, preload_content=False)
    )
    buffers = [bytearray(100), bytearray(2390)]
    received = download_into(connection, "bucket", "name", [memoryview(capacity) for capacity in buffers])
    assert b"".join(buffers) == body[:2490]
    assert (received.size_bytes, received.crc32c) == (2500, checksum(body[:2490]))
