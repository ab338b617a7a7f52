"""What goes wrong between a job and a real object store, and what becomes of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from cpr_contract.spec import StoreSpec
from cpr_trainer.store import (
    CredentialsRefusedError,
    ExistsError,
    Store,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreUnreachableError,
    checksum,
    connection,
    open_store,
)
from support.fault_proxy import Answer, Cut, Fault, FaultProxy, Flip, Slow, Stall, Truncate, faulty
from support.s3_servers import S3Server

pytestmark = pytest.mark.store

DATA = os.urandom(3 << 20)
#: How often an operation is tried.
ATTEMPTS = 3

Operation = Callable[[Store], object]


def write(store: Store) -> None:
    store.put("job/part", DATA)


def read(store: Store) -> bytes:
    found = bytearray(len(DATA))
    assert store.get_into("job/part", [memoryview(found)]).size_bytes == len(DATA)
    return bytes(found)


def error_document(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>Injected.</Message></Error>".encode()


@pytest.fixture
def proxy(server: S3Server) -> Iterator[FaultProxy]:
    with faulty(server.address) as proxy:
        yield proxy


@pytest.fixture
def silence_s() -> float:
    """How long a server may be silent, as in the product. Tests that wait for silence have less."""
    return connection._SILENCE_S


@pytest.fixture
def store(
    spec: StoreSpec, server: S3Server, proxy: FaultProxy, silence_s: float, monkeypatch: pytest.MonkeyPatch
) -> Store:
    """A store behind the proxy with job/part in it."""
    behind = open_store(spec, server.credentials_dir, None)
    write(behind)
    monkeypatch.setattr(connection, "_SILENCE_S", silence_s)
    through = replace(spec, endpoint=f"http://{proxy.address}", region="us-east-1")
    return open_store(through, server.credentials_dir, None)


@pytest.mark.parametrize(
    "fault",
    [
        Cut(request_bytes=100),
        Cut(request_bytes=1 << 20),
        Flip(request_bytes=1 << 20),
        Cut(answer_bytes=0),
        Cut(answer_bytes=10),
        Truncate(0),
        Truncate(10),
        Answer(500, error_document("InternalError")),
        Answer(502),
        Answer(503, error_document("SlowDown")),
    ],
    ids=repr,
)
def test_a_fault_that_passes_is_not_noticed_by_a_write(store: Store, proxy: FaultProxy, fault: Fault) -> None:
    proxy.inject(fault)
    write(store)
    assert proxy.seen == 2
    assert read(store) == DATA


@pytest.mark.parametrize(
    "fault",
    [
        Cut(request_bytes=100),
        Cut(answer_bytes=0),
        Cut(answer_bytes=1 << 20),
        Truncate(10),
        Truncate(1 << 20),
        Answer(500, error_document("InternalError")),
        Answer(503),
    ],
    ids=repr,
)
def test_a_fault_that_passes_is_not_noticed_by_a_read(store: Store, proxy: FaultProxy, fault: Fault) -> None:
    proxy.inject(fault)
    assert read(store) == DATA
    assert proxy.seen == 2


def test_a_write_that_arrives_damaged_every_time_leaves_nothing(store: Store, proxy: FaultProxy) -> None:
    proxy.inject(*[Flip(request_bytes=1 << 20)] * ATTEMPTS)
    with pytest.raises(StoreUnreachableError):
        store.put("job/other", DATA)
    assert [entry.key for entry in store.list("")] == ["job/part"]


def test_a_read_that_arrives_damaged_has_another_checksum(store: Store, proxy: FaultProxy) -> None:
    proxy.inject(Flip(answer_bytes=1 << 20))
    found = bytearray(len(DATA))
    received = store.get_into("job/part", [memoryview(found)])
    assert received.crc32c == checksum(found) != checksum(DATA)


@pytest.mark.parametrize("silence_s", [2.0])
@pytest.mark.parametrize("operation", [write, read])
def test_a_silent_server_is_given_up(store: Store, proxy: FaultProxy, operation: Operation) -> None:
    proxy.inject(*[Stall()] * ATTEMPTS)
    with pytest.raises(StoreUnreachableError, match="timed out"):
        operation(store)


@pytest.mark.parametrize("silence_s", [9.0])
def test_a_slow_server_is_waited_for(store: Store, proxy: FaultProxy, silence_s: float) -> None:
    data = bytearray(16 << 20)
    slow = Slow(len(data) / (1.33 * silence_s))  # takes longer than a server may be silent
    proxy.inject(slow, slow)
    store.put("job/slow", data)
    assert store.get_into("job/slow", [memoryview(data)]).size_bytes == len(data)
    assert proxy.seen == 2


def test_a_write_that_never_got_through_leaves_nothing(store: Store, proxy: FaultProxy) -> None:
    proxy.inject(*[Cut(request_bytes=1 << 20)] * ATTEMPTS)
    with pytest.raises(StoreUnreachableError):
        store.put("job/other", DATA)
    assert [entry.key for entry in store.list("")] == ["job/part"]


def test_a_large_write_that_breaks_off_leaves_no_upload_in_parts(
    store: Store, proxy: FaultProxy, server: S3Server, spec: StoreSpec
) -> None:
    proxy.inject(*[Cut(request_bytes=12 << 20)] * ATTEMPTS)
    with pytest.raises(StoreUnreachableError):
        store.put("job/large", bytes(16 << 20))
    # MinIO lists unfinished uploads by the exact name alone.
    assert server.client()._list_multipart_uploads(spec.bucket, prefix="job/large").uploads == []


def test_an_answer_that_is_lost_may_make_a_commit_meet_itself(store: Store, proxy: FaultProxy) -> None:
    proxy.inject(Cut(answer_bytes=0))
    with pytest.raises(ExistsError):
        store.put("job/manifest", b"committed", if_absent=True)
    assert store.get("job/manifest") == b"committed"


def test_a_store_that_is_down_is_found_again(store: Store, proxy: FaultProxy) -> None:
    proxy.down()
    for operation in (write, read):
        with pytest.raises(StoreUnreachableError):
            operation(store)
    proxy.up()
    write(store)
    assert read(store) == DATA


def test_a_busy_store_says_for_how_long(store: Store, proxy: FaultProxy) -> None:
    proxy.inject(Answer(503, error_document("SlowDown"), ("Retry-After: 7",)))
    with pytest.raises(StoreBusyError) as raised:
        write(store)
    assert raised.value.retry_after_s == 7.0
    assert proxy.seen == 1


def test_a_pause_is_never_longer_than_a_server_takes_to_start(store: Store, proxy: FaultProxy) -> None:
    proxy.inject(Answer(503, error_document("XMinioServerNotInitialized"), ("Retry-After: 120",)))
    with pytest.raises(StoreBusyError) as raised:
        write(store)
    assert raised.value.retry_after_s == 10.0


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer(400, error_document("ExpiredToken")), CredentialsRefusedError),
        (Answer(403, error_document("ExpiredTokenException")), CredentialsRefusedError),
        (Answer(403, error_document("QuotaExceeded")), StoreFullError),
        (Answer(507, error_document("XMinioStorageFull")), StoreFullError),
    ],
)
@pytest.mark.parametrize("operation", [write, read])
def test_a_refusal_is_not_asked_for_twice(
    store: Store, proxy: FaultProxy, answer: Answer, error: type[StoreError], operation: Operation
) -> None:
    proxy.inject(answer)
    with pytest.raises(error) as raised:
        operation(store)
    assert raised.value.remedy
    assert proxy.seen == 1


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer(401), CredentialsRefusedError),
        (Answer(507), StoreFullError),
        (Answer(429, b"", ("Retry-After: 3",)), StoreBusyError),
    ],
)
def test_an_answer_that_is_not_the_stores_own_counts_by_its_status(
    store: Store, proxy: FaultProxy, answer: Answer, error: type[StoreError]
) -> None:
    proxy.inject(answer)
    with pytest.raises(error):
        write(store)


def test_an_answer_that_makes_no_sense_is_none(store: Store, proxy: FaultProxy) -> None:
    for status in (200, 404):
        proxy.inject(*[Answer(status, b"<ListBucketResult><Conten")] * ATTEMPTS)
        with pytest.raises(StoreUnreachableError):
            store.list("")


def test_a_listing_that_is_cut_is_no_shorter_listing(store: Store, proxy: FaultProxy) -> None:
    for number in range(20):
        store.put(f"job/many-{number:02d}", b"")
    proxy.inject(Truncate(2000))
    assert len(store.list("job/many")) == 20
