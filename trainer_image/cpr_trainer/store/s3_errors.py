"""What an S3-compatible store answers, in the words of `Store`, and what is asked again."""

from __future__ import annotations

import contextlib
import functools
import random
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import ParamSpec, TypeVar
from xml.etree import ElementTree as ET

import urllib3
from minio.error import MinioException, S3Error

from cpr_trainer.runtime import backoff
from cpr_trainer.store.protocol import (
    JOBS_STORE,
    BucketMissingError,
    CredentialsRefusedError,
    ExistsError,
    MissingError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreUnreachableError,
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
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "XAdminUserNotFound",
    }
)
_REFUSED_STATUS = frozenset({401, 403})
_FULL = frozenset(
    {
        "InsufficientStorage",
        "QuotaExceeded",
        "ServiceQuotaExceeded",
        "XMinioAdminBucketQuotaExceeded",
        "XMinioStorageFull",
    }
)
_FULL_STATUS = 507
_BUSY_STATUS = frozenset({429, 503})
#: MinIO asks for two minutes while it starts, and starts in seconds: a recovery does not wait that long.
_LONGEST_PAUSE_S = 10.0


@contextlib.contextmanager
def translated(bucket: str, key: str, field: str = JOBS_STORE) -> Iterator[None]:
    """Turn the errors of minio's client and of urllib3 into those of `Store`. `field` has the store's spec."""
    try:
        yield
    except S3Error as error:
        raise refusal(error.code, error.message, bucket, key, error.response, field) from error
    except (MinioException, urllib3.exceptions.HTTPError, OSError, ET.ParseError) as error:
        raise StoreUnreachableError(
            f"The store does not answer as a store: {_first_words(error)}.",
            f"Check {field}.endpoint, its certificate (caBundle), and whether a network policy is in the way.",
        ) from error


def error_of(response: urllib3.BaseHTTPResponse) -> S3Error:
    """Return the error that an answer which is no success stands for; one that is not S3's own has no code."""
    if response.data and "application/xml" in response.headers.get("Content-Type", ""):
        return S3Error.fromxml(response)
    return S3Error(response, None, f"HTTP status {response.status}", None, None, None)


def refusal(  # noqa: PLR0913, PLR0917 -- what was asked of whom, and what it said
    code: str | None,
    message: str | None,
    bucket: str,
    key: str | None,
    response: urllib3.BaseHTTPResponse | None = None,
    field: str = JOBS_STORE,
) -> StoreError:
    """Return what an error means here: by its code, which S3 names, or where that is unknown by the answer's status."""
    said = f"{code or 'not as S3'}: {message}".rstrip(". ")
    status = response.status if response is not None else None
    match code:
        case "NoSuchKey":
            return MissingError(key or "")
        case "PreconditionFailed":
            return ExistsError(key or "")
        case "NoSuchBucket":
            return BucketMissingError(
                f"The store has no bucket {bucket}.", "Create it, or correct snapshots.store.bucket."
            )
        case _ if code in _FULL or status == _FULL_STATUS:
            return StoreFullError(
                f"The store is full ({said}).", "Free space, raise the quota, or lower snapshots.keep."
            )
        case _ if code in _REFUSED or status in _REFUSED_STATUS:
            return CredentialsRefusedError(
                f"The store refuses access to bucket {bucket} ({said}).",
                f"Check the Secret named by {field}.credentialsSecret, what its user may do in this bucket, and the "
                "region.",
            )
        case _:
            return _failure(said, response)


def _failure(said: str, response: urllib3.BaseHTTPResponse | None) -> StoreUnreachableError:
    if response is not None and response.status in _BUSY_STATUS:
        return StoreBusyError(
            f"The store is busy ({said}).", "Check its load; it will be tried again.", _pause_s(response)
        )
    return StoreUnreachableError(f"The store fails ({said}).", "Check the store; it will be tried again.")


def _pause_s(response: urllib3.BaseHTTPResponse) -> float:
    """Return the pause an answer asks for, in seconds; 0 if it names none, or names a date."""
    asked = response.headers.get("Retry-After", "")
    return min(float(asked), _LONGEST_PAUSE_S) if asked.isdecimal() else 0.0


def _first_words(error: Exception) -> str:
    """Return an error's text, without urllib3's wrapping and cut to a readable length."""
    cause = error.reason if isinstance(error, urllib3.exceptions.MaxRetryError) and error.reason else error
    return str(cause)[:300].rstrip(". ")


# Second attempts at what a network or a store drops now and then; outages are for the caller to wait out.


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_RETRIES = 2
_FIRST_S = 0.2
#: A longer pause that the store asks for is the caller's to make.
_LONGEST_S = 2.0


def persistent(operation: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorate an operation that may be repeated: `persist` runs it."""

    @functools.wraps(operation)
    def wrapper(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return persist(lambda: operation(*args, **kwargs), random.Random(), time.sleep)

    return wrapper


def persist(operation: Callable[[], Result], rng: random.Random, sleep: Callable[[float], None]) -> Result:
    """Return what `operation` returns; repeat it twice at most, after a moment, if it raises StoreUnreachableError."""
    for delay_s in islice(backoff(rng, first_s=_FIRST_S), _RETRIES):
        try:
            return operation()
        except StoreUnreachableError as error:
            if error.retry_after_s > _LONGEST_S:
                raise
            sleep(max(delay_s, error.retry_after_s))
    return operation()
