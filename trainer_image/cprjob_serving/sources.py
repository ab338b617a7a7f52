"""Places from which a follower reads published models: folders, web servers and S3, by the standard library."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import IO, Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import Request, urlopen

from cprjob_serving.chain import ChainError

_TIMEOUT_S = 30.0
_MISSING = {HTTPStatus.NOT_FOUND, HTTPStatus.GONE}
#: A server may refuse an object that is missing. If the request is signed, the credentials are wrong.
_MISSING_OR_HIDDEN = _MISSING | {HTTPStatus.FORBIDDEN}
_REGION, _SERVICE = "us-east-1", "s3"
_BLOCK = 1 << 20


class SourceError(Exception):
    """A source cannot be read now, or never by its URI. The message names it."""


class Source(Protocol):
    """Objects by key, for reading. Raises SourceError."""

    def open(self, key: str) -> IO[bytes] | None:
        """Return an object's bytes; None if there is no such object."""


def source_of(uri: str, environ: Mapping[str, str] = os.environ) -> Source:
    """Return the source at `file:///folder`, `http[s]://host/path`, or `s3://bucket/prefix`.

    S3 needs AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and reads AWS_SESSION_TOKEN, AWS_REGION and AWS_ENDPOINT_URL.
    Raises SourceError.
    """
    parts = urlsplit(uri)
    if parts.scheme == "file" and parts.netloc in {"", "localhost"} and parts.path not in {"", "/"}:
        return _Folder(Path(unquote(parts.path)))
    if parts.scheme in {"http", "https"} and parts.netloc:
        return _Web(uri.rstrip("/"), None)
    if parts.scheme == "s3" and parts.netloc:
        access, secret = (environ.get(name) for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
        if not access or not secret:
            raise SourceError(f"{uri} needs AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
        region = environ.get("AWS_REGION") or _REGION
        endpoint = (environ.get("AWS_ENDPOINT_URL") or f"https://s3.{region}.amazonaws.com").rstrip("/")
        base = "/".join(piece for piece in (endpoint, parts.netloc, quote(unquote(parts.path).strip("/"))) if piece)
        return _Web(base, _Signer(access, secret, environ.get("AWS_SESSION_TOKEN") or "", region))
    raise SourceError(
        f"nothing can be followed at {uri}; give file:///folder, http[s]://host/path or s3://bucket/prefix"
    )


def read(source: Source, key: str) -> bytes | None:
    """Return a small object; None if there is none. Raises SourceError."""
    opened = source.open(key)
    if opened is None:
        return None
    with closing(opened) as stream, _reported(key):
        return stream.read()


def fetch(source: Source, key: str, to: Path, size_bytes: int, sha256: str) -> None:
    """Write an object into a file, and compare its size and its SHA-256 (hex).

    Raises ChainError if it is missing or another one, SourceError, OSError.
    """
    opened, digest, found = source.open(key), hashlib.sha256(), 0
    if opened is None:
        raise ChainError(f"{key} is missing: it was deleted meanwhile")
    to.parent.mkdir(parents=True, exist_ok=True)
    with closing(opened) as stream, to.open("wb") as file:
        while block := _block_of(stream, key):
            digest.update(block)
            found += len(block)
            file.write(block)
    if (found, digest.hexdigest()) != (size_bytes, sha256):
        raise ChainError(f"{key} is not what was published: {found} bytes of another digest than in its entry")


def _block_of(stream: IO[bytes], key: str) -> bytes:
    with _reported(key):
        return stream.read(_BLOCK)


class _reported:  # noqa: N801 -- used as a function
    """Turns errors of a connection into SourceError."""

    def __init__(self, key: str) -> None:
        self._key = key

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raise SourceError."""
        if isinstance(error, OSError | HTTPException):
            raise SourceError(f"{self._key} cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class _Folder:
    root: Path

    def open(self, key: str) -> IO[bytes] | None:
        """See `Source`."""
        try:
            return (self.root / key).open("rb")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SourceError(f"{self.root / key} cannot be read: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class _Web:
    """Objects below a URL, with requests signed by `signer` if there is one."""

    base: str
    signer: _Signer | None

    def open(self, key: str) -> IO[bytes] | None:
        """See `Source`."""
        url = f"{self.base}/{quote(key)}"
        headers = {} if self.signer is None else self.signer.headers(url, datetime.now(UTC))
        try:
            opened: IO[bytes] = urlopen(Request(url, headers=headers), timeout=_TIMEOUT_S)  # noqa: S310 -- see source_of
        except HTTPError as error:
            with closing(error):
                if error.code in (_MISSING_OR_HIDDEN if self.signer is None else _MISSING):
                    return None
                raise SourceError(f"{url} cannot be read: {error.code} {error.reason}") from error
        except (URLError, OSError, HTTPException) as error:
            raise SourceError(f"{url} cannot be read: {error}") from error
        return opened


@dataclass(frozen=True, slots=True)
class _Signer:
    """Signs requests to read an object by AWS Signature Version 4."""

    access: str
    secret: str
    token: str
    region: str

    def headers(self, url: str, now: datetime) -> dict[str, str]:
        """Return the headers of a GET of `url` at a time."""
        parts, stamp, day = urlsplit(url), now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
        nothing = hashlib.sha256(b"").hexdigest()
        signed = {"host": parts.netloc, "x-amz-content-sha256": nothing, "x-amz-date": stamp}
        if self.token:
            signed["x-amz-security-token"] = self.token
        names = ";".join(sorted(signed))
        lines = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed))
        request = f"GET\n{parts.path}\n{parts.query}\n{lines}\n{names}\n{nothing}"
        scope = f"{day}/{self.region}/{_SERVICE}/aws4_request"
        text = "\n".join(("AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(request.encode()).hexdigest()))
        key = f"AWS4{self.secret}".encode()
        for piece in (*scope.split("/"), text):
            key = hmac.digest(key, piece.encode(), "sha256")
        credential = f"Credential={self.access}/{scope}, SignedHeaders={names}, Signature={key.hex()}"
        return {**{n: v for n, v in signed.items() if n != "host"}, "Authorization": f"AWS4-HMAC-SHA256 {credential}"}
