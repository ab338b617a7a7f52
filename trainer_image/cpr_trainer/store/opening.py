"""Opens the store, and the data, that a job names."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from minio.helpers import check_bucket_name

from cpr_contract.spec import StoreSpec
from cpr_trainer.errors import DataError
from cpr_trainer.store.connection import connect
from cpr_trainer.store.errors import BucketMissingError, MissingError
from cpr_trainer.store.folder import FolderStore
from cpr_trainer.store.object_stream import open_object
from cpr_trainer.store.protocol import Store
from cpr_trainer.store.s3 import S3Store


def open_store(spec: StoreSpec, credentials_dir: Path | None, ca_file: Path | None) -> Store:
    """Return the store that `spec` names; nothing is asked of it yet.

    A folder keeps its objects in endpoint/bucket/prefix, which is made when needed. `credentials_dir` holds the files
    accessKey, secretKey and perhaps sessionToken; None takes the environment's variables or the workload's identity.
    `ca_file` (PEM) replaces the public authorities. Raises BucketMissingError for a name that no bucket can have.
    """
    prefix = spec.prefix.strip("/")
    endpoint = urlsplit(spec.endpoint)
    if endpoint.scheme == "file":
        return FolderStore(Path(unquote(endpoint.path)) / spec.bucket / prefix)
    try:
        check_bucket_name(spec.bucket)
    except ValueError as error:
        raise BucketMissingError(
            f"No bucket can be named {spec.bucket!r}.", "Correct snapshots.store.bucket."
        ) from error
    return S3Store(connect(spec, credentials_dir, ca_file), spec.bucket, prefix + "/" if prefix else "")


def open_uri(uri: str, spec: StoreSpec, credentials_dir: Path | None, ca_file: Path | None) -> BinaryIO:
    """Open `s3://bucket/key` (at the endpoint and with the credentials of `spec`), `file:///path` or a path, to read.

    Raises DataError if it is not there or cannot be named so, and StoreError for a store that fails, also while it is
    read.
    """
    place = urlsplit(uri)
    match place.scheme:
        case "s3":
            return _open_s3(uri, spec, credentials_dir, ca_file)
        case "file":
            return _open_file(uri, Path(unquote(place.path)))
        case "":
            return _open_file(uri, Path(uri))
        case _:
            raise DataError(f"{uri} cannot be opened.", "Give data.uri as s3://bucket/key, file:///path or a path.")


def _open_file(uri: str, path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise DataError(
            f"{uri} cannot be opened: {error.strerror}.", "Check data.uri and what is mounted there."
        ) from error


def _open_s3(uri: str, spec: StoreSpec, credentials_dir: Path | None, ca_file: Path | None) -> BinaryIO:
    place = urlsplit(uri)
    key = unquote(place.path).lstrip("/")
    if not place.netloc or not key:
        raise DataError(f"{uri} names no object.", "Give data.uri as s3://bucket/key.")
    if urlsplit(spec.endpoint).scheme == "file":
        raise DataError(
            f"{uri} needs an S3 endpoint, and snapshots.store is a folder.",
            "Give data.uri as file:///path, or snapshots.store.endpoint as http[s]://host.",
        )
    try:
        return open_object(connect(spec, credentials_dir, ca_file).client, place.netloc, key)
    except (MissingError, BucketMissingError) as error:
        raise DataError(f"{uri} is not there: {error.message}", "Check data.uri.") from error
