"""An answer is believed only if it says how long it is, and is that long."""

from __future__ import annotations

import io

import pytest
import urllib3

from cpr_trainer.store.download import download


class Client:
    """Gives one answer."""

    def __init__(self, body: bytes, **headers: str) -> None:
        self.answer = urllib3.HTTPResponse(io.BytesIO(body), headers=headers, preload_content=False)

    def get_object(self, _bucket: str, _name: str) -> urllib3.HTTPResponse:
        return self.answer


@pytest.mark.parametrize("headers", [{}, {"content-length": "many"}])
def test_an_answer_of_unknown_length_is_none(headers: dict[str, str]) -> None:
    with pytest.raises(urllib3.exceptions.HTTPError):
        download(Client(b"abc", **headers), "bucket", "name", [memoryview(bytearray(3))])  # type: ignore[arg-type]


def test_an_answer_shorter_than_it_says_is_none() -> None:
    client = Client(b"abc", **{"content-length": "5"})
    with pytest.raises(urllib3.exceptions.HTTPError):
        download(client, "bucket", "name", [memoryview(bytearray(5))])  # type: ignore[arg-type]


def test_an_answer_that_was_not_read_to_its_end_is_closed() -> None:
    client = Client(b"abcde", **{"content-length": "5"})
    assert download(client, "bucket", "name", [memoryview(bytearray(2))]).size_bytes == 5  # type: ignore[arg-type]
    assert client.answer.closed
