"""What an S3-compatible store answers, in the words of `Store`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import urllib3
from minio.error import MinioException, S3Error

from cpr_trainer.store.errors import (
    BucketMissingError,
    CredentialsRefusedError,
    ExistsError,
    MissingError,
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
    }
)
_FULL = frozenset({"QuotaExceeded", "ServiceQuotaExceeded", "XMinioAdminBucketQuotaExceeded", "XMinioStorageFull"})


@contextlib.contextmanager
def translated(bucket: str, key: str) -> Iterator[None]:
    """Turn the client's errors into those of `Store`."""
    try:
        yield
    except S3Error as error:
        raise refusal(error.code, error.message, bucket, key) from error
    except (MinioException, urllib3.exceptions.HTTPError, OSError) as error:
        raise StoreUnreachableError(
            f"The store does not answer as a store: {_first_words(error)}.",
            "Check snapshots.store.endpoint, its certificate (caBundle), and whether a network policy is in the way.",
        ) from error


def refusal(code: str | None, message: str | None, bucket: str, key: str | None) -> StoreError:
    """Return what an error code of S3 means here."""
    said = f"{code}: {message}".rstrip(". ")
    match code:
        case "NoSuchKey":
            return MissingError(key or "")
        case "PreconditionFailed":
            return ExistsError(key or "")
        case "NoSuchBucket":
            return BucketMissingError(
                f"The store has no bucket {bucket}.", "Create it, or correct snapshots.store.bucket."
            )
        case _ if code in _REFUSED:
            return CredentialsRefusedError(
                f"The store refuses access to bucket {bucket} ({said}).",
                "Check the Secret named by credentialsSecret, what its user may do in this bucket, and the region.",
            )
        case _ if code in _FULL:
            return StoreFullError(
                f"The store is full ({said}).", "Free space, raise the quota, or lower snapshots.keep."
            )
        case _:
            return StoreUnreachableError(f"The store fails ({said}).", "Check the store; it will be tried again.")


def _first_words(error: Exception) -> str:
    """Return an error's text, without urllib3's wrapping and cut to a readable length."""
    cause = error.reason if isinstance(error, urllib3.exceptions.MaxRetryError) and error.reason else error
    return str(cause)[:300].rstrip(". ")
