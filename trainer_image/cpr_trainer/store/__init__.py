"""Stores of saves and of data: S3-compatible servers, folders, and for data the file systems of pyarrow."""

from __future__ import annotations

from pathlib import Path

from minio.helpers import check_bucket_name

from cpr_contract.file_uris import is_file_uri, path_of
from cpr_contract.spec import StoreSpec
from cpr_trainer.store.connection import connect
from cpr_trainer.store.data_files import Version
from cpr_trainer.store.folder import FolderStore
from cpr_trainer.store.interface import (
    BucketMissingError,
    ChangedError,
    CredentialsRefusedError,
    Entry,
    ExistsError,
    MissingError,
    Received,
    Store,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreUnreachableError,
    StoreUnsuitableError,
)
from cpr_trainer.store.s3 import S3Store
from cpr_trainer.store.transfers import Buffer, Throttle, checksum, in_parallel
from cpr_trainer.store.uris import Uris

__all__ = [
    "BucketMissingError",
    "Buffer",
    "ChangedError",
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


def open_store(spec: StoreSpec, credentials_dir: Path | None, ca_file: Path | None) -> Store:
    """Return the store that `spec` names, without sending a request.

    A folder store has its objects in endpoint/bucket/prefix, which the first write creates. `credentials_dir` has the
    files accessKey, secretKey and the optional sessionToken; None takes environment variables, else the workload's
    identity. `ca_file` (PEM) replaces the public authorities. Raises BucketMissingError for an invalid bucket name.
    """
    prefix = spec.prefix.strip("/")
    if is_file_uri(spec.endpoint):
        return FolderStore(path_of(spec.endpoint) / spec.bucket / prefix)
    try:
        check_bucket_name(spec.bucket)
    except ValueError as error:
        raise BucketMissingError(
            f"No bucket can be named {spec.bucket!r}.", "Correct snapshots.store.bucket."
        ) from error
    return S3Store(connect(spec, credentials_dir, ca_file), spec.bucket, prefix + "/" if prefix else "")
