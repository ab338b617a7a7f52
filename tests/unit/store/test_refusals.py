"""Every refusal of a store becomes the right error, with what to do about it."""

import errno
import os
from pathlib import Path

import pytest
import urllib3
from minio.error import ServerError

from cpr_contract.spec import StoreSpec
from cpr_trainer.store import StoreFullError, StoreUnreachableError, open_store
from cpr_trainer.store.folder import FolderStore, _store_error
from cpr_trainer.store.s3_errors import refusal, translated


@pytest.mark.parametrize(
    ("code", "reason", "remedy"),
    [
        ("NoSuchKey", "ObjectMissing", "deleted"),
        ("PreconditionFailed", "ObjectExists", "prefix"),
        ("NoSuchBucket", "BucketMissing", "snapshots.store.bucket"),
        ("AccessDenied", "CredentialsRefused", "credentialsSecret"),
        ("ExpiredToken", "CredentialsRefused", "credentialsSecret"),
        ("AuthorizationHeaderMalformed", "CredentialsRefused", "region"),
        ("XMinioStorageFull", "StoreFull", "snapshots.keep"),
        ("QuotaExceeded", "StoreFull", "quota"),
        ("ConditionalRequestConflict", "StoreUnreachable", "again"),
        ("SlowDown", "StoreUnreachable", "again"),
        (None, "StoreUnreachable", "again"),
    ],
)
def test_codes_of_s3(code: str | None, reason: str, remedy: str) -> None:
    error = refusal(code, "What the server says.", "bucket", "job/a")
    assert error.reason == reason
    assert remedy in error.remedy


@pytest.mark.parametrize(
    "error",
    [
        ServerError("server failed with HTTP status code 500", 500),
        urllib3.exceptions.ProtocolError("broken"),
        urllib3.exceptions.MaxRetryError(urllib3.HTTPConnectionPool("h"), "/", OSError("refused")),
        TimeoutError("timed out"),
    ],
)
def test_failures_on_the_way_to_s3(error: Exception) -> None:
    with pytest.raises(StoreUnreachableError, match=r"refused|broken|500|timed out"), translated("bucket", "key"):
        raise error


def test_an_error_of_the_caller_is_no_error_of_the_store() -> None:
    with pytest.raises(ZeroDivisionError), translated("bucket", "key"):
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
    error = _store_error(OSError(number, "said the system"), Path("/data"))
    assert error.reason == reason
    assert "/data" in error.message
    assert error.remedy


@pytest.mark.parametrize("key", ["", "/etc/passwd", "../a", "a/../../b", "a//b", "a/"])
def test_a_key_never_leaves_the_folder(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match="no key"):
        FolderStore(tmp_path / "root").put(key, b"")


def test_a_folders_place_is_endpoint_bucket_prefix(tmp_path: Path) -> None:
    open_store(StoreSpec(tmp_path.as_uri() + "/a%20b", None, "bucket", "x/y"), None, None).put("job/a", b"a")
    assert (tmp_path / "a b" / "bucket" / "x" / "y" / "job" / "a").read_bytes() == b"a"


def test_what_a_killed_writer_leaves_is_listed_and_deleted(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "a.writing-0123").write_bytes(b"ha")
    store.put("job/b", b"b")
    assert [entry.key for entry in store.list("job/")] == ["job/a.writing-0123", "job/b"]
    store.delete(["job/a.writing-0123", "job/b"])
    assert not (tmp_path / "job").exists()


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FolderStore(tmp_path)
    store.put("job/a", b"a")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreFullError):
        store.put("job/b", b"b")
    assert [entry.key for entry in store.list("")] == ["job/a"]


def full(_descriptor: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")
