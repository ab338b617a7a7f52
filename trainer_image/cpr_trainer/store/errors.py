"""What can go wrong with a store, as one tree. Each is a condition of the job, with its remedy.

TrainerError
└── StoreError
    ├── StoreUnreachableError    no connection, or no sensible answer: try again later
    │   └── StoreBusyError       it asks for a pause
    ├── BucketMissingError       the bucket is not there
    ├── CredentialsRefusedError  the store does not know us, or does not let us
    ├── StoreFullError           no room, or a quota is reached
    ├── StoreUnsuitableError     it cannot do what saves need
    ├── MissingError             no object has that key
    └── ExistsError              an object has that key, and it was to be absent
"""

from __future__ import annotations

from cpr_trainer.errors import TrainerError


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


class ExistsError(StoreError):
    """An object has that key already."""

    reason = "ObjectExists"

    def __init__(self, key: str) -> None:
        super().__init__(f"{key} is in the store already.", "Check whether two jobs write under one prefix.")
        self.key = key
