"""`Store`: a flat map from keys to bytes, as little as any object store or file system offers, and its errors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from cpr_trainer.errors import TrainerError
from cpr_trainer.store.transfers import Buffer, Throttle

#: Where the spec of the job's store stands. Remedies name it, or where that of the data's own store stands.
JOBS_STORE = "snapshots.store"

# What can go wrong with a store, as one tree. Each is a condition of the job, with its remedy.
#
# TrainerError
# └── StoreError
#     ├── StoreUnreachableError    no connection, or no sensible answer: try again later
#     │   └── StoreBusyError       it asks for a pause
#     ├── BucketMissingError       the bucket is not there
#     ├── CredentialsRefusedError  the store does not know us, or does not let us
#     ├── StoreFullError           no room, or a quota is reached
#     ├── StoreUnsuitableError     it cannot do what saves need
#     ├── MissingError             no object has that key
#     ├── ChangedError             the object of that key is another version than the one asked for
#     └── ExistsError              an object has that key, and it was to be absent


class StoreError(TrainerError):
    """Any refusal or failure of the store. It is not to be asked again within `retry_after_s`."""

    reason = "StoreFailed"
    retry_after_s: float = 0.0


class StoreUnreachableError(StoreError):
    """No connection, or no sensible answer."""

    reason = "StoreUnreachable"


class StoreBusyError(StoreUnreachableError):
    """The store asks for a pause."""

    reason = "StoreBusy"

    def __init__(self, message: str, remedy: str, retry_after_s: float) -> None:
        super().__init__(message, remedy)
        self.retry_after_s = retry_after_s


class BucketMissingError(StoreError):
    """The bucket is not there."""

    reason = "BucketMissing"


class CredentialsRefusedError(StoreError):
    """The store does not know these credentials, or they may not do what was asked."""

    reason = "CredentialsRefused"


class StoreFullError(StoreError):
    """No room is left, or a quota is reached."""

    reason = "StoreFull"


class StoreUnsuitableError(StoreError):
    """It cannot do what saves need."""

    reason = "StoreUnsuitable"


class MissingError(StoreError):
    """No object has that key."""

    reason = "ObjectMissing"

    def __init__(self, key: str) -> None:
        super().__init__(f"{key} is not in the store.", "Check whether it was deleted.")
        self.key = key


class ChangedError(StoreError):
    """The object of that key is another version than the one asked for."""

    reason = "ObjectChanged"

    def __init__(self, key: str) -> None:
        super().__init__(f"{key} has changed in the store.", "Check whether it was written again.")
        self.key = key


class ExistsError(StoreError):
    """An object has that key already."""

    reason = "ObjectExists"

    def __init__(self, key: str) -> None:
        super().__init__(f"{key} is in the store already.", "Check whether two jobs write under one prefix.")
        self.key = key


@dataclass(frozen=True, slots=True)
class Received:
    """What was read: the size of the whole object, and the CRC-32C of those of its bytes that are in memory now."""

    size_bytes: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of a listing. `modified_s` is in seconds since the epoch, by the store's clock."""

    key: str
    size_bytes: int
    modified_s: float


class Store(Protocol):
    """Objects by key. Keys are relative: the store adds its bucket and prefix.

    An object appears whole or not at all, and is listed and readable once `put` returned. Safe to use from several
    threads. What breaks for a moment is tried again inside, for some seconds; longer outages are the caller's to wait
    out. Every method may raise `StoreUnreachableError`, `BucketMissingError` or `CredentialsRefusedError`; each names
    what else it raises.
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

        Return the CRC-32C of those bytes; an S3 store has compared it with what arrived. The memory must not change
        meanwhile. `throttle` sets the pace. Raises StoreFullError, and with `if_absent` ExistsError. After a connection
        that broke half way, ExistsError may be about this very write: compare the bytes.
        """
        ...

    def get(self, key: str) -> bytes:
        """Read a small object whole. Raises MissingError."""
        ...

    def get_into(self, key: str, buffers: Sequence[memoryview]) -> Received:
        """Read an object into writable, C-contiguous buffers, one after another.

        Where the object ends first, the rest of the buffers is left as it was, and what goes beyond them is not read:
        compare its size with the one expected. Raises MissingError; after any error the buffers hold a mixture.
        """
        ...

    def list(self, prefix: str) -> tuple[Entry, ...]:
        """All objects whose keys begin with `prefix`, sorted by key."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects in the order given; absence is success."""
        ...

    def probe(self, folder: str) -> None:
        """Raise StoreUnsuitableError if the store lacks abilities that saves need; its message names them.

        Writes objects in a folder of its own below `folder`, which ends in a slash, and deletes them.
        """
        ...
