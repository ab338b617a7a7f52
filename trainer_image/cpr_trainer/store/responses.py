"""Responses of an S3-compatible store, and the errors that they mean by S3's code or by their HTTP status."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from xml.etree import ElementTree as ET

import urllib3

from cpr_trainer.errors import printable
from cpr_trainer.store.interface import (
    BucketMissingError,
    ChangedError,
    CredentialsRefusedError,
    ExistsError,
    MissingError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreUnreachableError,
    StoreUnsuitableError,
)

_REFUSED = frozenset(
    {
        "AccessDenied",
        "AllAccessDisabled",
        "AuthorizationHeaderMalformed",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "InvalidTokenId",
        "SignatureDoesNotMatch",
        "XAdminUserNotFound",
    }
)
_FULL = frozenset(
    {
        "InsufficientStorage",
        "QuotaExceeded",
        "ServiceQuotaExceeded",
        "XMinioAdminBucketQuotaExceeded",
        "XMinioStorageFull",
    }
)
SUCCESS_STATUS = frozenset({HTTPStatus.OK, HTTPStatus.NO_CONTENT, HTTPStatus.PARTIAL_CONTENT})
_READS = frozenset({"GET", "HEAD"})
#: MinIO sends a Retry-After of two minutes while it starts, and starts in seconds.
_LONGEST_PAUSE_S = 10.0
#: Maximum of an error's document that is read. S3's have a few hundred bytes.
_DOCUMENT_BYTES = 64 << 10
_MESSAGE_CHARS = 300
#: Headers that need no special ability of a server.
_PLAIN = frozenset({"Content-MD5"})

#: Remedies for a missing ability. S3Proxy refuses every unknown header by default.
SUITABLE = "Use a server that has all abilities listed in docs/store.md."
UNKNOWN_HEADERS = "S3Proxy takes unknown headers with s3proxy.ignore-unknown-headers=true."


@dataclass(frozen=True, slots=True)
class Request:
    """The parts of a request that errors name. `key` is empty for a request about a bucket."""

    endpoint: str
    field: str
    method: str
    bucket: str
    key: str = ""
    headers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """A response without success: its status, and S3's own code and message if it has them."""

    status: int
    code: str | None
    message: str
    headers: Mapping[str, str]

    @property
    def summary(self) -> str:
        """A description for messages."""
        return f"HTTP status {self.status}" if self.code is None else f"{self.code}: {self.message}".rstrip(". :")


@contextlib.contextmanager
def released(response: urllib3.BaseHTTPResponse) -> Iterator[urllib3.BaseHTTPResponse]:
    """Release the connection of a response; close it unless the response was read to its end."""
    try:
        yield response
    finally:
        if not response.closed:
            response.close()
        response.release_conn()


@contextlib.contextmanager
def translated(field: str) -> Iterator[None]:
    """Turn the errors of a connection, which urllib3 and the system raise, into those of `Store`."""
    try:
        yield
    except (urllib3.exceptions.HTTPError, OSError) as error:
        # The cause, without urllib3's wrapping.
        cause = error.reason if isinstance(error, urllib3.exceptions.MaxRetryError) and error.reason else error
        raise StoreUnreachableError(
            f"The store does not answer as a store: {str(cause)[:300].rstrip('. ')}.",
            f"Check {field}.endpoint, its certificate (caBundle), and whether a network policy is in the way.",
        ) from error


def length_of(response: urllib3.BaseHTTPResponse) -> int | None:
    """Return the Content-Length of a response; None without one, as from proxies that send chunks."""
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isdecimal() else None


def document(request: Request, response: urllib3.BaseHTTPResponse, *roots: str) -> ET.Element:
    """Read a response that is an XML document, with one of the elements `roots` at its top.

    Raises StoreUnreachableError for any other document, urllib3's errors for a response that breaks off.
    """
    with released(response):
        data = response.read()
    found = _parsed(data)
    if found is None or _tag(found) not in roots:
        raise _foreign(request, response, data)
    return found


def read_error(request: Request, response: urllib3.BaseHTTPResponse) -> StoreError:
    """Return the error that a response without success means. Its document is read, even if its type is not XML.

    A 404 with another document is not evidence about an object: it counts as an outage. Raises urllib3's errors for a
    response that breaks off.
    """
    with released(response):
        data = response.read(_DOCUMENT_BYTES)
    found = _parsed(data)
    error = ErrorResponse(response.status, None, "", response.headers)
    if found is not None and _tag(found) == "Error":
        error = error_response(found, response.status, response.headers)
    elif response.status == HTTPStatus.NOT_FOUND and data:
        return _foreign(request, response, data)
    return store_error(request, error)


def error_response(error: ET.Element, status: int, headers: Mapping[str, str]) -> ErrorResponse:
    """Return the content of an `Error` element of S3."""
    code, message = error.findtext("{*}Code"), error.findtext("{*}Message") or ""
    return ErrorResponse(status, None if code is None else printable(code), printable(message, _MESSAGE_CHARS), headers)


def store_error(request: Request, response: ErrorResponse) -> StoreError:
    """Return the error of the first line of `_ERRORS` with the code or the status of a response."""
    for codes, statuses, error in _ERRORS:
        if response.code in codes or response.status in statuses:
            return error(request, response)
    return StoreUnreachableError(f"The store fails ({response.summary}).", "Check the store; it will be tried again.")


def _skewed(_: Request, response: ErrorResponse) -> StoreError:
    return CredentialsRefusedError(
        f"The store refuses requests of this node, because their clocks differ ({response.summary}).",
        "Set the clock of the node, or that of the store, by NTP.",
    )


def _full(_: Request, response: ErrorResponse) -> StoreError:
    return StoreFullError(
        f"The store is full ({response.summary}).", "Free space, raise the quota, or lower snapshots.keep."
    )


def _refused(request: Request, response: ErrorResponse) -> StoreError:
    return CredentialsRefusedError(
        f"The store refuses access to bucket {request.bucket} ({response.summary}).",
        f"Check the Secret named by {request.field}.credentialsSecret, what its user may do in this bucket, and the "
        "region.",
    )


def _condition(request: Request, _: ErrorResponse) -> StoreError:
    return ChangedError(request.key) if request.method in _READS else ExistsError(request.key)


def _missing(request: Request, response: ErrorResponse) -> StoreError:
    reads_object = request.key and request.method in _READS
    return MissingError(request.key) if reads_object or response.code == "NoSuchKey" else _no_bucket(request, response)


def _no_bucket(request: Request, _: ErrorResponse) -> StoreError:
    return BucketMissingError(
        f"The store has no bucket {request.bucket}.", "Create it, or correct snapshots.store.bucket."
    )


def _unsuitable(request: Request, response: ErrorResponse) -> StoreError:
    special = sorted(set(request.headers) - _PLAIN)
    ability = f"{request.method} with {' and '.join(special)}" if special else request.method
    return StoreUnsuitableError(
        f"The store at {request.endpoint} does not implement {ability} ({response.summary}).",
        f"{SUITABLE} {UNKNOWN_HEADERS}" if special else SUITABLE,
    )


def _too_large(_: Request, response: ErrorResponse) -> StoreError:
    return StoreUnsuitableError(
        f"The store, or a proxy before it, refuses an object as too large ({response.summary}).",
        "Let it take bodies of 64 MiB and more (nginx: client_max_body_size).",
    )


def _redirected(request: Request, response: ErrorResponse) -> StoreError:
    place, region = (printable(response.headers.get(each, "")) for each in ("Location", "x-amz-bucket-region"))
    return StoreUnreachableError(
        f"The store redirects requests for bucket {request.bucket} ({response.summary})"
        f"{f' to {place}' if place else ''}{f', region {region}' if region else ''}.",
        f"Correct {request.field}.endpoint and its region.",
    )


def _busy(_: Request, response: ErrorResponse) -> StoreError:
    stated = response.headers.get("Retry-After", "")  # a date counts as no pause
    pause_s = min(float(stated), _LONGEST_PAUSE_S) if stated.isdecimal() else 0.0
    message = f"The store is busy ({response.summary})."
    return StoreBusyError(message, "Check its load; it will be tried again.", pause_s)


#: Codes, statuses and their error. The order matters: a code is more exact than a status.
_ERRORS: tuple[tuple[frozenset[str], frozenset[int], Callable[[Request, ErrorResponse], StoreError]], ...] = (
    (frozenset({"RequestTimeTooSkewed"}), frozenset(), _skewed),
    (_FULL, frozenset({507}), _full),
    (_REFUSED, frozenset({401, 403}), _refused),
    (frozenset({"PreconditionFailed"}), frozenset({412}), _condition),
    (frozenset({"InvalidRange"}), frozenset({416}), lambda request, _: ChangedError(request.key)),
    (frozenset({"NoSuchBucket"}), frozenset(), _no_bucket),
    (frozenset({"NoSuchKey"}), frozenset({404}), _missing),
    (frozenset({"MethodNotAllowed", "NotImplemented"}), frozenset({405, 501}), _unsuitable),
    (frozenset({"EntityTooLarge"}), frozenset({413}), _too_large),
    (frozenset({"PermanentRedirect", "TemporaryRedirect"}), frozenset(range(300, 400)), _redirected),
    (frozenset({"SlowDown"}), frozenset({429, 503}), _busy),
)


def _foreign(request: Request, response: urllib3.BaseHTTPResponse, data: bytes) -> StoreError:
    """Return the error for a response that no S3 store sends, such as the page of a proxy."""
    kind = printable(response.headers.get("Content-Type", "no type"))
    excerpt = printable(data[:_MESSAGE_CHARS].decode(errors="replace"))
    return StoreUnreachableError(
        f"{request.endpoint} does not answer as an S3 store: HTTP status {response.status}, {kind}, {excerpt!r}.",
        f"Check {request.field}.endpoint, and whether a proxy or a login page is in the way.",
    )


def _parsed(data: bytes) -> ET.Element | None:
    try:
        return ET.fromstring(data)  # noqa: S314 -- expat bounds entities, and loads none from outside
    except (ET.ParseError, ValueError, LookupError):  # the last two for encodings that are none
        return None


def _tag(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]
