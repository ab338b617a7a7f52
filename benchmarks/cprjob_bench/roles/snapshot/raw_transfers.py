"""The speed of saves and restores of an idle shard, compared with a raw client with the same bytes.

The engine and the raw client are timed in turn, and the first one alternates, so that pending work of a store or a
disk delays both equally often.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Protocol
from urllib.parse import urlsplit

import numpy as np
from minio import Minio

from cpr_contract.file_uris import is_file_uri, path_of
from cpr_contract.spec import StoreSpec
from cpr_trainer.checkpoint.restore.lineage import Candidate
from cpr_trainer.checkpoint.restore.loading import load_shard
from cpr_trainer.checkpoint.write.save import SavedShard
from cpr_trainer.embedding.arena import LocalRows
from cpr_trainer.errors import TrainerError
from cpr_trainer.store import in_parallel
from cpr_trainer.store.connection import connect
from cpr_trainer.store.transfers import flat, slices
from cprjob_bench.bench_documents import PairedTiming
from cprjob_bench.roles.snapshot.saves import BenchShard


class RawClient(Protocol):
    """A minimal client, the reference for the engine: it neither verifies nor retries nor writes atomically.

    It moves one object at a time between memory and a store, and is thread-safe. Errors are those of the system.
    """

    def put(self, key: str, view: memoryview) -> None:
        """Write an object."""
        ...

    def get_into(self, key: str, view: memoryview) -> None:
        """Read the first bytes of an object."""
        ...


@contextlib.contextmanager
def raw_client(spec: StoreSpec, credentials_dir: Path | None, ca_file: Path | None) -> Iterator[RawClient]:
    """Yield the raw client of the store in `spec`. Its keys are those of `Store`, but without slashes."""
    prefix = spec.prefix.strip("/")
    if is_file_uri(spec.endpoint):
        yield _RawFolder(path_of(spec.endpoint) / spec.bucket / prefix)
    else:
        client = _RawS3(spec, prefix + "/" if prefix else "", credentials_dir, ca_file)
        with contextlib.closing(client):
            yield client


class _RawFolder:
    """Files that are flushed to the disk."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True)

    def put(self, key: str, view: memoryview) -> None:
        with (self._root / key).open("wb", buffering=0) as file:
            for piece in slices(flat(view)):  # large writes are slower
                file.write(piece)
            os.fsync(file.fileno())

    def get_into(self, key: str, view: memoryview) -> None:
        with (self._root / key).open("rb", buffering=0) as file:
            for piece in slices(flat(view)):
                file.readinto(piece)


class _RawS3:
    """Requests to presigned URLs, over one connection per thread."""

    def __init__(self, spec: StoreSpec, prefix: str, credentials_dir: Path | None, ca_file: Path | None) -> None:
        connection, endpoint = connect(spec, credentials_dir, ca_file), urlsplit(spec.endpoint)
        self._client = Minio(
            endpoint.netloc,
            secure=endpoint.scheme == "https",
            region=spec.region,
            credentials=connection.credentials,
            http_client=connection.http,
        )
        self._bucket = spec.bucket
        self._prefix = prefix
        self._tls = ssl.create_default_context(cafile=ca_file)
        self._idle: SimpleQueue[HTTPConnection] = SimpleQueue()

    def put(self, key: str, view: memoryview) -> None:
        url = self._client.presigned_put_object(self._bucket, self._prefix + key)
        with self._answer("PUT", url, view) as answer:
            answer.read()

    def get_into(self, key: str, view: memoryview) -> None:
        url = self._client.presigned_get_object(self._bucket, self._prefix + key)
        left = view
        with self._answer("GET", url) as answer:
            while left and (read := answer.readinto(left)):
                left = left[read:]

    def close(self) -> None:
        """Close the connections."""
        while not self._idle.empty():
            self._idle.get().close()

    @contextlib.contextmanager
    def _answer(self, method: str, url: str, body: memoryview | None = None) -> Iterator[HTTPResponse]:
        place = urlsplit(url)
        connection = self._connection(place.scheme, place.netloc)
        try:
            connection.request(method, f"{place.path}?{place.query}", body=body)
            with connection.getresponse() as answer:
                _check_success(answer)
                yield answer
        except BaseException:
            connection.close()
            raise
        self._idle.put(connection)

    def _connection(self, scheme: str, address: str) -> HTTPConnection:
        try:
            return self._idle.get_nowait()
        except Empty:
            return HTTPSConnection(address, context=self._tls) if scheme == "https" else HTTPConnection(address)


def _check_success(answer: HTTPResponse) -> None:
    if answer.status != HTTPStatus.OK:
        raise OSError(f"HTTP status {answer.status}")


#: The size of the raw client's objects: that of parts of a large shard.
_RAW_BYTES = 8 << 20


class WrongRestoreError(TrainerError):
    """The restored bytes differ from the saved ones."""

    reason = "WrongRestore"

    def __init__(self) -> None:
        super().__init__("The restored bytes differ from the saved ones.", "Report it, and discard the results.")


class Transfers:
    """Repeatedly saves a whole shard and restores it into another arena; keeps the times of both."""

    def __init__(self, shard: BenchShard, raw: RawClient) -> None:
        self.saves: list[PairedTiming] = []
        self.restores: list[PairedTiming] = []
        self.saved_bytes = 0
        self._shard = shard
        arena = shard.local.arena
        arena.epochs.note(np.arange(len(arena.rows)))
        memory = np.random.default_rng(0).integers(256, size=shard.table_bytes, dtype=np.uint8)
        self._raw = _RawCopy(raw, f"{shard.job.job_uid}-raw", memory.data)
        self._buffer = memory[::-1].copy()

    def repeat(self) -> None:
        """Save, restore, compare, delete. Raises WrongRestoreError, StoreError, OSError."""
        raw_first = len(self.saves) % 2 > 0
        saved: list[SavedShard] = []
        self.saves.append(_time_both(lambda: saved.append(self._save()), self._raw.write, raw_first=raw_first))
        (save,) = saved
        candidate = Candidate("Save", save.manifest.layout, save.manifest.step, (save.ref,))
        local, buffer = LocalRows.of(self._shard.job, self._shard.local.placement, 0), self._buffer.data
        # Both read into memory that is mapped already, because page faults are no part of the store's time.
        local.arena.rows.fill(0.0)
        self._buffer.fill(0)
        self.restores.append(
            _time_both(
                lambda: load_shard(self._shard.store, candidate, local),
                lambda: self._raw.read(buffer),
                raw_first=raw_first,
            )
        )
        if not np.array_equal(local.arena.rows, self._shard.local.arena.rows) or buffer != self._raw.memory:
            raise WrongRestoreError
        self.saved_bytes = sum(self._shard.stored().values())
        self._shard.clear()

    def _save(self) -> SavedShard:
        return self._shard.save(self._shard.local.arena.capture_changes(0), len(self.saves) + 1)


@dataclass(frozen=True, slots=True, eq=False)
class _RawCopy:
    """Memory as objects of the raw client, with the prefix `name`."""

    client: RawClient
    name: str
    memory: memoryview

    def write(self) -> None:
        in_parallel(lambda first: self.client.put(self._key(first), self.memory[_part(first)]), self._firsts())

    def read(self, buffer: memoryview) -> None:
        in_parallel(lambda first: self.client.get_into(self._key(first), buffer[_part(first)]), self._firsts())

    def _firsts(self) -> range:
        return range(0, self.memory.nbytes, _RAW_BYTES)

    def _key(self, first: int) -> str:
        return f"{self.name}-{first:012d}"


def _part(first: int) -> slice:
    return slice(first, first + _RAW_BYTES)


def _time_both(engine: Callable[[], object], raw: Callable[[], object], *, raw_first: bool) -> PairedTiming:
    if raw_first:
        raw_wall_s, raw_cpu_s = _time(raw)
        return PairedTiming(*_time(engine), raw_wall_s, raw_cpu_s)
    return PairedTiming(*_time(engine), *_time(raw))


def _time(work: Callable[[], object]) -> tuple[float, float]:
    """Return the elapsed seconds, and the CPU seconds of this process."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall_s, time.process_time() - cpu_s
