"""What goes wrong with a real object store, and what the job is told."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract.spec import StoreSpec
from cpr_trainer.store import (
    BucketMissingError,
    Store,
    StoreError,
    StoreUnreachableError,
    in_parallel,
    open_store,
)
from support.s3_servers import S3Server, ServerOf, free_port, write_credentials

pytestmark = pytest.mark.store


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
    with free_port() as port:
        spec = StoreSpec(f"http://127.0.0.1:{port}", None, "bucket", "")
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


def test_a_missing_bucket_is_named(server: S3Server, spec: StoreSpec) -> None:
    store = open_store(replace(spec, bucket="not-there"), server.credentials_dir, None)
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


def test_a_bucket_that_vanishes_and_comes_back(server: S3Server, spec: StoreSpec) -> None:
    store, client = open_store(spec, server.credentials_dir, None), server.client()
    store.put("job/a", b"a")
    store.delete(["job/a"])
    client.remove_bucket(spec.bucket)
    assert [error.reason for error in complaints(store)] == ["BucketMissing"] * 5
    client.make_bucket(spec.bucket)
    store.put("job/a", b"b")
    assert store.get("job/a") == b"b"


def test_a_listing_and_a_deletion_have_no_end(server: S3Server, spec: StoreSpec) -> None:
    store = open_store(spec, server.credentials_dir, None)
    keys = [f"job/{number:04d}" for number in range(1100)]  # S3 answers with a thousand at a time
    in_parallel(lambda key: store.put(key, b""), keys)
    assert [entry.key for entry in store.list("job/")] == keys
    store.delete(keys)
    assert store.list("") == ()


def test_something_else_than_a_store_is_said_to_be_that(tmp_path: Path, server: S3Server) -> None:
    spec = StoreSpec(server.endpoint.replace("http://", "https://"), "us-east-1", "bucket", "")
    with pytest.raises(StoreUnreachableError, match="certificate"):
        open_store(spec, write_credentials(tmp_path, "a", "b"), None).get("job/a")


def test_a_server_nobody_vouches_for_is_refused(server_of: ServerOf) -> None:
    server = server_of("minio+tls")
    spec = server.new_bucket()
    open_store(spec, server.credentials_dir, server.ca_file).put("job/a", b"a")
    stranger = open_store(spec, server.credentials_dir, None)
    assert [error.reason for error in complaints(stranger)] == ["StoreUnreachable"] * 5
    with pytest.raises(StoreUnreachableError, match="caBundle"):
        stranger.list("")


def test_the_prefix_is_the_stores_own(spec: StoreSpec, server: S3Server) -> None:
    open_store(replace(spec, prefix="/team/x/"), server.credentials_dir, None).put("job/a", b"a")
    assert [entry.key for entry in open_store(spec, server.credentials_dir, None).list("")] == ["team/x/job/a"]
