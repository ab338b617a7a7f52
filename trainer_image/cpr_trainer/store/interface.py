"""`Store`: a flat map from keys to bytes, its errors, and retries of its operations.

TrainerError
└── StoreError                   each is a condition of the job, with its remedy
    ├── StoreUnreachableError    no connection, or no valid response: retry later
    │   └── StoreBusyError       the store requests a pause
    ├── BucketMissingError       the bucket does not exist
    ├── CredentialsRefusedError  the credentials are unknown, or lack a permission
    ├── StoreFullError           no space is left, or a quota is reached
    ├── StoreUnsuitableError     the store lacks an ability that saves need
    ├── MissingError             no object has the key
    ├── ChangedError             the object with the key has another version than requested
    └── ExistsError              an object has the key, and the request requires its absence
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ParamSpec, Protocol, TypeVar

from cpr_trainer.errors import TrainerError
from cpr_trainer.runtime import backoff, retry
from cpr_trainer.store.transfers import Buffer, Throttle

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

#: The field with the spec of the job's store, for remedies. The data may have a store of its own.
JOBS_STORE = "snapshots.store"

_RETRIES = 2
_FIRST_PAUSE_S = 0.2
#: Callers handle longer pauses.
_LONGEST_PAUSE_S = 2.0


class StoreError(TrainerError):
    """A failed operation. A caller must not repeat it within `retry_after_s`."""

    reason = "StoreFailed"
    retry_after_s: float = 0.0


class StoreUnreachableError(StoreError):
    """No connection, or no valid response."""

    reason = "StoreUnreachable"


class StoreBusyError(StoreUnreachableError):
    """The store requests a pause."""

    reason = "StoreBusy"

    def __init__(self, message: str, remedy: str, retry_after_s: float) -> None:
        super().__init__(message, remedy)
        self.retry_after_s = retry_after_s


class BucketMissingError(StoreError):
    """The bucket does not exist."""

    reason = "BucketMissing"


class CredentialsRefusedError(StoreError):
    """The store refuses the credentials, or they lack a permission."""

    reason = "CredentialsRefused"


class StoreFullError(StoreError):
    """No space is left, or a quota is reached."""

    reason = "StoreFull"


class StoreUnsuitableError(StoreError):
    """The store lacks an ability that saves need."""

    reason = "StoreUnsuitable"


class MissingError(StoreError):
    """No object has the key."""

    reason = "ObjectMissing"

    def __init__(self, key: str) -> None:
        super().__init__(f"{key} is not in the store.", "Check whether it was deleted.")
        self.key = key


class ChangedError(StoreError):
    """The object with the key has another version than requested."""

    reason = "ObjectChanged"

    def __init__(self, key: str) -> None:
        super().__init__(f"{key} has changed in the store.", "Check whether it was written again.")
        self.key = key


class ExistsError(StoreError):
    """An object has the key already."""

    reason = "ObjectExists"

    def __init__(self, key: str) -> None:
        super().__init__(f"{key} is in the store already.", "Check whether two jobs write under one prefix.")
        self.key = key


@dataclass(frozen=True, slots=True)
class Received:
    """The result of a read: the size of the whole object, and the CRC-32C of its bytes that are in memory now."""

    size_bytes: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class Entry:
    """An object of a listing. `modified_s` is in seconds since the epoch, by the store's clock.

    `tag` is an S3 object's ETag without quotes, in listings of a bucket; a `Store` leaves it out.
    """

    key: str
    size_bytes: int
    modified_s: float
    tag: str = ""


class Store(Protocol):
    """Objects by key. Keys are relative: the store adds its bucket and prefix.

    An object appears whole or not at all, and is listed and readable once `put` returned. Thread-safe. Stores repeat
    unreachable requests for some seconds; callers handle longer outages. Every method may raise
    `StoreUnreachableError`, `BucketMissingError` or `CredentialsRefusedError`, and the errors that it names.
    """

    def put(
        self,
        key: str,
        data: Buffer | Sequence[Buffer],
        *,
        if_absent: bool = False,
        throttle: Throttle | None = None,
    ) -> int:
        """Write an object, or replace it: the bytes of one buffer, or of several, one after another.

        Return the CRC-32C of those bytes; an S3 store has verified it. The memory must not change meanwhile. `throttle`
        limits the rate. Raises StoreFullError, and with `if_absent` ExistsError. After a broken connection ExistsError
        may come from this very write: compare the bytes.
        """

    def get(self, key: str) -> bytes:
        """Read a small object whole. Raises MissingError."""

    def get_into(self, key: str, buffers: Sequence[memoryview]) -> Received:
        """Read an object into writable, C-contiguous buffers, one after another.

        Bytes of the buffers beyond the object's end stay unchanged, and bytes of the object beyond the buffers' end are
        not read: compare its size with the expected one. Raises MissingError; after any error the buffers have
        undefined contents.
        """

    def list(self, prefix: str) -> tuple[Entry, ...]:
        """Return all objects with keys that begin with `prefix`, sorted by key.

        An unfinished object of a living or killed writer may be listed under its key and a suffix. Readers therefore
        match whole keys.
        """

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects in the order given; absence is success."""

    def probe(self, folder: str) -> None:
        """Raise StoreUnsuitableError if the store lacks abilities that saves need; its message names them.

        Writes objects in a new folder below `folder`, which ends in a slash, and deletes them.
        """


def retried(operation: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorate an operation that may be repeated: `retry_unreachable` runs it."""

    @functools.wraps(operation)
    def wrapper(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return retry_unreachable(lambda: operation(*args, **kwargs), random.Random(), time.sleep)

    return wrapper


def retry_unreachable(operation: Callable[[], Result], rng: random.Random, sleep: Callable[[float], None]) -> Result:
    """Return the result of `operation`; repeat it at most twice, after a pause, if it raises StoreUnreachableError."""

    def pause(error: StoreUnreachableError, delay_s: float) -> None:
        if error.retry_after_s > _LONGEST_PAUSE_S:
            raise error
        sleep(max(delay_s, error.retry_after_s))

    delays_s = islice(backoff(rng, first_s=_FIRST_PAUSE_S), _RETRIES)
    return retry(operation, StoreUnreachableError, delays_s, pause)
