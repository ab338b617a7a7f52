"""An answer is believed only if it says how long it is, and is that long."""

from __future__ import annotations

import io
from collections.abc import Mapping

import pytest
import urllib3

from cpr_trainer.store import checksum
from cpr_trainer.store.s3 import download


class Client:
    """Gives one answer."""

    def __init__(self, body: bytes, headers: Mapping[str, str], *, counts: bool = True) -> None:
        self.answer = urllib3.HTTPResponse(
            io.BytesIO(body), headers=headers, preload_content=False, enforce_content_length=counts
        )

    def get_object(self, _bucket: str, _name: str) -> urllib3.HTTPResponse:
        return self.answer


@pytest.mark.parametrize(
    ("length", "counts"), [(None, True), ("many", True), ("5", True), ("5", False)], ids=["none", "odd", "5", "5 alone"]
)
def test_an_answer_of_unknown_length_or_shorter_than_it_says_is_none(length: str | None, *, counts: bool) -> None:
    client = Client(b"abc", {} if length is None else {"content-length": length}, counts=counts)
    with pytest.raises(urllib3.exceptions.HTTPError):
        download(client, "bucket", "name", [memoryview(bytearray(5))])  # type: ignore[arg-type]


def test_an_answer_that_was_not_read_to_its_end_is_closed() -> None:
    client = Client(b"abcde", {"content-length": "5"})
    assert download(client, "bucket", "name", [memoryview(bytearray(2))]).size_bytes == 5  # type: ignore[arg-type]
    assert client.answer.closed


def test_what_comes_in_drops_is_put_together() -> None:
    body = bytes(range(250)) * 10

    class Drops(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(min(size or 0, 7))

    client = Client(b"", {"content-length": "2500"})
    client.answer = urllib3.HTTPResponse(Drops(body), headers={"content-length": "2500"}, preload_content=False)
    rooms = [bytearray(100), bytearray(2390)]
    received = download(client, "bucket", "name", [memoryview(room) for room in rooms])  # type: ignore[arg-type]
    assert b"".join(rooms) == body[:2490]
    assert (received.size_bytes, received.crc32c) == (2500, checksum(body[:2490]))
