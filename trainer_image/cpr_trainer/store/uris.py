"""Finds and opens the files that a job's data is in: `file://`, paths and `s3://`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote, unquote

from cpr_contract.spec import EndpointSpec
from cpr_trainer.errors import DataError
from cpr_trainer.store.connection import Connection, connect
from cpr_trainer.store.object_stream import CHANGED_REMEDY, Version, open_object, version_of
from cpr_trainer.store.protocol import JOBS_STORE, BucketMissingError, MissingError
from cpr_trainer.store.s3_errors import persistent, translated

_S3, _FILE, _FOLDER = "s3://", "file://", "/"
_WILD = frozenset("*?[")
_HIDDEN = (".", "_")


class Uris:
    """`s3://bucket/key` at one endpoint, whose spec stands in `field`; `file:///path`, and plain paths.

    A URI that ends in / names all files below it. One with `*`, `?` or `[...]` names those whose whole path matches; a
    `*` stands for slashes too. Files are not found so if their name, or that of a folder on the way, begins with . or
    _: other tools leave marks of their own there.
    """

    def __init__(
        self,
        spec: EndpointSpec,
        credentials_dir: Path | None = None,
        ca_file: Path | None = None,
        field: str = JOBS_STORE,
    ) -> None:
        self._spec = spec
        self._credentials_dir = credentials_dir
        self._ca_file = ca_file
        self._field = field

    def find(self, uri: str) -> tuple[str, ...]:
        """Return the URIs of the files that `uri` names, sorted; one that names a single file is not looked up.

        Raises DataError if there is none, StoreError for a store that fails.
        """
        if uri.startswith(_S3):
            bucket, key = _object(uri)
            if not _is_pattern(key):
                return (uri,)
            found = [f"{_S3}{bucket}/{quote(each)}" for each in _select(key, self._keys(uri, bucket, _root(key)))]
        else:
            path = _path(uri)
            if not _is_pattern(path) or Path(path).is_file():
                return (uri,)
            found = _select(path, _files_below(_root(path)))
        if not found:
            raise DataError(f"{uri} names no file.", "Check data.uri and what lies there.")
        return tuple(sorted(found))

    def version(self, uri: str) -> Version:
        """Return the version that one file has now. Raises DataError, and StoreError for a store that fails."""
        if not uri.startswith(_S3):
            with _open_file(uri) as file:
                return version_of(file)
        bucket, key = _object(uri)
        with _there(uri):
            return _stat(self._connection, bucket, key)

    def open(self, uri: str, version: Version) -> BinaryIO:
        """Open that version of a file to read, with seek.

        Raises DataError if it is gone or has changed, and StoreError for a store that fails; both also later.
        """
        if uri.startswith(_S3):
            return open_object(self._connection, *_object(uri), version)
        file = _open_file(uri)
        if version_of(file) != version:
            file.close()
            raise DataError(f"{uri} has changed.", CHANGED_REMEDY)
        return file

    def _keys(self, uri: str, bucket: str, prefix: str) -> list[str]:
        with _there(uri):
            return _list(self._connection, bucket, prefix)

    @cached_property
    def _connection(self) -> Connection:
        if self._spec.endpoint.startswith(_FILE):
            raise DataError(
                "Data in S3 needs an S3 endpoint, and snapshots.store is a folder.",
                "Give data.uri as file:///path, or state the endpoint of the data in data.store.",
            )
        return connect(self._spec, self._credentials_dir, self._ca_file, self._field)


@contextmanager
def _there(uri: str) -> Iterator[None]:
    try:
        yield
    except (MissingError, BucketMissingError) as error:
        raise DataError(f"{uri} is not there: {error.message}", "Check data.uri.") from error


@persistent
def _stat(connection: Connection, bucket: str, key: str) -> Version:
    with translated(bucket, key, connection.field):
        status = connection.client.stat_object(bucket, key)
        return Version(int(status.size or 0), str(status.etag))


@persistent
def _list(connection: Connection, bucket: str, prefix: str) -> list[str]:
    with translated(bucket, prefix, connection.field):
        return [str(item.object_name) for item in connection.client.list_objects(bucket, prefix, recursive=True)]


def _object(uri: str) -> tuple[str, str]:
    bucket, _, key = uri.removeprefix(_S3).partition("/")
    if not bucket or not key:
        raise DataError(f"{uri} names no object.", "Give data.uri as s3://bucket/key.")
    return bucket, unquote(key)


def _path(uri: str) -> str:
    if uri.startswith(_FILE):
        return unquote(uri.removeprefix(_FILE).removeprefix("localhost"))
    return uri


def _open_file(uri: str) -> BinaryIO:
    path = Path(_path(uri))
    if not path.is_absolute():
        raise DataError(f"{uri} cannot be opened.", "Give data.uri as s3://bucket/key, file:///path or a path.")
    try:
        return path.open("rb")
    except OSError as error:
        raise DataError(
            f"{uri} cannot be opened: {error.strerror}.",
            "Check data.uri and what is mounted there; a folder's files are named by a / at the end.",
        ) from error


def _is_pattern(path: str) -> bool:
    return path.endswith(_FOLDER) or not _WILD.isdisjoint(path)


def _root(pattern: str) -> str:
    """The folder below which everything lies that a pattern can match, with its slash; empty for a whole bucket."""
    first_wild = min((place for place, each in enumerate(pattern) if each in _WILD), default=len(pattern))
    return pattern[: pattern.rfind(_FOLDER, 0, first_wild) + 1]


def _select(pattern: str, paths: Iterable[str]) -> list[str]:
    """Return the paths that a pattern matches, without those that are hidden below its root."""
    wanted = pattern + "*" if pattern.endswith(_FOLDER) else pattern
    below = len(_root(pattern))
    return [
        path
        for path in paths
        if fnmatchcase(path, wanted)
        and not path.endswith(_FOLDER)  # what some tools call a folder of a bucket
        and not any(name.startswith(_HIDDEN) for name in path[below:].split(_FOLDER))
    ]


def _files_below(root: str) -> Iterator[str]:
    for folder, _, names in os.walk(root):
        yield from (os.path.join(folder, name) for name in names)  # noqa: PTH118 -- matched as text
