"""What goes wrong with a real object store, and what the job is told."""

from __future__ import annotations

import gzip
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract.spec import StoreSpec
from cpr_trainer.errors import DataError
from cpr_trainer.store import (
    BucketMissingError,
    CredentialsRefusedError,
    Store,
    StoreError,
    StoreUnreachableError,
    open_store,
    open_uri,
)
from support.minio import MinioServer, free_port, write_credentials

pytestmark = pytest.mark.store


@pytest.fixture
def spec(minio: MinioServer, bucket: str) -> StoreSpec:
    return StoreSpec(minio.endpoint, None, bucket, "")


def complaints(store: Store) -> list[StoreError]:
    """The errors of every operation."""
    operations = (
        lambda: store.put("job/a", b"a"),
        lambda: store.put("job/a", b"a", if_absent=True),
        lambda: store.get("job/a"),
        lambda: store.list("job/"),
        lambda: store.delete(["job/a"]),
    )
    found = []
    for operation in operations:
        with pytest.raises(StoreError) as raised:
            operation()
        found.append(raised.value)
    return found


def test_a_store_that_is_down_is_unreachable(tmp_path: Path) -> None:
    spec = StoreSpec(f"http://127.0.0.1:{free_port()}", None, "bucket", "")
    store = open_store(spec, write_credentials(tmp_path, "a", "b"), None)
    assert [error.reason for error in complaints(store)] == ["StoreUnreachable"] * 5


@pytest.mark.timeout(60)
def test_a_store_that_swallows_packets_is_given_up(tmp_path: Path) -> None:
    with socket.socket() as listener:  # its queue is full, so a connection is never answered
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        with socket.create_connection(address):
            spec = StoreSpec(f"http://127.0.0.1:{address[1]}", "us-east-1", "bucket", "")
            store = open_store(spec, write_credentials(tmp_path, "a", "b"), None)
            with pytest.raises(StoreUnreachableError):
                store.get("job/a")


def test_a_missing_bucket_is_named(minio: MinioServer, spec: StoreSpec) -> None:
    store = open_store(replace(spec, bucket="not-there"), minio.credentials_dir, None)
    found = complaints(store)
    assert [error.reason for error in found] == ["BucketMissing"] * 5
    assert "not-there" in found[0].message
    assert "snapshots.store.bucket" in found[0].remedy


def test_a_bucket_that_cannot_be_is_refused_at_once(spec: StoreSpec) -> None:
    with pytest.raises(BucketMissingError, match="No bucket can be named"):
        open_store(replace(spec, bucket="No Bucket!"), None, None)


@pytest.mark.parametrize(("access", "secret"), [("somebody", "else-entirely"), ("cprjob-test", "wrong-secret")])
def test_wrong_credentials_are_refused(spec: StoreSpec, tmp_path: Path, access: str, secret: str) -> None:
    found = complaints(open_store(spec, write_credentials(tmp_path, access, secret), None))
    assert [error.reason for error in found] == ["CredentialsRefused"] * 5
    assert "credentialsSecret" in found[0].remedy


def test_credentials_that_are_not_there_are_refused(spec: StoreSpec, tmp_path: Path) -> None:
    with pytest.raises(CredentialsRefusedError, match="accessKey"):
        open_store(spec, tmp_path, None).list("")


def test_credentials_are_read_again_when_they_change(spec: StoreSpec, minio: MinioServer, tmp_path: Path) -> None:
    folder = write_credentials(tmp_path, "somebody", "else-entirely")
    store = open_store(spec, folder, None)
    with pytest.raises(CredentialsRefusedError):
        store.put("job/a", b"a")
    for name in ("accessKey", "secretKey"):
        (folder / name).write_bytes((minio.credentials_dir / name).read_bytes())
    store.put("job/a", b"a")
    assert store.get("job/a") == b"a"


def test_without_files_the_environment_is_asked(
    spec: StoreSpec, minio: MinioServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", (minio.credentials_dir / "accessKey").read_text().strip())
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", (minio.credentials_dir / "secretKey").read_text().strip())
    store = open_store(spec, None, None)
    store.put("job/a", b"a")
    assert store.list("") == ("job/a",)


def test_something_else_than_a_store_is_said_to_be_that(tmp_path: Path, minio: MinioServer) -> None:
    spec = StoreSpec(minio.endpoint.replace("http://", "https://"), "us-east-1", "bucket", "")
    with pytest.raises(StoreUnreachableError, match="certificate"):
        open_store(spec, write_credentials(tmp_path, "a", "b"), None).get("job/a")


def test_the_prefix_is_the_stores_own(spec: StoreSpec, minio: MinioServer) -> None:
    open_store(replace(spec, prefix="/team/x/"), minio.credentials_dir, None).put("job/a", b"a")
    assert open_store(spec, minio.credentials_dir, None).list("") == ("team/x/job/a",)


def test_data_is_streamed_from_s3(spec: StoreSpec, minio: MinioServer) -> None:
    text = b"1\t2\t3\n" * 500_000
    open_store(spec, minio.credentials_dir, None).put("clicks/day 0.gz", gzip.compress(text, 1))
    with open_uri(f"s3://{spec.bucket}/clicks/day%200.gz", spec, minio.credentials_dir, None) as stream:
        assert gzip.GzipFile(fileobj=stream).read() == text


def test_a_broken_stream_goes_on_where_it_stopped(spec: StoreSpec, minio: MinioServer) -> None:
    data = os.urandom(4 << 20)
    open_store(spec, minio.credentials_dir, None).put("clicks", data)
    with open_uri(f"s3://{spec.bucket}/clicks", spec, minio.credentials_dir, None) as stream:
        read = stream.read(1000)
        stream.raw._response.close()  # type: ignore[attr-defined] -- as if the connection broke
        assert read + stream.read() == data


def test_a_stream_never_joins_two_versions(spec: StoreSpec, minio: MinioServer) -> None:
    store = open_store(spec, minio.credentials_dir, None)
    store.put("clicks", bytes(4 << 20))
    with open_uri(f"s3://{spec.bucket}/clicks", spec, minio.credentials_dir, None) as stream:
        stream.read(1000)
        store.put("clicks", b"\x01" * (4 << 20))
        stream.raw._response.close()  # type: ignore[attr-defined]
        with pytest.raises(StoreError):
            stream.read()


@pytest.mark.parametrize("uri", ["s3://{bucket}/nothing", "s3://no-such-bucket/clicks", "s3://{bucket}/", "ftp://x/y"])
def test_data_that_is_not_there_is_an_error_of_the_data(spec: StoreSpec, minio: MinioServer, uri: str) -> None:
    uri = uri.format(bucket=spec.bucket)
    with pytest.raises(DataError, match=uri):
        open_uri(uri, spec, minio.credentials_dir, None)
