"""A connection to an S3-compatible endpoint: minio's client with its credentials, shared by our own upload."""

from __future__ import annotations

import contextlib
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import certifi
import urllib3
from minio import Minio
from minio.credentials.credentials import Credentials
from minio.credentials.providers import ChainedProvider, EnvAWSProvider, EnvMinioProvider, IamAwsProvider, Provider

from cpr_contract.spec import EndpointSpec
from cpr_trainer.store.protocol import JOBS_STORE, CredentialsRefusedError

# Credentials for an S3-compatible store: mounted files, or what the workload's surroundings offer.


_REMEDY = "Set {field}.credentialsSecret to a Secret with accessKey and secretKey, or give the pods an identity."


class FileProvider(Provider):
    """Reads accessKey, secretKey and perhaps sessionToken for every request, so that a rotated Secret is seen.

    Three small reads, beside a request over the network: not worth a cache that could be stale.
    """

    def __init__(self, folder: Path, field: str = JOBS_STORE) -> None:
        self._folder = folder
        self._remedy = _REMEDY.format(field=field)

    def retrieve(self) -> Credentials:
        """Return what the files say now, all of one version."""
        try:
            while True:
                found, version = None, _version(self._folder)
                with contextlib.suppress(FileNotFoundError):
                    found = _read_all(version)
                if version == _version(self._folder):  # else it went away in between
                    return found or _read_all(version)  # which tells what is missing
        except (OSError, ValueError) as error:
            raise CredentialsRefusedError(f"The store's credentials cannot be read: {error}.", self._remedy) from error


class WorkloadProvider(Provider):
    """The environment's variables, else the identity that the cloud gives to the pod."""

    def __init__(self, http: urllib3.PoolManager, field: str) -> None:
        self._remedy = _REMEDY.format(field=field)
        self._chain = ChainedProvider([EnvAWSProvider(), EnvMinioProvider(), IamAwsProvider(http_client=http)])

    def retrieve(self) -> Credentials:
        """Return the first that is found."""
        try:
            return self._chain.retrieve()
        except (ValueError, OSError, urllib3.exceptions.HTTPError) as error:
            raise CredentialsRefusedError(f"No credentials for the store were found: {error}.", self._remedy) from error


def _version(folder: Path) -> Path:
    """Return the folder that a mounted Secret's files lie in now: the kubelet replaces it, and its link, as a whole."""
    return (folder / "..data").resolve() if (folder / "..data").exists() else folder


def _read_all(folder: Path) -> Credentials:
    token = folder / "sessionToken"
    return Credentials(
        _read(folder / "accessKey"), _read(folder / "secretKey"), (_read(token) or None) if token.exists() else None
    )


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip()


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
    """An endpoint; may be used by several threads. `http` tries nothing twice: `persist` does, for whole operations.

    `field` is where its spec stands, for remedies.
    """

    client: Minio
    http: urllib3.PoolManager
    credentials: Provider
    field: str


def connect(
    spec: EndpointSpec, credentials_dir: Path | None, ca_file: Path | None, field: str = JOBS_STORE
) -> Connection:
    """Return a connection to an endpoint, whose spec stands in `field`; nothing is sent yet."""
    http = urllib3.PoolManager(
        timeout=urllib3.Timeout(connect=_SILENCE_S, read=_SILENCE_S),
        retries=False,
        maxsize=_CONNECTIONS,
        cert_reqs="CERT_REQUIRED",
        ca_certs=str(ca_file) if ca_file else certifi.where(),
        socket_options=_SOCKET_OPTIONS,
    )
    credentials = FileProvider(credentials_dir, field) if credentials_dir else WorkloadProvider(http, field)
    endpoint = urlsplit(spec.endpoint)
    client = Minio(
        endpoint.netloc,
        secure=endpoint.scheme == "https",
        region=spec.region,
        credentials=credentials,
        http_client=http,
    )
    return Connection(client, http, credentials, field)
