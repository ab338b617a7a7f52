"""Where saves are kept: an S3-compatible store, or a folder."""

from cpr_trainer.store.errors import (
    BucketMissingError,
    CredentialsRefusedError,
    ExistsError,
    MissingError,
    StoreError,
    StoreFullError,
    StoreUnreachableError,
)
from cpr_trainer.store.opening import open_store, open_uri
from cpr_trainer.store.protocol import Store

__all__ = [
    "BucketMissingError",
    "CredentialsRefusedError",
    "ExistsError",
    "MissingError",
    "Store",
    "StoreError",
    "StoreFullError",
    "StoreUnreachableError",
    "open_store",
    "open_uri",
]
