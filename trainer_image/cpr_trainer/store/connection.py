"""A connection to an S3-compatible endpoint: signs requests, sends them, and raises what an answer stands for."""

from __future__ import annotations

import base64
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
from minio.credentials.providers import Provider
from minio.helpers import BaseURL
from minio.signer import sign_v4_s3

from cpr_contract.spec import EndpointSpec
from cpr_trainer.store.answers import Request, document, is_success, refusal, returned
from cpr_trainer.store.credentials import FileProvider, WorkloadProvider
from cpr_trainer.store.protocol import JOBS_STORE
from cpr_trainer.store.transfers import Throttle, size_of, slices

#: Without a byte sent or received: a slow store is waited for, a silent one is not.
_SILENCE_S = 30.0
#: Connections kept open. Twice the transfers at once: a flush and a restore of another thread find one each.
_CONNECTIONS = 8
_SOCKET_OPTIONS: tuple[tuple[int, int, int], ...] = ((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),)
if sys.platform == "linux":
    # Two SYNs: an endpoint that is gone is known after three seconds. (urllib3's own limit for connecting would bound
    # the first upload on a connection too.)
    _SOCKET_OPTIONS += ((socket.IPPROTO_TCP, socket.TCP_SYNCNT, 1),)

_DEFAULT_REGION = "us-east-1"
#: An old name of a region, which GetBucketLocation still returns.
_REGIONS = {"": _DEFAULT_REGION, "EU": "eu-west-1"}
_UNSIGNED = "UNSIGNED-PAYLOAD"
#: A header of an upload: the CRC-32C of its bytes.
CHECKSUM = "X-Amz-Checksum-Crc32c"
#: The condition that no object has the key yet.
IF_ABSENT: Mapping[str, str] = {"If-None-Match": "*"}
#: Redirections that keep the method and the body. AWS sends them while the name of a new bucket spreads.
_REDIRECTIONS = frozenset({307, 308})
_MOST_REDIRECTIONS = 3


@dataclass(frozen=True, slots=True, eq=False)
class Upload:
    """A body straight from memory.

    Its signature leaves the body out, as those of presigned URLs do, because a hash of it costs more than sending it. A
    checksum header, which is signed, states what has to arrive.
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
    """An endpoint; may be used by several threads. Nothing is repeated here: `persist` repeats whole operations.

    `field` is where its spec stands, for remedies.
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
        """Return the answer to a request that succeeded; its body is not read yet.

        Raises StoreError for an answer that is no success, and urllib3's errors for none.
        """
        region = self._region(bucket)
        url = self._url(method, region, bucket, key, query or {})
        for _ in range(_MOST_REDIRECTIONS):
            response = self._send(method, url, region, headers or {}, body)
            target = _target(response, url)
            if target is None:
                break
            with returned(response):
                url, region = target, response.headers.get("x-amz-bucket-region", region)
        if is_success(response):
            return response
        raise refusal(Request(self.endpoint, self.field, method, bucket, key, tuple(headers or ())), response)

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
        """Return the region of a bucket: the spec's, or the one that the store names when it is first asked."""
        stated = self._urls.region or self._regions.get(bucket)
        if stated:
            return stated
        url = self._url("GET", _DEFAULT_REGION, bucket, "", {"location": ""})
        response = self._send("GET", url, _DEFAULT_REGION, {}, b"")
        request = Request(self.endpoint, self.field, "GET", bucket)
        if not is_success(response):
            raise refusal(request, response)
        # SeaweedFS answers with the document by which a bucket is made.
        found = document(request, response, "LocationConstraint", "CreateBucketConfiguration")
        named = found.text or found.findtext("{*}LocationConstraint") or ""
        self._regions[bucket] = _REGIONS.get(named, named)
        return self._regions[bucket]


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
    return Connection(spec, http, credentials, field)


def _target(response: urllib3.BaseHTTPResponse, url: SplitResult) -> SplitResult | None:
    """Return where a redirection leads; None if it is none that can be followed.

    One to another scheme is not followed: it would carry the data of a job that asked for TLS past it.
    """
    place = response.headers.get("Location", "")
    if response.status not in _REDIRECTIONS or not place:
        return None
    target = urlsplit(urljoin(url.geturl(), place))
    return target if target.scheme == url.scheme and target.netloc else None
