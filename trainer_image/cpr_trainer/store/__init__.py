"""Where saves are kept: an S3-compatible store, or a folder."""

from cpr_trainer.store.buffers import Buffer, checksum
from cpr_trainer.store.errors import (
    BucketMissingError,
    CredentialsRefusedError,
    ExistsError,
    MissingError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreUnreachableError,
    StoreUnsuitableError,
)
from cpr_trainer.store.opening import open_store
from cpr_trainer.store.parallel import in_parallel
from cpr_trainer.store.protocol import Entry, Received, Store
from cpr_trainer.store.throttle import Throttle
from cpr_trainer.store.uris import Uris
from cpr_trainer.store.versions import Version

__all__ = [
    "BucketMissingError",
    "Buffer",
    "CredentialsRefusedError",
    "Entry",
    "ExistsError",
    "MissingError",
    "Received",
    "Store",
    "StoreBusyError",
    "StoreError",
    "StoreFullError",
    "StoreUnreachableError",
    "StoreUnsuitableError",
    "Throttle",
    "Uris",
    "Version",
    "checksum",
    "in_parallel",
    "open_store",
]
