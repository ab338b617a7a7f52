"""Finds and opens the files of a job's data: on a disk, in S3 and in other stores."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import cached_property, partial
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote, unquote

from cpr_contract.file_uris import is_file_uri, path_of
from cpr_contract.spec import TABLE_FORMATS, EndpointSpec
from cpr_trainer.errors import DataError
from cpr_trainer.runtime import Access
from cpr_trainer.store.connection import connect
from cpr_trainer.store.data_files import CHANGED_REMEDY, DataStore, Version, version_of
from cpr_trainer.store.interface import (
    JOBS_STORE,
    BucketMissingError,
    CredentialsRefusedError,
    MissingError,
    StoreUnreachableError,
)
from cpr_trainer.store.s3_data import S3, S3Data

_NO_ACCESS = Access()
_FOLDER = "/"
#: The schemes of S3 in tables that programs of Hadoop wrote.
_HADOOP_S3 = re.compile("s3[an]://")
#: A local place, as `file:/path` or `file:///path`; its characters stand for themselves.
_LOCAL_PLACE = re.compile("file:(?://)?(?=/)")
#: The schemes that pyarrow.fs reads.
_ARROW = ("gs://", "abfss://", "hdfs://")
_REMOTE = (S3, *_ARROW)
_WILD = frozenset("*?[")
_HIDDEN = (".", "_")
#: Ext4 creates this folder at the root of a volume, and only the user root may list it.
_LOST_AND_FOUND = "/lost+found/"
#: Folders of the logs of table formats, which list the valid files of their table.
_TABLE_KINDS = {"_delta_log": "Delta", ".hoodie": "Hudi", "metadata": "Iceberg"}
_TABLE_LOG = re.compile(r"(.*/|)(?:(_delta_log|\.hoodie)/.*|(metadata)/[^/]+\.metadata\.json(?:\.gz)?)")
#: Prefixes of a log's keys. Names of Iceberg's metadata begin with a version, as v3 or 00003.
_TABLE_LOG_PREFIXES = ("_delta_log/", ".hoodie/", "metadata/v", "metadata/0")


class Uris:
    """`file:///path`, plain paths, `s3://bucket/key` at the endpoint with its spec in `field`, and other stores.

    A URI that ends in / names all files below it, also through linked folders. A URI with `*`, `?` or `[...]` names the
    files with a matching path; a `*` matches slashes, too. Both skip names that begin with . or _, of files and of
    folders below the pattern's root, because other tools use such names for their own files.
    Safe to use from several threads. `topic_access` is that to the brokers of a topic.
    """

    def __init__(
        self,
        spec: EndpointSpec,
        credentials_dir: Path | None = None,
        ca_file: Path | None = None,
        field: str = JOBS_STORE,
        topic_access: Access = _NO_ACCESS,
    ) -> None:
        self.topic_access = topic_access
        self._endpoint = spec.endpoint
        self._connect = partial(connect, spec, credentials_dir, ca_file, field)

    def find(self, uri: str, *, may_be_empty: bool = False) -> tuple[str, ...]:
        """Return the URIs of the files that `uri` names, sorted; a URI of a single file is returned unchecked.

        Raises DataError if there is no file, unless it `may_be_empty`, or if they belong to a table of Delta Lake, Hudi
        or Iceberg, and StoreError if the store fails.
        """
        if uri.startswith(_REMOTE):
            place, key = _split(uri)
            if not _is_pattern(key):
                return (uri,)
            store, root = self._places(uri), _root(key)
            with _data_errors(uri):
                keys = store.keys(place, root)
                selected = _select(key, keys)
                _check_no_table(uri, selected, keys, root, partial(_first_listed, store, place))
            found = [f"{place}/{quote(each)}" for each in selected]
        else:
            path = _path(uri)
            if not _is_pattern(path) or Path(path).is_file():
                return (uri,)
            root = _root(path)
            linked = dict(_files_below(root))
            found = _each_once(_select(path, linked), linked)
            _check_no_table(uri, found, linked, root, _first_path)
        if not found and not may_be_empty:
            raise DataError(f"{uri} names no file.", "Check data.uri and what lies there.")
        return tuple(sorted(found))

    def below(self, folder: str, after: str = "") -> tuple[str, ...]:
        """Return the URIs of all files below a folder, which ends in a slash, sorted; none without the folder.

        after: only files whose names in the folder sort after it. It leaves no other name out, except for folders on a
        disk that begin with . or _. Raises as `find` does.
        """
        if folder.startswith(_REMOTE):
            place, key = _split(folder)
            with _data_errors(folder):
                keys = self._places(folder).keys(place, key, key + after if after else "")
            return tuple(sorted(f"{place}/{quote(each)}" for each in keys))
        root = _path(folder)
        paths = (path for path, _ in _files_below(root) if not path.endswith(_FOLDER))
        return tuple(sorted(path for path in paths if path > root + after))

    @staticmethod
    def of_place(place: str) -> str:
        """Return the URI of a file whose place is a path or a URI in which no character is percent-encoded.

        Raises DataError for a scheme that is not read.
        """
        place = _LOCAL_PLACE.sub("", _HADOOP_S3.sub(S3, place))
        if place.startswith(_REMOTE):
            scheme, _, path = place.partition("://")
            bucket, _, key = path.partition("/")
            return f"{scheme}://{bucket}/{quote(key)}"
        if not place.startswith("/"):
            raise DataError(
                f"The table has the file {place}, which is in no store that is read.",
                "Copy the table into a store that docs/data.md lists, by a program that rewrites its log.",
            )
        return place

    def version(self, uri: str) -> Version:
        """Return the present version of one file. Raises DataError, and StoreError if the store fails."""
        if not uri.startswith(_REMOTE):
            with _open_file(uri) as file:
                return version_of(file)
        with _data_errors(uri):
            return self._places(uri).version(*_split(uri))

    def open(self, uri: str, version: Version) -> BinaryIO:
        """Open a version of a file to read, with seek.

        This call and reads raise DataError if the file was deleted or changed, and StoreError if the store fails.
        """
        if uri.startswith(_REMOTE):
            with _data_errors(uri):
                return self._places(uri).open(*_split(uri), version)
        file = _open_file(uri)
        if version_of(file) != version:
            file.close()
            raise DataError(f"{uri} has changed.", CHANGED_REMEDY)
        return file

    def _places(self, uri: str) -> DataStore:
        return self._s3 if uri.startswith(S3) else self._arrow

    @cached_property
    def _s3(self) -> DataStore:
        if is_file_uri(self._endpoint):
            raise DataError(
                "Data in S3 needs an S3 endpoint, and snapshots.store is a folder.",
                "Give data.uri as file:///path, or state the endpoint of the data in data.store.",
            )
        return S3Data(self._connect())

    @cached_property
    def _arrow(self) -> DataStore:
        # Shards do not import pyarrow.
        from cpr_trainer.store.arrow_data import ArrowData  # noqa: PLC0415

        return ArrowData()


@contextmanager
def _data_errors(uri: str) -> Iterator[None]:
    """Raise DataError for a missing file, bucket or container."""
    try:
        yield
    except (MissingError, BucketMissingError) as error:
        raise DataError(f"{uri} is not there: {error.message}", "Check data.uri.") from error


def _split(uri: str) -> tuple[str, str]:
    """Return the place of a URI, as s3://bucket, and the key there."""
    scheme, _, path = uri.partition("://")
    name, _, key = path.partition("/")
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
    """Return the folder that contains all possible matches of a pattern, with its slash; empty for a whole bucket."""
    first_wild = min((position for position, each in enumerate(pattern) if each in _WILD), default=len(pattern))
    return pattern[: pattern.rfind(_FOLDER, 0, first_wild) + 1]


def _select(pattern: str, paths: Iterable[str]) -> list[str]:
    """Return the paths that match a pattern, without names below its root that are hidden."""
    glob = pattern + "*" if pattern.endswith(_FOLDER) else pattern
    below = len(_root(pattern))
    return [
        path
        for path in paths
        if fnmatchcase(path, glob)
        and not path.endswith(_FOLDER)  # an empty object by which some tools mark a folder
        and not any(name.startswith(_HIDDEN) for name in path[below:].split(_FOLDER))
    ]


def _files_below(
    folder: str, above: frozenset[tuple[int, int]] = frozenset(), *, linked: bool = False
) -> Iterator[tuple[str, bool]]:
    """Yield the path of each file below a folder, and True if the path contains a link.

    Yields a hidden folder as a path that ends in a slash, and does not enter it. Enters a linked folder unless the link
    is in that folder itself (`above`, by device and inode). Raises DataError if a folder may not be listed, and
    StoreUnreachableError if its volume fails, because a job would train only a part of its data.
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
    """Return whether an entry is a folder or a link to one. A link to itself is not a folder."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _each_once(paths: list[str], linked: Mapping[str, bool]) -> list[str]:
    """Return one path of each file: the path without a link if there is one, else the first."""
    if not any(linked[path] for path in paths):
        return paths
    found: dict[str, str] = {}
    for path in sorted(paths, key=lambda path: (linked[path], path)):
        found.setdefault(os.path.realpath(path), path)
    return list(found.values())


def _first_path(prefix: str) -> str | None:
    """Return the first local path that begins with a prefix; None without one, or if its folder cannot be listed."""
    folder, _, begin = prefix.rpartition(_FOLDER)
    try:
        names = sorted(name for name in os.listdir(folder or _FOLDER) if name.startswith(begin))  # noqa: PTH208
    except OSError:
        return None
    return f"{folder}/{names[0]}" if names else None


def _first_listed(store: DataStore, place: str, prefix: str) -> str | None:
    """Return the first key of a place that begins with a prefix; None without one, or if it may not be listed."""
    try:
        return store.first_key(place, prefix)
    except CredentialsRefusedError:
        return None


def _check_no_table(
    uri: str, files: Sequence[str], keys: Iterable[str], root: str, first_key: Callable[[str], str | None]
) -> None:
    """Raise DataError if one of `files`, which `uri` names, belongs to a table with a log of its valid files.

    `keys` are all keys below the folder `root`; `first_key` finds logs in the folders above it.
    """
    above = (first_key(folder + prefix) for folder in _folders_above(root) for prefix in _TABLE_LOG_PREFIXES)
    found = (_TABLE_LOG.fullmatch(key) for key in (*keys, *above) if key is not None)
    for table, log in sorted({(each[1], each[2] or each[3]) for each in found if each}):
        if any(file.startswith(table) for file in files):
            kind = _TABLE_KINDS[log]
            raise DataError(
                f"{uri} names files of the {kind} table in {table or '/'}. Only the table's log ({log}) "
                "lists which of its files are valid: others have rows that were deleted, or are also in a newer file.",
                f"State data.format: {kind}, and that folder as data.uri."
                if kind in TABLE_FORMATS
                else "Copy the table's rows into Parquet files outside of it and give their folder as data.uri, or "
                "read the table by code of your own (data.format: Custom).",
            )


def _folders_above(root: str) -> Iterator[str]:
    """Yield the folders above `root`, each with its slash; the root of a bucket is the empty key."""
    if root and not root.startswith("/"):
        yield ""
    yield from (root[: position + 1] for position, letter in enumerate(root[:-1]) if letter == "/")
