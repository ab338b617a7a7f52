"""Answers of an S3-compatible store: what they stand for, by S3's codes where there are any, else by their status."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from xml.etree import ElementTree as ET

import urllib3

from cpr_trainer.errors import printable
from cpr_trainer.store.protocol import (
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
_SUCCESS_STATUS = frozenset({HTTPStatus.OK, HTTPStatus.NO_CONTENT, HTTPStatus.PARTIAL_CONTENT})
_READS = frozenset({"GET", "HEAD"})
#: MinIO asks for two minutes while it starts, and starts in seconds: a recovery does not wait that long.
_LONGEST_PAUSE_S = 10.0
#: An error's document is read so far. S3's have a few hundred bytes.
_DOCUMENT_BYTES = 64 << 10
_MESSAGE_CHARS = 300
#: Headers that every request has, or that change nothing of what a server must be able to do.
_PLAIN = frozenset({"Content-MD5"})

#: Remedies for a missing ability. The one server that is named refuses every header that it does not know.
SUITABLE = "Use a server that has all abilities listed in docs/store.md."
UNKNOWN_HEADERS = "S3Proxy takes unknown headers with s3proxy.ignore-unknown-headers=true."


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked, as far as errors name it. `key` is empty for a request about a bucket."""

    endpoint: str
    field: str
    method: str
    bucket: str
    key: str = ""
    headers: tuple[str, ...] = ()


@contextlib.contextmanager
def returned(response: urllib3.BaseHTTPResponse) -> Iterator[urllib3.BaseHTTPResponse]:
    """Give the answer's connection back if it was read to its end, and close it otherwise."""
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
        raise StoreUnreachableError(
            f"The store does not answer as a store: {_first_words(error)}.",
            f"Check {field}.endpoint, its certificate (caBundle), and whether a network policy is in the way.",
        ) from error


def is_success(response: urllib3.BaseHTTPResponse) -> bool:
    """Return whether an answer is what was asked for."""
    return response.status in _SUCCESS_STATUS


def document(request: Request, response: urllib3.BaseHTTPResponse, *roots: str) -> ET.Element:
    """Read an answer whose document has one of the elements `roots` at its top.

    Raises StoreUnreachableError for any other document, urllib3's errors for an answer that breaks off.
    """
    with returned(response):
        data = response.read()
    found = _parsed(data)
    if found is None or _tag(found) not in roots:
        raise _foreign(request, response, data)
    return found


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that is no success: its status, and S3's own code and message where it has them."""

    status: int
    code: str | None
    message: str
    headers: Mapping[str, str]

    @property
    def said(self) -> str:
        """What it says, for a message."""
        return f"HTTP status {self.status}" if self.code is None else f"{self.code}: {self.message}".rstrip(". :")


def refusal(request: Request, response: urllib3.BaseHTTPResponse) -> StoreError:
    """Return what an answer that is no success stands for. Its document is read, whatever type it claims to have.

    A 404 with the page of another server is not the store's word on an object: it is an outage. Raises urllib3's errors
    for an answer that breaks off.
    """
    with returned(response):
        data = response.read(_DOCUMENT_BYTES)
    found = _parsed(data)
    answer = Answer(response.status, None, "", response.headers)
    if found is not None and _tag(found) == "Error":
        answer = answer_in(found, response.status, response.headers)
    elif response.status == HTTPStatus.NOT_FOUND and data:
        return _foreign(request, response, data)
    return meaning(request, answer)


def answer_in(error: ET.Element, status: int, headers: Mapping[str, str]) -> Answer:
    """Return what an `Error` element of S3 says."""
    code, message = error.findtext("{*}Code"), error.findtext("{*}Message") or ""
    return Answer(status, None if code is None else printable(code), printable(message, _MESSAGE_CHARS), headers)


def meaning(request: Request, answer: Answer) -> StoreError:
    """Return what an answer stands for, by the first line of `_MEANINGS` that has its code or its status."""
    for codes, statuses, error in _MEANINGS:
        if answer.code in codes or answer.status in statuses:
            return error(request, answer)
    return StoreUnreachableError(f"The store fails ({answer.said}).", "Check the store; it will be tried again.")


def _skewed(_: Request, answer: Answer) -> StoreError:
    return CredentialsRefusedError(
        f"The store refuses requests of this node, because their clocks differ ({answer.said}).",
        "Set the clock of the node, or that of the store, by NTP.",
    )


def _full(_: Request, answer: Answer) -> StoreError:
    return StoreFullError(
        f"The store is full ({answer.said}).", "Free space, raise the quota, or lower snapshots.keep."
    )


def _refused(request: Request, answer: Answer) -> StoreError:
    return CredentialsRefusedError(
        f"The store refuses access to bucket {request.bucket} ({answer.said}).",
        f"Check the Secret named by {request.field}.credentialsSecret, what its user may do in this bucket, and the "
        "region.",
    )


def _condition(request: Request, _: Answer) -> StoreError:
    return ChangedError(request.key) if request.method in _READS else ExistsError(request.key)


def _missing(request: Request, answer: Answer) -> StoreError:
    about_object = request.key and request.method in _READS
    return MissingError(request.key) if about_object or answer.code == "NoSuchKey" else _no_bucket(request, answer)


def _no_bucket(request: Request, _: Answer) -> StoreError:
    return BucketMissingError(
        f"The store has no bucket {request.bucket}.", "Create it, or correct snapshots.store.bucket."
    )


def _unsuitable(request: Request, answer: Answer) -> StoreError:
    special = sorted(set(request.headers) - _PLAIN)
    what = f"{request.method} with {' and '.join(special)}" if special else request.method
    return StoreUnsuitableError(
        f"The store at {request.endpoint} does not implement {what} ({answer.said}).",
        f"{SUITABLE} {UNKNOWN_HEADERS}" if special else SUITABLE,
    )


def _too_large(_: Request, answer: Answer) -> StoreError:
    return StoreUnsuitableError(
        f"The store, or a proxy before it, refuses an object as too large ({answer.said}).",
        "Let it take bodies of 64 MiB and more (nginx: client_max_body_size).",
    )


def _redirected(request: Request, answer: Answer) -> StoreError:
    place, region = (printable(answer.headers.get(each, "")) for each in ("Location", "x-amz-bucket-region"))
    return StoreUnreachableError(
        f"The store redirects requests for bucket {request.bucket} ({answer.said})"
        f"{f' to {place}' if place else ''}{f', region {region}' if region else ''}.",
        f"Correct {request.field}.endpoint and its region.",
    )


def _busy(_: Request, answer: Answer) -> StoreError:
    return StoreBusyError(
        f"The store is busy ({answer.said}).", "Check its load; it will be tried again.", _pause_s(answer.headers)
    )


#: Which codes and which statuses stand for which error, in this order: a code is more exact than a status.
_MEANINGS: tuple[tuple[frozenset[str], frozenset[int], Callable[[Request, Answer], StoreError]], ...] = (
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
    """Return the error for an answer that no S3 store gives, such as the page of a proxy."""
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


def _pause_s(headers: Mapping[str, str]) -> float:
    """Return the pause an answer asks for, in seconds; 0 if it names none, or names a date."""
    asked = headers.get("Retry-After", "")
    return min(float(asked), _LONGEST_PAUSE_S) if asked.isdecimal() else 0.0


def _first_words(error: Exception) -> str:
    """Return an error's text, without urllib3's wrapping and cut to a readable length."""
    cause = error.reason if isinstance(error, urllib3.exceptions.MaxRetryError) and error.reason else error
    return str(cause)[:300].rstrip(". ")
