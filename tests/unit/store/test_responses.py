"""Each error response of a store becomes the matching error, with a remedy."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
import urllib3

from cpr_contract.spec import StoreSpec
from cpr_trainer.store import MissingError, StoreError, StoreFullError, StoreUnreachableError, open_store
from cpr_trainer.store.folder import FolderStore, _translated
from cpr_trainer.store.responses import ErrorResponse, Request, read_error, store_error, translated
from support.scripted_http import answer

ABOUT = Request("http://store:9000", "data.store", "GET", "bucket", "job/a")
ERROR = b"<?xml version='1.0'?><Error><Code>%s</Code><Message>Said the \xc2\x9b31mserver.</Message></Error>"


def error_for(status: int, code: str | None = None, method: str = "GET", key: str = "job/a") -> StoreError:
    return store_error(replace(ABOUT, method=method, key=key), ErrorResponse(status, code, "Said the server.", {}))


@pytest.mark.parametrize(
    ("code", "status", "reason", "remedy"),
    [
        ("NoSuchKey", 404, "ObjectMissing", "deleted"),
        ("PreconditionFailed", 412, "ObjectChanged", "written again"),
        ("NoSuchBucket", 404, "BucketMissing", "snapshots.store.bucket"),
        ("AccessDenied", 403, "CredentialsRefused", "data.store.credentialsSecret"),
        ("ExpiredToken", 400, "CredentialsRefused", "credentialsSecret"),
        ("AuthorizationHeaderMalformed", 400, "CredentialsRefused", "region"),
        ("RequestTimeTooSkewed", 403, "CredentialsRefused", "clock"),
        ("XMinioStorageFull", 507, "StoreFull", "snapshots.keep"),
        ("QuotaExceeded", 403, "StoreFull", "quota"),
        ("ConditionalRequestConflict", 409, "StoreUnreachable", "again"),
        ("SlowDown", 503, "StoreBusy", "again"),
        ("NotImplemented", 501, "StoreUnsuitable", "docs/store.md"),
        ("MethodNotAllowed", 405, "StoreUnsuitable", "docs/store.md"),
        ("PermanentRedirect", 301, "StoreUnreachable", "data.store.endpoint and its region"),
    ],
)
def test_code_of_s3_decides(code: str, status: int, reason: str, remedy: str) -> None:
    error = error_for(status, code)
    assert error.reason == reason
    assert remedy in error.remedy


@pytest.mark.parametrize(
    ("status", "method", "key", "reason"),
    [
        (401, "GET", "job/a", "CredentialsRefused"),
        (403, "PUT", "job/a", "CredentialsRefused"),
        (404, "GET", "job/a", "ObjectMissing"),
        (404, "HEAD", "job/a", "ObjectMissing"),
        (404, "PUT", "job/a", "BucketMissing"),
        (404, "GET", "", "BucketMissing"),
        (404, "POST", "", "BucketMissing"),
        (412, "PUT", "job/a", "ObjectExists"),
        (412, "GET", "job/a", "ObjectChanged"),
        (416, "GET", "job/a", "ObjectChanged"),
        (405, "PUT", "job/a", "StoreUnsuitable"),
        (413, "PUT", "job/a", "StoreUnsuitable"),
        (501, "PUT", "job/a", "StoreUnsuitable"),
        (307, "GET", "job/a", "StoreUnreachable"),
        (429, "GET", "job/a", "StoreBusy"),
        (503, "GET", "job/a", "StoreBusy"),
        (507, "PUT", "job/a", "StoreFull"),
        (500, "GET", "job/a", "StoreUnreachable"),
    ],
)
@pytest.mark.parametrize("code", [None, "NobodyKnows"])
def test_status_decides_without_a_known_code(status: int, method: str, key: str, reason: str, code: str | None) -> None:
    error = error_for(status, code, method, key)
    assert error.reason == reason
    assert error.remedy


def test_missing_ability_names_the_header_and_some_servers_alternative() -> None:
    headers = ("X-Amz-Checksum-Crc32c",)
    error = store_error(
        replace(ABOUT, method="PUT", headers=headers), ErrorResponse(501, "NotImplemented", "A header.", {})
    )
    assert "does not implement PUT with X-Amz-Checksum-Crc32c (NotImplemented: A header)" in error.message
    assert "s3proxy.ignore-unknown-headers=true" in error.remedy


@pytest.mark.parametrize("kind", ["application/xml", "text/xml", "text/plain", ""])
def test_error_document_of_any_content_type_is_read(kind: str) -> None:
    document = ERROR % b"NoSuchKey"
    assert isinstance(read_error(ABOUT, answer(404, document, {"Content-Type": kind})), MissingError)


def test_message_of_a_server_cannot_steer_a_terminal() -> None:
    error = read_error(ABOUT, answer(500, ERROR % b"InternalError"))
    assert "InternalError: Said the 31mserver" in error.message


@pytest.mark.parametrize(
    ("status", "reason"), [(403, "CredentialsRefused"), (404, "StoreUnreachable"), (412, "ObjectChanged")]
)
def test_page_of_another_server_is_an_outage(status: int, reason: str) -> None:
    """A save is not missing because a proxy has no route to the store."""
    error = read_error(ABOUT, answer(status, b"<html><body>\x1b[31mno route", {"Content-Type": "text/html"}))
    assert error.reason == reason
    if reason == "StoreUnreachable":
        assert "http://store:9000 does not answer as an S3 store: HTTP status 404, text/html" in error.message
        assert "\x1b" not in error.message
        assert "data.store.endpoint" in error.remedy


@pytest.mark.parametrize("status", [404, 412])
def test_response_without_a_document_is_from_the_store(status: int) -> None:
    assert read_error(ABOUT, answer(status)).reason in {"ObjectMissing", "ObjectChanged"}


@pytest.mark.parametrize(
    "error",
    [
        urllib3.exceptions.ProtocolError("broken"),
        urllib3.exceptions.MaxRetryError(urllib3.HTTPConnectionPool("h"), "/", OSError("refused")),
        TimeoutError("timed out"),
    ],
)
def test_connection_errors_are_outages(error: Exception) -> None:
    with pytest.raises(StoreUnreachableError, match=r"refused|broken|timed out"), translated("snapshots.store"):
        raise error


def test_error_of_the_caller_is_not_translated() -> None:
    with pytest.raises(ZeroDivisionError), translated("snapshots.store"):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOSPC, "StoreFull"),
        (errno.EDQUOT, "StoreFull"),
        (errno.EACCES, "CredentialsRefused"),
        (errno.EROFS, "CredentialsRefused"),
        (errno.EIO, "StoreUnreachable"),
        (errno.ESTALE, "StoreUnreachable"),
    ],
)
def test_errors_of_a_folder(number: int, reason: str) -> None:
    with pytest.raises(StoreError, match="/data") as raised, _translated("key", Path("/data")):
        raise OSError(number, "said the system")
    assert raised.value.reason == reason
    assert raised.value.remedy


@pytest.mark.parametrize("key", ["", "/etc/passwd", "../a", "a/../../b", "a//b", "a/"])
def test_key_never_leaves_the_folder(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match="not a key"):
        FolderStore(tmp_path / "root").put(key, b"")


def test_folder_store_is_at_endpoint_bucket_prefix(tmp_path: Path) -> None:
    open_store(StoreSpec(tmp_path.as_uri() + "/a%20b", None, "bucket", "x/y"), None, None).put("job/a", b"a")
    assert (tmp_path / "a b" / "bucket" / "x" / "y" / "job" / "a").read_bytes() == b"a"


def test_unfinished_file_is_listed_and_deleted(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "a.writing-0123").write_bytes(b"ha")
    store.put("job/b", b"b")
    assert [entry.key for entry in store.list("job/")] == ["job/a.writing-0123", "job/b"]
    store.delete(["job/a.writing-0123", "job/b"])
    assert not (tmp_path / "job").exists()


def test_failed_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FolderStore(tmp_path)
    store.put("job/a", b"a")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreFullError):
        store.put("job/b", b"b")
    assert [entry.key for entry in store.list("")] == ["job/a"]


def full(_descriptor: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")
