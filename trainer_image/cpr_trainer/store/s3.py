"""An S3-compatible store, through minio's client."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import certifi
import urllib3
from minio import Minio
from minio.deleteobjects import DeleteObject

from cpr_contract.spec import StoreSpec
from cpr_trainer.store.credentials import FileProvider, WorkloadProvider
from cpr_trainer.store.s3_errors import refusal, translated

#: For one piece of an answer, and for the sending of one object as a whole.
_TRANSFER_S = 30.0
#: Two attempts to connect of two SYNs each: an endpoint that is gone is known after about six seconds. (urllib3's own
#: limit for connecting would bound the first upload on a connection too.) What comes next is the caller's to decide.
_RETRIES = urllib3.Retry(
    connect=1,
    read=1,
    status=3,
    other=0,
    backoff_factor=0.2,
    status_forcelist=(500, 502, 503, 504),
    respect_retry_after_header=False,  # MinIO asks for two minutes
)
_SOCKET_OPTIONS: tuple[tuple[int, int, int], ...] = ((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),)
if sys.platform == "linux":
    _SOCKET_OPTIONS += ((socket.IPPROTO_TCP, socket.TCP_SYNCNT, 1),)


def connect(spec: StoreSpec, credentials_dir: Path | None, ca_file: Path | None) -> Minio:
    """Return a client for an endpoint; it may be used by several threads. Nothing is sent yet."""
    http = urllib3.PoolManager(
        timeout=urllib3.Timeout(connect=_TRANSFER_S, read=_TRANSFER_S),
        retries=_RETRIES,
        maxsize=8,
        cert_reqs="CERT_REQUIRED",
        ca_certs=str(ca_file) if ca_file else certifi.where(),
        socket_options=_SOCKET_OPTIONS,
    )
    endpoint = urlsplit(spec.endpoint)
    return Minio(
        endpoint.netloc,
        secure=endpoint.scheme == "https",
        region=spec.region,
        credentials=FileProvider(credentials_dir) if credentials_dir else WorkloadProvider(http),
        http_client=http,
    )


class S3Store:
    """Objects in one bucket, below a prefix."""

    def __init__(self, client: Minio, bucket: str, prefix: str) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = prefix

    def put(self, key: str, data: bytes | memoryview, *, if_absent: bool = False) -> None:
        """Write an object in one request; see `Store.put`."""
        headers: dict[str, Any] = {"Content-Type": "application/octet-stream"}
        if if_absent:
            headers["If-None-Match"] = "*"
        body: Any = data if isinstance(data, bytes) else data.cast("B")  # the client takes any flat buffer
        with translated(self._bucket, key):
            # The public put_object sends no conditions, copies the data, and cuts it into requests of its own.
            self._client._execute(  # noqa: SLF001
                "PUT", self._bucket, self._prefix + key, body=body, headers=headers, no_body_trace=True
            )

    def get(self, key: str) -> bytes:
        """Read an object; see `Store.get`."""
        with translated(self._bucket, key):
            response = self._client.get_object(self._bucket, self._prefix + key)
            try:
                return bytes(response.read())
            finally:
                response.close()
                response.release_conn()

    def list(self, prefix: str) -> tuple[str, ...]:
        """All keys that begin with `prefix`, sorted."""
        with translated(self._bucket, prefix):
            found = self._client.list_objects(self._bucket, self._prefix + prefix, recursive=True)
            return tuple(sorted(str(item.object_name).removeprefix(self._prefix) for item in found))

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects, a thousand in a request; absence is success."""
        doomed = [DeleteObject(self._prefix + key) for key in keys]
        with translated(self._bucket, "objects to delete"):
            for failure in self._client.remove_objects(self._bucket, doomed):
                raise refusal(failure.code, failure.message, self._bucket, failure.name)
