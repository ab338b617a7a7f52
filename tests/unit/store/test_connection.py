"""Requests to S3: regions, redirections, pages of listings, deletions."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest
import urllib3

from cpr_trainer.store import StoreError, StoreUnreachableError, StoreUnsuitableError
from cpr_trainer.store.connection import Upload
from cpr_trainer.store.objects import delete_objects, list_objects
from support.scripted_http import Sent, answer, scripted


def page(*keys: str, following: str | None = None, truncated: bool = False) -> urllib3.HTTPResponse:
    entries = "".join(
        f"<Contents><Key>{key}</Key><Size>1</Size><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
        for key in keys
    )
    mark = f"<NextContinuationToken>{following}</NextContinuationToken>" if following else ""
    more = str(truncated or bool(following)).lower()
    text = f"<ListBucketResult><IsTruncated>{more}</IsTruncated>{mark}{entries}</ListBucketResult>"
    return answer(200, text.encode(), {"Content-Type": "text/xml"})


def position_of(sent: Sent) -> dict[str, str]:
    query = parse_qs(urlsplit(sent.url).query, keep_blank_values=True)
    return {name: query[name][0] for name in ("continuation-token", "start-after") if name in query}


def test_page_continues_by_the_token_alone() -> None:
    connection, http = scripted(page("a", "b", following="t1"), page("c", following="t2"), page("d"))
    assert [each.key for each in list_objects(connection, "bucket", "")] == ["a", "b", "c", "d"]
    assert [position_of(each) for each in http.sent] == [{}, {"continuation-token": "t1"}, {"continuation-token": "t2"}]


def test_page_without_a_token_continues_after_its_last_key() -> None:
    connection, http = scripted(page("a", "b", truncated=True), page("c"))
    assert [each.key for each in list_objects(connection, "bucket", "")] == ["a", "b", "c"]
    assert [position_of(each) for each in http.sent] == [{}, {"start-after": "b"}]


@pytest.mark.parametrize(
    "pages",
    [
        [page("a", following="t"), page("a", following="t")],
        [page("a", truncated=True), page("a", truncated=True)],
        [page(truncated=True)],
    ],
    ids=["token", "key", "empty"],
)
def test_server_that_lists_one_page_for_ever_is_unsuitable(pages: list[urllib3.HTTPResponse]) -> None:
    connection, _ = scripted(*pages)
    with pytest.raises(StoreUnsuitableError, match="lists the same page again"):
        list(list_objects(connection, "bucket", ""))


@pytest.mark.parametrize(
    "body",
    [
        b"<!doctype html><html><body>Sign in</body></html>",
        b"<html><body>Sign in</body></html>",
        b"",
        b"<ListBucketResult><Contents><Key>a</Key></Contents></ListBucketResult>",
        b"<ListBucketResult><Conten",
        b"<?xml version='1.0' encoding='nonsense'?><ListBucketResult/>",
    ],
)
def test_invalid_listing_names_the_endpoint(body: bytes) -> None:
    connection, _ = scripted(answer(200, body, {"Content-Type": "text/html"}))
    with pytest.raises(StoreUnreachableError, match="http://store:9000") as raised:
        list(list_objects(connection, "bucket", ""))
    assert "snapshots.store.endpoint" in raised.value.remedy


def deleted(*codes: str) -> urllib3.HTTPResponse:
    errors = "".join(f"<Error><Key>job/{code}</Key><Code>{code}</Code></Error>" for code in codes)
    return answer(200, f"<DeleteResult>{errors}</DeleteResult>".encode())


def test_deletion_counts_an_absent_object_as_deleted() -> None:
    connection, http = scripted(deleted("NoSuchKey", "NoSuchVersion"), deleted())
    delete_objects(connection, "bucket", [f"job/{number}" for number in range(1001)])
    assert [each.body.count(b"<Key>") for each in http.sent] == [1000, 1]


@pytest.mark.parametrize(
    ("code", "reason"), [("AccessDenied", "CredentialsRefused"), ("InternalError", "StoreUnreachable")]
)
def test_deletion_that_fails_is_an_error(code: str, reason: str) -> None:
    connection, _ = scripted(deleted("NoSuchKey", code))
    with pytest.raises(StoreError) as raised:
        delete_objects(connection, "bucket", ["job/a"])
    assert raised.value.reason == reason


@pytest.mark.parametrize("status", [307, 308])
def test_redirection_is_followed_with_a_signature_of_its_own(status: int) -> None:
    target = {"Location": "http://bucket.elsewhere:9000/job/a?rk=1", "x-amz-bucket-region": "eu-west-1"}
    connection, http = scripted(answer(status, b"", target), answer(200))
    connection.send("PUT", "bucket", "job/a", body=Upload([memoryview(b"data")])).close()
    first, second = http.sent
    assert (second.method, second.url, second.body) == ("PUT", target["Location"], b"data")
    assert first.headers["Host"] == "store:9000"
    assert second.headers["Host"] == "bucket.elsewhere:9000"
    assert "/eu-west-1/s3/aws4_request" in second.headers["Authorization"]
    assert first.headers["Authorization"] != second.headers["Authorization"]


@pytest.mark.parametrize(
    ("status", "place"), [(301, "http://elsewhere/"), (307, "ftp://elsewhere/"), (307, ""), (302, "http://elsewhere/")]
)
def test_redirection_that_is_not_followed_is_named(status: int, place: str) -> None:
    connection, http = scripted(answer(status, b"", {"Location": place, "x-amz-bucket-region": "eu-west-1"}))
    with pytest.raises(StoreUnreachableError, match="region eu-west-1") as raised:
        connection.send("GET", "bucket", "job/a")
    assert place in raised.value.message
    assert "snapshots.store.endpoint" in raised.value.remedy
    assert len(http.sent) == 1


def test_redirections_end() -> None:
    connection, http = scripted(*(answer(307, b"", {"Location": "http://store:9000/again"}) for _ in range(9)))
    with pytest.raises(StoreUnreachableError, match="redirects"):
        connection.send("GET", "bucket", "job/a")
    assert len(http.sent) < 5


@pytest.mark.parametrize(
    ("document", "region"),
    [
        (b"<LocationConstraint>eu-2</LocationConstraint>", "eu-2"),
        (b'<LocationConstraint xmlns="http://s3.amazonaws.com/doc/2006-03-01/"/>', "us-east-1"),
        (b"<LocationConstraint>EU</LocationConstraint>", "eu-west-1"),
        (
            b"<CreateBucketConfiguration><LocationConstraint>eu-2</LocationConstraint></CreateBucketConfiguration>",
            "eu-2",
        ),
    ],
)
def test_region_without_a_field_is_requested_once(document: bytes, region: str) -> None:
    connection, http = scripted(answer(200, document), answer(200), answer(200), region=None)
    for _ in range(2):
        connection.send("GET", "bucket", "job/a").close()
    assert [urlsplit(each.url).query for each in http.sent] == ["location=", "", ""]
    assert f"/{region}/s3/aws4_request" in http.sent[-1].headers["Authorization"]
