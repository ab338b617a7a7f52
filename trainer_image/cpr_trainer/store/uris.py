"""Finds and opens the files that a job's data is in: on a disk, in S3 and in other stores."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import cached_property, partial
from pathlib import Path
from typing import BinaryIO, Protocol
from urllib.parse import quote, unquote

from cpr_contract.spec import EndpointSpec
from cpr_contract.uris import is_file_uri, path_of
from cpr_trainer.errors import DataError
from cpr_trainer.store.connection import connect
from cpr_trainer.store.lake_tables import check_no_table
from cpr_trainer.store.object_stream import CHANGED_REMEDY, Version, version_of
from cpr_trainer.store.protocol import (
    JOBS_STORE,
    BucketMissingError,
    CredentialsRefusedError,
    MissingError,
    StoreUnreachableError,
)
from cpr_trainer.store.s3_data import S3, S3Data

_FOLDER = "/"
#: Read by pyarrow.fs.
_ARROW = ("gs://", "abfss://", "hdfs://")
_REMOTE = (S3, *_ARROW)
_WILD = frozenset("*?[")
_HIDDEN = (".", "_")
#: Ext4 makes this folder at the root of a volume, and root alone may list it.
_LOST_AND_FOUND = "/lost+found/"


class Places(Protocol):
    """Where files lie by a key: `place` is all of a URI before it, as s3://bucket. Safe to use from several threads.

    Every method raises StoreError for a store that fails: MissingError for a file, and BucketMissingError for a place
    that is not there.
    """

    def keys(self, place: str, folder: str) -> list[str]:
        """Return the keys of all files below a folder, which ends in a slash or is empty."""

    def first_key(self, place: str, prefix: str) -> str | None:
        """Return the first key that begins with a prefix, None without one."""

    def version(self, place: str, key: str) -> Version:
        """Return the version that a file has now."""

    def open(self, place: str, key: str, version: Version) -> BinaryIO:
        """Open a file to read, with seek. Reading raises DataError if it is gone or is of another version."""


class Uris:
    """`file:///path`, plain paths, `s3://bucket/key` at one endpoint, whose spec stands in `field`, and other stores.

    A URI that ends in / names all files below it, also through linked folders. One with `*`, `?` or `[...]` names those
    whose whole path matches; a `*` stands for slashes too. Files are not found so if their name, or that of a folder
    on the way, begins with . or _: other tools leave marks of their own there.
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

        Raises DataError if there is none, or if they are those of a table with a log (`lake_tables`), and StoreError
        for a store that fails.
        """
        if _is_remote(uri):
            place, key = _split(uri)
            if not _is_pattern(key):
                return (uri,)
            places, root = self._places(uri), _root(key)
            with _there(uri):
                keys = places.keys(place, root)
                selected = _select(key, keys)
                check_no_table(uri, selected, keys, root, partial(_first_listed, places, place))
            found = [f"{place}/{quote(each)}" for each in selected]
        else:
            path = _path(uri)
            if not _is_pattern(path) or Path(path).is_file():
                return (uri,)
            root = _root(path)
            linked = dict(_files_below(root))
            found = _each_once(_select(path, linked), linked)
            check_no_table(uri, found, linked, root, _first_path)
        if not found:
            raise DataError(f"{uri} names no file.", "Check data.uri and what lies there.")
        return tuple(sorted(found))

    def version(self, uri: str) -> Version:
        """Return the version that one file has now. Raises DataError, and StoreError for a store that fails."""
        if not _is_remote(uri):
            with _open_file(uri) as file:
                return version_of(file)
        with _there(uri):
            return self._places(uri).version(*_split(uri))

    def open(self, uri: str, version: Version) -> BinaryIO:
        """Open that version of a file to read, with seek.

        Raises DataError if it is gone or has changed, and StoreError for a store that fails; both also later.
        """
        if _is_remote(uri):
            with _there(uri):
                return self._places(uri).open(*_split(uri), version)
        file = _open_file(uri)
        if version_of(file) != version:
            file.close()
            raise DataError(f"{uri} has changed.", CHANGED_REMEDY)
        return file

    def _places(self, uri: str) -> Places:
        return self._s3 if uri.startswith(S3) else self._arrow

    @cached_property
    def _s3(self) -> Places:
        if is_file_uri(self._spec.endpoint):
            raise DataError(
                "Data in S3 needs an S3 endpoint, and snapshots.store is a folder.",
                "Give data.uri as file:///path, or state the endpoint of the data in data.store.",
            )
        return S3Data(connect(self._spec, self._credentials_dir, self._ca_file, self._field))

    @cached_property
    def _arrow(self) -> Places:
        # Shards do without pyarrow.
        from cpr_trainer.store.arrow_data import ArrowData  # noqa: PLC0415

        return ArrowData()


@contextmanager
def _there(uri: str) -> Iterator[None]:
    try:
        yield
    except (MissingError, BucketMissingError) as error:
        raise DataError(f"{uri} is not there: {error.message}", "Check data.uri.") from error


def _is_remote(uri: str) -> bool:
    return uri.startswith(_REMOTE)


def _split(uri: str) -> tuple[str, str]:
    """Return the place of a URI, as s3://bucket, and the key there."""
    scheme, _, rest = uri.partition("://")
    name, _, key = rest.partition("/")
    if not key or not name:
        raise DataError(f"{uri} names no object.", f"Give data.uri as {scheme}://bucket/key.")
    return f"{scheme}://{name}", unquote(key)


def _path(uri: str) -> str:
    return str(path_of(uri)) + "/" * uri.endswith("/") if is_file_uri(uri) else uri


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


def _files_below(
    folder: str, above: frozenset[tuple[int, int]] = frozenset(), *, linked: bool = False
) -> Iterator[tuple[str, bool]]:
    """Yield the path of each file below a folder, and whether a link leads there.

    Hidden folders come as a path that ends in a slash, and are not entered. A linked folder is entered unless it is one
    that the link lies in (`above`, by device and inode). Raises DataError for a folder that may not be listed, and
    StoreUnreachableError for one whose volume fails: a job would train only a part of its data.
    """
    try:
        about = os.stat(folder)  # noqa: PTH116 -- paths are matched as text
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        if error.errno not in {errno.EACCES, errno.EPERM}:
            raise StoreUnreachableError(
                f"The folder {folder} cannot be listed: {error.strerror}.", "Check the volume that is mounted there."
            ) from error
        if folder.endswith(_LOST_AND_FOUND):
            return
        raise DataError(
            f"The folder {folder} cannot be listed: {error.strerror}.",
            "Give the pods' user the right to read it (fsGroup, or the folder's mode), or name the other files in "
            "data.uri.",
        ) from error
    identity = about.st_dev, about.st_ino
    if identity in above:
        return
    for entry in entries:
        by_link = linked or entry.is_symlink()
        if not _is_folder(entry):
            yield folder + entry.name, by_link
        elif entry.name.startswith(_HIDDEN):
            yield f"{folder}{entry.name}/", by_link
        else:
            yield from _files_below(f"{folder}{entry.name}/", above | {identity}, linked=by_link)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder, or a link to one; a link to itself is none."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _each_once(paths: list[str], linked: Mapping[str, bool]) -> list[str]:
    """Return the paths of different files: of one that links lead to as well, that without a link, or the first."""
    if not any(linked[path] for path in paths):
        return paths
    found: dict[str, str] = {}
    for path in sorted(paths, key=lambda path: (linked[path], path)):
        found.setdefault(os.path.realpath(path), path)
    return list(found.values())


def _first_path(prefix: str) -> str | None:
    """Return the first path on this machine that begins with a prefix; a folder that cannot be listed has none."""
    folder, _, begin = prefix.rpartition(_FOLDER)
    try:
        names = sorted(name for name in os.listdir(folder or _FOLDER) if name.startswith(begin))  # noqa: PTH208
    except OSError:
        return None
    return f"{folder}/{names[0]}" if names else None


def _first_listed(places: Places, place: str, prefix: str) -> str | None:
    """Return the first key of a place that begins with a prefix, as far as the credentials may list it."""
    try:
        return places.first_key(place, prefix)
    except CredentialsRefusedError:
        return None
