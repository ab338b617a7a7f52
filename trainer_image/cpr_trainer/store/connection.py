"""A connection to an S3-compatible endpoint: finds credentials, signs and sends requests, raises errors."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import SplitResult, urljoin, urlsplit

import certifi
import urllib3
from minio.credentials.credentials import Credentials
from minio.credentials.providers import ChainedProvider, EnvAWSProvider, EnvMinioProvider, IamAwsProvider, Provider
from minio.helpers import BaseURL
from minio.signer import sign_v4_s3

from cpr_contract.spec import EndpointSpec
from cpr_trainer.store.interface import JOBS_STORE, CredentialsRefusedError
from cpr_trainer.store.responses import SUCCESS_STATUS, Request, document, read_error, released
from cpr_trainer.store.transfers import Throttle, size_of, slices

#: Timeout of a connection that neither sends nor receives a byte.
_IDLE_TIMEOUT_S = 30.0
#: Connections that stay open: twice TRANSFERS, for a flush and a restore of another thread.
_CONNECTIONS = 8
_SOCKET_OPTIONS: tuple[tuple[int, int, int], ...] = ((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),)
if sys.platform == "linux":
    # Two SYNs: connecting to a missing endpoint fails after three seconds. urllib3's connect timeout would also bound
    # the first upload on a connection.
    _SOCKET_OPTIONS += ((socket.IPPROTO_TCP, socket.TCP_SYNCNT, 1),)

_DEFAULT_REGION = "us-east-1"
#: Old names of regions, which GetBucketLocation still returns.
_REGIONS = {"": _DEFAULT_REGION, "EU": "eu-west-1"}
_UNSIGNED = "UNSIGNED-PAYLOAD"
_REMEDY = "Set {field}.credentialsSecret to a Secret with accessKey and secretKey, or give the pods an identity."
#: A header of an upload: the CRC-32C of its bytes.
CHECKSUM = "X-Amz-Checksum-Crc32c"
#: The condition that no object has the key yet.
IF_ABSENT: Mapping[str, str] = {"If-None-Match": "*"}
#: Redirections with the same method and body. AWS sends them while the DNS name of a new bucket is propagated.
_REDIRECTIONS = frozenset({307, 308})
_MOST_REDIRECTIONS = 3


@dataclass(frozen=True, slots=True, eq=False)
class Upload:
    """A body sent from memory without a copy.

    The signature does not cover the body, as in presigned URLs, because SHA-256 costs more than sending. The signed
    checksum header protects the body.
    """

    views: Sequence[memoryview]
    throttle: Throttle | None = None

    def __iter__(self) -> Iterator[memoryview]:
        for piece in slices(self.views):
            if self.throttle:
                self.throttle.wait(len(piece))
            yield piece


def checksum_header(crc32c: int) -> dict[str, str]:
    """Return the header that states the CRC-32C of an upload."""
    return {CHECKSUM: base64.b64encode(crc32c.to_bytes(4, "big")).decode()}


class Connection:
    """An endpoint. Thread-safe. It sends each request once; `retried` repeats whole operations.

    `field` is the field with its spec, for remedies.
    """

    def __init__(self, spec: EndpointSpec, http: urllib3.PoolManager, credentials: Provider, field: str) -> None:
        self.endpoint = spec.endpoint
        self.field = field
        self.credentials = credentials
        self.http = http
        self._urls = BaseURL("{0.scheme}://{0.netloc}".format(urlsplit(spec.endpoint)), spec.region)
        self._regions: dict[str, str] = {}

    def send(  # noqa: PLR0913 -- one request
        self,
        method: str,
        bucket: str,
        key: str = "",
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | Upload = b"",
    ) -> urllib3.BaseHTTPResponse:
        """Return the response to a request that succeeded; the caller reads its body.

        Raises StoreError for a response without success, urllib3's errors without a response.
        """
        region = self._region(bucket)
        url = self._url(method, region, bucket, key, query or {})
        for _ in range(_MOST_REDIRECTIONS):
            response = self._send(method, url, region, headers or {}, body)
            target = _target(response, url)
            if target is None:
                break
            with released(response):
                url, region = target, response.headers.get("x-amz-bucket-region", region)
        if response.status in SUCCESS_STATUS:
            return response
        raise read_error(Request(self.endpoint, self.field, method, bucket, key, tuple(headers or ())), response)

    def _url(self, method: str, region: str, bucket: str, key: str, query: Mapping[str, str]) -> SplitResult:
        parameters: dict[str, str | list[str] | tuple[str]] = {**query}
        return self._urls.build(
            method=method, region=region, bucket_name=bucket, object_name=key, query_params=parameters
        )

    def _send(
        self, method: str, url: SplitResult, region: str, headers: Mapping[str, str], body: bytes | Upload
    ) -> urllib3.BaseHTTPResponse:
        size_bytes = size_of(body.views) if isinstance(body, Upload) else len(body)
        digest = _UNSIGNED if isinstance(body, Upload) else hashlib.sha256(body).hexdigest()
        credentials = self.credentials.retrieve()
        now = datetime.now(UTC)
        unsigned: dict[str, str | list[str] | tuple[str]] = {
            "Host": url.netloc,
            "X-Amz-Content-Sha256": digest,
            "X-Amz-Date": now.strftime("%Y%m%dT%H%M%SZ"),
            **headers,
        }
        if method in {"PUT", "POST"}:
            unsigned |= {"Content-Length": str(size_bytes), "Content-Type": "application/octet-stream"}
        if credentials.session_token:
            unsigned["X-Amz-Security-Token"] = credentials.session_token
        signed = sign_v4_s3(
            method=method,
            url=url,
            region=region,
            headers=unsigned,
            credentials=credentials,
            content_sha256=digest,
            date=now,
        )
        return self.http.urlopen(
            method, url.geturl(), body=body or None, headers=signed, redirect=False, preload_content=False
        )

    def _region(self, bucket: str) -> str:
        """Return the region of a bucket: the spec's, else the store's, which is requested once."""
        stated = self._urls.region or self._regions.get(bucket)
        if stated:
            return stated
        url = self._url("GET", _DEFAULT_REGION, bucket, "", {"location": ""})
        response = self._send("GET", url, _DEFAULT_REGION, {}, b"")
        request = Request(self.endpoint, self.field, "GET", bucket)
        if response.status not in SUCCESS_STATUS:
            raise read_error(request, response)
        # SeaweedFS returns the document of a request that creates a bucket.
        found = document(request, response, "LocationConstraint", "CreateBucketConfiguration")
        named = found.text or found.findtext("{*}LocationConstraint") or ""
        self._regions[bucket] = _REGIONS.get(named, named)
        return self._regions[bucket]


class FileProvider(Provider):
    """Reads accessKey, secretKey and the optional sessionToken for every request, so a rotated Secret takes effect.

    Three small reads cost little compared with a request, so there is no cache.
    """

    def __init__(self, folder: Path, field: str = JOBS_STORE) -> None:
        self._folder = folder
        self._remedy = _REMEDY.format(field=field)

    def retrieve(self) -> Credentials:
        """Return the content of the files, all of one version of the Secret."""
        try:
            while True:
                found, version = None, _version(self._folder)
                with contextlib.suppress(FileNotFoundError):
                    found = _read_all(version)
                if version == _version(self._folder):  # else the kubelet replaced the files meanwhile
                    return found or _read_all(version)  # raises the error with the missing file
        except (OSError, ValueError) as error:
            raise CredentialsRefusedError(f"The store's credentials cannot be read: {error}.", self._remedy) from error


class WorkloadProvider(Provider):
    """Takes credentials of environment variables, else of the pod's identity in its cloud."""

    def __init__(self, http: urllib3.PoolManager, field: str) -> None:
        self._remedy = _REMEDY.format(field=field)
        self._chain = ChainedProvider([EnvAWSProvider(), EnvMinioProvider(), IamAwsProvider(http_client=http)])

    def retrieve(self) -> Credentials:
        """Return the first credentials that are found."""
        try:
            return self._chain.retrieve()
        except (ValueError, OSError, urllib3.exceptions.HTTPError) as error:
            raise CredentialsRefusedError(f"No credentials for the store were found: {error}.", self._remedy) from error


def connect(
    spec: EndpointSpec, credentials_dir: Path | None, ca_file: Path | None, field: str = JOBS_STORE
) -> Connection:
    """Return a connection to an endpoint with its spec in `field`, without sending a request."""
    http = urllib3.PoolManager(
        timeout=urllib3.Timeout(connect=_IDLE_TIMEOUT_S, read=_IDLE_TIMEOUT_S),
        retries=False,
        maxsize=_CONNECTIONS,
        cert_reqs="CERT_REQUIRED",
        ca_certs=str(ca_file) if ca_file else certifi.where(),
        socket_options=_SOCKET_OPTIONS,
    )
    credentials = FileProvider(credentials_dir, field) if credentials_dir else WorkloadProvider(http, field)
    return Connection(spec, http, credentials, field)


def _target(response: urllib3.BaseHTTPResponse, url: SplitResult) -> SplitResult | None:
    """Return the target of a redirection; None if the response is not a redirection, or leads to another scheme.

    Another scheme could send the data of a job without TLS.
    """
    location = response.headers.get("Location", "")
    if response.status not in _REDIRECTIONS or not location:
        return None
    target = urlsplit(urljoin(url.geturl(), location))
    return target if target.scheme == url.scheme and target.netloc else None


def _version(folder: Path) -> Path:
    """Return the present folder of a mounted Secret's files; the kubelet replaces it, and its link, as a whole."""
    return (folder / "..data").resolve() if (folder / "..data").exists() else folder


def _read_all(folder: Path) -> Credentials:
    token = folder / "sessionToken"
    return Credentials(
        _read(folder / "accessKey"), _read(folder / "secretKey"), (_read(token) or None) if token.exists() else None
    )


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip()
