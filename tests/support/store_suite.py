"""The cases that every implementation of `Store` has to pass, and those of a bucket.

Folders of tests bind them to their stores and servers.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cpr_contract.spec import StoreSpec
from cpr_trainer.store import (
    CredentialsRefusedError,
    ExistsError,
    MissingError,
    Received,
    Store,
    StoreError,
    Throttle,
    Uris,
    checksum,
    in_parallel,
    open_store,
)
from support.s3_servers import ACCESS_KEY, SECRET_KEY, S3Server

DATA = bytes(range(256)) * (10 << 10)


def keys(store: Store, prefix: str) -> tuple[str, ...]:
    return tuple(entry.key for entry in store.list(prefix))


class Metered(Throttle):
    """Counts the bytes that are sent."""

    def __init__(self) -> None:
        super().__init__(1.0, lambda: False)
        self.sent_bytes = 0

    def wait(self, size_bytes: int) -> None:
        self.sent_bytes += size_bytes


class ObjectSuite:
    """Objects of any store. The folder's fixture `store` is empty."""

    @pytest.mark.parametrize(
        ("written", "content"),
        [
            (b"\x00\xffdata", b"\x00\xffdata"),
            (b"", b""),
            (memoryview(bytearray(range(100)))[10:20], bytes(range(10, 20))),
            (
                (b"head", memoryview(array("f", [1.0, 2.0])), b"", bytearray(b"tail")),
                b"head" + array("f", [1.0, 2.0]).tobytes() + b"tail",
            ),
            ((DATA[:1000], DATA[1000:]), DATA),
            (DATA * 4, DATA * 4),  # more than a client's own part
        ],
        ids=["bytes", "empty", "view", "buffers", "slices", "large"],
    )
    def test_object_reads_as_written(self, store: Store, written: Any, content: bytes) -> None:
        throttle = Metered()
        assert store.put("job/a", written, throttle=throttle) == checksum(content)
        assert throttle.sent_bytes == len(content)
        assert store.get("job/a") == content
        assert [(entry.key, entry.size_bytes) for entry in store.list("")] == [("job/a", len(content))]

    def test_read_fills_several_buffers(self, store: Store) -> None:
        rows = array("f", [1.0, 2.0])
        store.put("job/part", (b"head", memoryview(rows), b"tail"))
        head, found, tail = bytearray(4), array("f", [0.0, 0.0]), bytearray(4)
        received = store.get_into("job/part", [memoryview(head), memoryview(found), memoryview(tail)])
        assert received == Received(16, checksum(b"head" + rows.tobytes() + b"tail"))
        assert (head, found, tail) == (b"head", rows, b"tail")

    @pytest.mark.parametrize("size_bytes", [0, 10, len(DATA)])
    @pytest.mark.parametrize("missing_bytes", [-1, 0, 1, 777])
    def test_read_returns_size_whether_or_not_object_fits(
        self, store: Store, size_bytes: int, missing_bytes: int
    ) -> None:
        store.put("job/a", DATA[:size_bytes])
        found = bytearray(b"." * max(0, size_bytes - missing_bytes))
        received = store.get_into("job/a", [memoryview(found)[:777], memoryview(found)[777:]])
        expected = DATA[: min(size_bytes, len(found))]
        assert received == Received(size_bytes, checksum(expected))
        assert found == expected.ljust(len(found), b".")
        assert store.get("job/a") == DATA[:size_bytes]  # an answer that was not read to its end spoils no later one

    def test_second_put_replaces(self, store: Store) -> None:
        store.put("job/a", b"one")
        store.put("job/a", b"two")
        assert store.get("job/a") == b"two"

    def test_put_if_absent_writes_once(self, store: Store) -> None:
        store.put("job/manifest.json", b"one", if_absent=True)
        with pytest.raises(ExistsError, match=r"job/manifest\.json") as raised:
            store.put("job/manifest.json", b"two", if_absent=True)
        assert raised.value.key == "job/manifest.json"
        assert store.get("job/manifest.json") == b"one"
        assert keys(store, "") == ("job/manifest.json",)

    def test_missing_object_is_named(self, store: Store) -> None:
        store.put("job/a/b", b"")
        reads: tuple[Callable[[str], object], ...] = (
            store.get,
            lambda key: store.get_into(key, [memoryview(bytearray(1))]),
        )
        for read in reads:
            for missing in ("job/nothing", "job/a/c"):
                with pytest.raises(MissingError, match=missing) as raised:
                    read(missing)
                assert raised.value.key == missing
                assert raised.value.remedy

    def test_listing_is_sorted_and_takes_any_prefix(self, store: Store) -> None:
        for key in ("job/shard-0002/b", "job/shard-0010/a", "job/shard-0002/a", "jobber/x"):
            store.put(key, b"")
        assert keys(store, "job/") == ("job/shard-0002/a", "job/shard-0002/b", "job/shard-0010/a")
        assert keys(store, "job/shard-0002") == ("job/shard-0002/a", "job/shard-0002/b")
        assert keys(store, "job/shard-00") == ("job/shard-0002/a", "job/shard-0002/b", "job/shard-0010/a")
        assert keys(store, "other/") == ()

    def test_listing_has_times(self, store: Store) -> None:
        before_s = time.time()
        store.put("job/a", b"12345")
        (entry,) = store.list("job/")
        assert abs(entry.modified_s - before_s) < 3600  # a clock of its own, to the second

    def test_delete_passes_over_missing_keys(self, store: Store) -> None:
        for key in ("job/s/a", "job/s/b", "job/t/c"):
            store.put(key, b"")
        store.delete(key for key in ("job/s/a", "job/s/b", "job/s/nothing"))
        assert keys(store, "job/") == ("job/t/c",)
        store.put("job/s/a", b"again")
        assert store.get("job/s/a") == b"again"

    def test_threads_share_a_store(self, store: Store) -> None:
        def write(number: int) -> bool:
            data = bytes([number]) * 50_000
            store.put(f"job/part-{number:03d}", data)
            return store.get(f"job/part-{number:03d}") == data

        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(write, range(40)))
        assert len(store.list("job/part-")) == 40


class ProbeSuite:
    """The probe on a store that has all abilities."""

    def test_probe_passes_and_leaves_nothing(self, store: Store) -> None:
        store.put("job/a", b"a")
        store.probe("job/probe/")
        assert keys(store, "") == ("job/a",)


class RaceSuite:
    """Writers that meet at one key of any store."""

    def test_one_of_many_puts_if_absent_wins(self, store: Store) -> None:
        together = threading.Barrier(6)

        def attempt(number: int) -> int | None:
            together.wait()
            try:
                store.put("job/manifest.json", str(number).encode() * 1000, if_absent=True)
            except ExistsError:
                return None
            return number

        with ThreadPoolExecutor(6) as threads:
            winners = [number for number in threads.map(attempt, range(6)) if number is not None]
        assert len(winners) == 1
        assert store.get("job/manifest.json") == str(winners[0]).encode() * 1000


def errors_of(store: Store) -> list[StoreError]:
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


class BucketSuite:
    """Buckets and credentials of S3 servers. The folder's fixture `spec` is a new bucket of its fixture `server`."""

    def test_missing_bucket_is_named(self, server: S3Server, spec: StoreSpec) -> None:
        found = errors_of(open_store(replace(spec, bucket="not-there"), server.credentials_dir, None))
        assert [error.reason for error in found] == ["BucketMissing"] * 5
        assert "not-there" in found[0].message
        assert "snapshots.store.bucket" in found[0].remedy

    def test_bucket_may_vanish_and_come_back(self, server: S3Server, spec: StoreSpec) -> None:
        store, client = open_store(spec, server.credentials_dir, None), server.client()
        store.put("job/a", b"a")
        store.delete(["job/a"])
        client.remove_bucket(spec.bucket)
        assert [error.reason for error in errors_of(store)] == ["BucketMissing"] * 5
        client.make_bucket(spec.bucket)
        store.put("job/a", b"b")
        assert store.get("job/a") == b"b"

    def test_listings_and_deletions_take_several_pages(self, server: S3Server, spec: StoreSpec) -> None:
        store = open_store(spec, server.credentials_dir, None)
        names = [f"job/{number:04d}" for number in range(1001)]  # a page of S3 has a thousand
        in_parallel(lambda key: store.put(key, b""), names)
        assert [entry.key for entry in store.list("job/")] == names
        found = Uris(spec, server.credentials_dir, None).find(f"s3://{spec.bucket}/job/*")
        assert found == tuple(f"s3://{spec.bucket}/{name}" for name in names)
        store.delete(names)
        assert store.list("") == ()

    def test_prefix_is_part_of_each_key(self, server: S3Server, spec: StoreSpec) -> None:
        open_store(replace(spec, prefix="/team/x/"), server.credentials_dir, None).put("job/a", b"a")
        assert keys(open_store(spec, server.credentials_dir, None), "") == ("team/x/job/a",)

    def test_missing_credentials_are_named(self, spec: StoreSpec, tmp_path: Path) -> None:
        store = open_store(spec, tmp_path, None)
        for operation in (lambda: store.list(""), lambda: store.put("a", b"")):
            with pytest.raises(CredentialsRefusedError, match="accessKey"):
                operation()

    def test_environment_has_credentials_without_files(self, spec: StoreSpec, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        store = open_store(spec, None, None)
        store.put("job/a", b"a")
        assert keys(store, "") == ("job/a",)
