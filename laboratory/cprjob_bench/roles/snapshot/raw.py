"""What a store can do for a client that does the least: the measure beside which the engine is put.

Nothing is checked, nothing is tried again, nothing appears at once; errors are those of the system.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Iterator
from http import HTTPStatus
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Protocol
from urllib.parse import unquote, urlsplit

from cpr_contract.spec import StoreSpec
from cpr_trainer.store.connection import connect
from cpr_trainer.store.transfers import flat, slices


class RawClient(Protocol):
    """One object at a time from memory to a store and back; may be used by several threads."""

    def put(self, key: str, view: memoryview) -> None:
        """Write an object."""
        ...

    def get_into(self, key: str, view: memoryview) -> None:
        """Read the first bytes of an object."""
        ...


@contextlib.contextmanager
def raw_client(spec: StoreSpec, credentials_dir: Path | None, ca_file: Path | None) -> Iterator[RawClient]:
    """Give the raw client of the store that `spec` names. Its keys are those of `Store`, but without slashes."""
    endpoint = urlsplit(spec.endpoint)
    prefix = spec.prefix.strip("/")
    if endpoint.scheme == "file":
        yield _RawFolder(Path(unquote(endpoint.path)) / spec.bucket / prefix)
    else:
        client = _RawS3(spec, prefix + "/" if prefix else "", credentials_dir, ca_file)
        with contextlib.closing(client):
            yield client


class _RawFolder:
    """Files, flushed to the disk."""

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
    """Requests to presigned URLs, over as many connections as there are threads."""

    def __init__(self, spec: StoreSpec, prefix: str, credentials_dir: Path | None, ca_file: Path | None) -> None:
        self._client = connect(spec, credentials_dir, ca_file).client
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
                _demand_success(answer)
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


def _demand_success(answer: HTTPResponse) -> None:
    if answer.status != HTTPStatus.OK:
        raise OSError(f"HTTP status {answer.status}")
