"""Followers read folders, web servers and S3 by the standard library alone."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from minio.credentials.credentials import Credentials
from minio.signer import sign_v4_s3
from minio.time import to_amz_date

from cprjob_serving import ChainError, SourceError
from cprjob_serving.sources import _Signer, fetch, read, source_of


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the name in the base class
        """Log nothing."""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A web server of a folder."""
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(tmp_path))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_objects_are_read_and_compared_with_their_digests(tmp_path: Path, url: str) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a b").write_bytes(b"content")
    digest = "ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73"
    for uri in (tmp_path.as_uri(), url):
        source = source_of(uri)
        assert read(source, "files/a b") == b"content"
        assert read(source, "files/missing") is None
        fetch(source, "files/a b", tmp_path / "to" / "x", 7, digest)
        assert (tmp_path / "to" / "x").read_bytes() == b"content"
        with pytest.raises(ChainError, match="is not what was published"):
            fetch(source, "files/a b", tmp_path / "to" / "x", 7, "0" * 64)


def test_uri_is_refused_with_the_remedy() -> None:
    for wrong in ("gs://models", "file://", "s3:///x", "models"):
        with pytest.raises(SourceError, match="give file:///folder, http"):
            source_of(wrong, {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s"})
    with pytest.raises(SourceError, match="needs AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        source_of("s3://models/clicks", {})
    with pytest.raises(SourceError, match="cannot be read"):
        read(source_of("http://127.0.0.1:1/models"), "chain/current.json")


@pytest.mark.parametrize("token", ["", "session"])
def test_requests_to_s3_are_signed_as_by_its_client(token: str) -> None:
    url, now = "http://host:9000/bucket/clicks/files/a%20b", datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
    signer = _Signer("access", "secret", token, "eu-west-1")
    ours = signer.headers(url, now)
    given: dict[str, str | list[str] | tuple[str]] = {
        name: value for name, value in ours.items() if name != "Authorization"
    }
    given["Host"] = "host:9000"
    assert given["x-amz-date"] == to_amz_date(now)
    credentials = Credentials("access", "secret", token or None)
    digest = ours["x-amz-content-sha256"]
    theirs = sign_v4_s3(
        method="GET",
        url=urlsplit(url),
        region="eu-west-1",
        headers=given,
        credentials=credentials,
        content_sha256=digest,
        date=now,
    )
    assert ours["Authorization"] == theirs["Authorization"]
