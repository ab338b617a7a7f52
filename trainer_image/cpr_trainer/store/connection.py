"""A connection to an S3-compatible endpoint: minio's client, and what an upload of our own shares with it."""

from __future__ import annotations

import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import certifi
import urllib3
from minio import Minio
from minio.credentials.providers import Provider

from cpr_contract.spec import StoreSpec
from cpr_trainer.store.credentials import FileProvider, WorkloadProvider

#: Without a byte sent or received: a slow store is waited for, a silent one is not.
_SILENCE_S = 30.0
#: Connections kept open. Twice the transfers at once: a flush and a restore of another thread find one each.
_CONNECTIONS = 8
_SOCKET_OPTIONS: tuple[tuple[int, int, int], ...] = ((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),)
if sys.platform == "linux":
    # Two SYNs: an endpoint that is gone is known after three seconds. (urllib3's own limit for connecting would bound
    # the first upload on a connection too.)
    _SOCKET_OPTIONS += ((socket.IPPROTO_TCP, socket.TCP_SYNCNT, 1),)


@dataclass(frozen=True, slots=True)
class Connection:
    """An endpoint; may be used by several threads. `http` tries nothing twice: `persist` does, for whole operations."""

    client: Minio
    http: urllib3.PoolManager
    credentials: Provider


def connect(spec: StoreSpec, credentials_dir: Path | None, ca_file: Path | None) -> Connection:
    """Return a connection to an endpoint; nothing is sent yet."""
    http = urllib3.PoolManager(
        timeout=urllib3.Timeout(connect=_SILENCE_S, read=_SILENCE_S),
        retries=False,
        maxsize=_CONNECTIONS,
        cert_reqs="CERT_REQUIRED",
        ca_certs=str(ca_file) if ca_file else certifi.where(),
        socket_options=_SOCKET_OPTIONS,
    )
    credentials = FileProvider(credentials_dir) if credentials_dir else WorkloadProvider(http)
    endpoint = urlsplit(spec.endpoint)
    client = Minio(
        endpoint.netloc,
        secure=endpoint.scheme == "https",
        region=spec.region,
        credentials=credentials,
        http_client=http,
    )
    return Connection(client, http, credentials)
