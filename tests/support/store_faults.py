"""Faults between a job and an S3 server, injected by a proxy. Folders of tests bind the cases to their servers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from cpr_contract.spec import StoreSpec
from cpr_trainer.errors import DataError
from cpr_trainer.store import (
    CredentialsRefusedError,
    ExistsError,
    MissingError,
    Store,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreUnreachableError,
    StoreUnsuitableError,
    Uris,
    Version,
    checksum,
    connection,
    interface,
    open_store,
)
from support.fault_proxy import Answer, Cut, Fault, FaultProxy, Flip, Truncate, faulty
from support.s3_servers import S3Server

DATA = os.urandom(3 << 20)
#: Number of attempts of an operation.
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


class Proxied:
    """Fixtures: a store with the object job/part, behind a proxy in front of the folder's `server`."""

    @pytest.fixture
    def proxy(self, server: S3Server) -> Iterator[FaultProxy]:
        with faulty(server.address) as proxy:
            yield proxy

    @pytest.fixture
    def idle_timeout_s(self) -> float:
        """The idle timeout of connections: the product's, unless a test is parametrised with another."""
        return connection._IDLE_TIMEOUT_S

    @pytest.fixture
    def store(
        self,
        spec: StoreSpec,
        server: S3Server,
        proxy: FaultProxy,
        idle_timeout_s: float,
        monkeypatch: pytest.MonkeyPatch,
    ) -> Store:
        write(open_store(spec, server.credentials_dir, None))
        monkeypatch.setattr(connection, "_IDLE_TIMEOUT_S", idle_timeout_s)
        monkeypatch.setattr(interface, "_FIRST_PAUSE_S", 0.001)  # pauses before second attempts
        through = replace(spec, endpoint=f"http://{proxy.address}", region="us-east-1")
        return open_store(through, server.credentials_dir, None)


class FaultSuite(Proxied):
    """Faults that end a request at once."""

    @pytest.mark.parametrize(
        "fault",
        [
            Cut(request_bytes=100),
            Cut(request_bytes=1 << 20),
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
    def test_write_survives_one_fault(self, store: Store, proxy: FaultProxy, fault: Fault) -> None:
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
    def test_read_survives_one_fault(self, store: Store, proxy: FaultProxy, fault: Fault) -> None:
        proxy.inject(fault)
        assert read(store) == DATA
        assert proxy.seen == 2

    def test_damaged_read_has_another_checksum(self, store: Store, proxy: FaultProxy) -> None:
        proxy.inject(Flip(answer_bytes=1 << 20))
        found = bytearray(len(DATA))
        received = store.get_into("job/part", [memoryview(found)])
        assert received.crc32c == checksum(found) != checksum(DATA)

    def test_write_that_always_breaks_off_leaves_nothing(self, store: Store, proxy: FaultProxy) -> None:
        proxy.inject(*[Cut(request_bytes=1 << 20)] * ATTEMPTS)
        with pytest.raises(StoreUnreachableError):
            store.put("job/other", DATA)
        assert [entry.key for entry in store.list("")] == ["job/part"]

    def test_large_write_that_breaks_off_leaves_no_multipart_upload(
        self, store: Store, proxy: FaultProxy, server: S3Server, spec: StoreSpec
    ) -> None:
        proxy.inject(*[Cut(request_bytes=12 << 20)] * ATTEMPTS)
        with pytest.raises(StoreUnreachableError):
            store.put("job/large", bytes(16 << 20))
        # MinIO lists unfinished uploads by the exact name alone.
        assert server.client()._list_multipart_uploads(spec.bucket, prefix="job/large").uploads == []

    def test_put_if_absent_may_conflict_after_a_lost_response(self, store: Store, proxy: FaultProxy) -> None:
        proxy.inject(Cut(answer_bytes=0))
        with pytest.raises(ExistsError):
            store.put("job/manifest", b"committed", if_absent=True)
        assert store.get("job/manifest") == b"committed"

    def test_store_is_used_again_after_an_outage(self, store: Store, proxy: FaultProxy) -> None:
        proxy.down()
        for operation in (write, read):
            with pytest.raises(StoreUnreachableError):
                operation(store)
        proxy.up()
        write(store)
        assert read(store) == DATA

    @pytest.mark.parametrize(
        ("code", "header_s", "retry_after_s"),
        [("SlowDown", 7, 7.0), ("XMinioServerNotInitialized", 120, 10.0)],  # a pause has a limit
    )
    def test_busy_store_sets_the_pause(
        self, store: Store, proxy: FaultProxy, code: str, header_s: int, retry_after_s: float
    ) -> None:
        proxy.inject(Answer(503, error_document(code), (f"Retry-After: {header_s}",)))
        with pytest.raises(StoreBusyError) as raised:
            write(store)
        assert raised.value.retry_after_s == retry_after_s
        assert proxy.seen == 1

    @pytest.mark.parametrize(
        ("answer", "error"),
        [
            (Answer(400, error_document("ExpiredToken")), CredentialsRefusedError),
            (Answer(403, error_document("ExpiredTokenException")), CredentialsRefusedError),
            (Answer(403, error_document("QuotaExceeded")), StoreFullError),
            (Answer(507, error_document("XMinioStorageFull")), StoreFullError),
        ],
        ids=repr,
    )
    @pytest.mark.parametrize("operation", [write, read])
    def test_refusal_is_final(
        self, store: Store, proxy: FaultProxy, answer: Answer, error: type[StoreError], operation: Operation
    ) -> None:
        proxy.inject(answer)
        with pytest.raises(error) as raised:
            operation(store)
        assert raised.value.remedy
        assert proxy.seen == 1

    @pytest.mark.parametrize("document", [b"", b"<html>Sign in</html>"], ids=["bare", "page"])
    @pytest.mark.parametrize(
        ("status", "error"),
        [(401, CredentialsRefusedError), (507, StoreFullError), (429, StoreBusyError), (501, StoreUnsuitableError)],
    )
    def test_status_decides_without_an_error_document(
        self, store: Store, proxy: FaultProxy, status: int, document: bytes, error: type[StoreError]
    ) -> None:
        proxy.inject(Answer(status, document, ("Content-Type: text/html", "Retry-After: 3")))
        with pytest.raises(error):
            write(store)
        assert proxy.seen == 1

    @pytest.mark.parametrize("kind", ["application/xml", "text/xml", ""])
    @pytest.mark.parametrize("code", ["", "NoSuchKey"])
    def test_missing_object_needs_no_document(self, store: Store, proxy: FaultProxy, code: str, kind: str) -> None:
        document = error_document(code) if code else b""
        proxy.inject(Answer(404, document, (f"Content-Type: {kind}",)))
        with pytest.raises(MissingError, match="job/part"):
            store.get("job/part")

    @pytest.mark.parametrize("kind", ["application/xml", "text/xml"])
    @pytest.mark.parametrize("code", ["", "PreconditionFailed"])
    def test_existing_object_needs_no_document(self, store: Store, proxy: FaultProxy, code: str, kind: str) -> None:
        proxy.inject(Answer(412, error_document(code) if code else b"", (f"Content-Type: {kind}",)))
        with pytest.raises(ExistsError, match="job/other"):
            store.put("job/other", b"", if_absent=True)

    def test_response_without_a_document_is_an_outage(self, store: Store, proxy: FaultProxy) -> None:
        for status in (200, 404):
            for page in (
                b"<ListBucketResult><Conten",
                b"<html><body>Sign in</body></html>",
                b"<!doctype html><p>Hello",
            ):
                proxy.inject(*[Answer(status, page, ("Content-Type: text/html",))] * ATTEMPTS)
                with pytest.raises(
                    StoreUnreachableError, match=f"http://{proxy.address} does not answer as an S3 store"
                ):
                    store.list("")

    def test_page_of_another_server_is_not_a_missing_object(self, store: Store, proxy: FaultProxy) -> None:
        proxy.inject(Answer(404, b"<html>no route</html>", ("Content-Type: text/html",)))
        assert read(store) == DATA

    @pytest.mark.parametrize("operation", [read, lambda store: store.get("job/part")], ids=["into", "whole"])
    def test_response_without_a_length_is_read(self, store: Store, proxy: FaultProxy, operation: Operation) -> None:
        proxy.inject(Answer(200, DATA, has_length=False))
        assert operation(store) == DATA

    @pytest.mark.parametrize("operation", [read, lambda store: store.get("job/part")], ids=["into", "whole"])
    def test_response_without_a_length_that_breaks_off_is_repeated(
        self, store: Store, proxy: FaultProxy, operation: Operation
    ) -> None:
        proxy.inject(Answer(200, DATA, has_length=False, sent_bytes=1 << 20))
        assert operation(store) == DATA

    def test_chunked_response_is_read(self, store: Store, proxy: FaultProxy) -> None:
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in (DATA[:1000], DATA[1000:], b""))
        chunked = Answer(200, chunks, ("Transfer-Encoding: chunked",), has_length=False)
        proxy.inject(chunked, replace(chunked, sent_bytes=len(chunks) // 2), chunked)
        assert read(store) == DATA
        assert read(store) == DATA

    def test_truncated_listing_is_repeated(self, store: Store, proxy: FaultProxy) -> None:
        for number in range(20):
            store.put(f"job/many-{number:02d}", b"")
        proxy.inject(Truncate(2000))
        assert len(store.list("job/many")) == 20


class AnswerSuite:
    """Responses to reads of data by a server or a proxy that ignores headers."""

    KEY = "clicks"

    @pytest.fixture
    def proxy(self, server: S3Server) -> Iterator[FaultProxy]:
        with faulty(server.address) as proxy:
            yield proxy

    @pytest.fixture
    def uris(self, spec: StoreSpec, server: S3Server, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> Uris:
        open_store(spec, server.credentials_dir, None).put(self.KEY, DATA)
        monkeypatch.setattr(interface, "_FIRST_PAUSE_S", 0.001)
        through = replace(spec, endpoint=f"http://{proxy.address}", region="us-east-1")
        return Uris(through, server.credentials_dir, None)

    @staticmethod
    def ranged(version: Version, first: int, size_bytes: int = len(DATA), status: int = 206) -> Answer:
        """A response from that byte on."""
        stated = f"Content-Range: bytes {first}-{size_bytes - 1}/{size_bytes}"
        return Answer(status, DATA[first:], (stated, f'ETag: "{version.tag}"'))

    @pytest.mark.parametrize("status", [200, 206])
    @pytest.mark.parametrize("weak", ["", "W/"])
    def test_response_is_accepted_by_its_position_not_its_status(
        self, uris: Uris, spec: StoreSpec, proxy: FaultProxy, status: int, weak: str
    ) -> None:
        uri = f"s3://{spec.bucket}/{self.KEY}"
        version = uris.version(uri)
        answer = self.ranged(version, 1000, status=status)
        proxy.inject(replace(answer, headers=(answer.headers[0], f'ETag: {weak}"{version.tag}"')))
        with uris.open(uri, version) as stream:
            stream.seek(1000)
            assert stream.read() == DATA[1000:]

    @pytest.mark.parametrize("answer", ["whole", "elsewhere", "nowhere"])
    @pytest.mark.parametrize("resumed", [False, True], ids=["seek", "resumed"])
    def test_bytes_from_another_position_are_refused(
        self, uris: Uris, spec: StoreSpec, proxy: FaultProxy, answer: str, *, resumed: bool
    ) -> None:
        uri = f"s3://{spec.bucket}/{self.KEY}"
        version = uris.version(uri)
        wrong = {
            "whole": Answer(200, DATA, (f'ETag: "{version.tag}"',)),
            "elsewhere": self.ranged(version, 7),
            "nowhere": Answer(206, DATA[1000:], (f'ETag: "{version.tag}"',)),
        }[answer]
        proxy.inject(*[Cut(answer_bytes=2 << 20)] * resumed, wrong)
        with uris.open(uri, version) as stream:
            stream.seek(0 if resumed else 1000)
            with pytest.raises(StoreUnsuitableError, match=f"http://{proxy.address} returned .* for {uri} from byte"):
                stream.read()

    @pytest.mark.parametrize("change", ["tag", "size", "shrunk"])
    @pytest.mark.parametrize("resumed", [False, True], ids=["first", "resumed"])
    def test_response_of_another_version_is_refused(
        self, uris: Uris, spec: StoreSpec, proxy: FaultProxy, change: str, *, resumed: bool
    ) -> None:
        uri = f"s3://{spec.bucket}/{self.KEY}"
        version = uris.version(uri)
        first = 1 << 20
        wrong = {
            "tag": self.ranged(replace(version, tag="another"), first),
            "size": self.ranged(version, first, len(DATA) + 1),
            "shrunk": Answer(416, error_document("InvalidRange")),
        }[change]
        with uris.open(uri, version) as stream:
            if resumed:
                assert stream.read(first) == DATA[:first]
                stream.raw._response.close()  # type: ignore[attr-defined]  # as if the connection broke
            else:
                stream.seek(first)
            proxy.inject(wrong)
            with pytest.raises(DataError, match=f"{uri} has changed"):
                stream.read()

    def test_whole_response_without_a_tag_is_compared_by_its_length(
        self, uris: Uris, spec: StoreSpec, proxy: FaultProxy
    ) -> None:
        uri = f"s3://{spec.bucket}/{self.KEY}"
        with uris.open(uri, uris.version(uri)) as stream:
            proxy.inject(Answer(200, DATA + b"more"))
            with pytest.raises(DataError, match=f"{uri} has changed"):
                stream.read()

    def test_size_missing_in_a_response_is_read_from_the_listing(
        self, uris: Uris, spec: StoreSpec, proxy: FaultProxy
    ) -> None:
        proxy.inject(Answer(200, b"", ('ETag: "the tag"',), has_length=False))
        assert uris.version(f"s3://{spec.bucket}/{self.KEY}") == Version(len(DATA), "the tag")

    def test_object_without_a_tag_cannot_be_distinguished(self, uris: Uris, spec: StoreSpec, proxy: FaultProxy) -> None:
        proxy.inject(Answer(200))
        with pytest.raises(StoreUnsuitableError, match=f"http://{proxy.address} names no ETag"):
            uris.version(f"s3://{spec.bucket}/{self.KEY}")
