"""Data in Google Cloud Storage, Azure Data Lake Storage and HDFS, read by pyarrow.fs."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, BinaryIO

from pyarrow import fs

from cpr_trainer.errors import DataError
from cpr_trainer.store.data_files import CHANGED_REMEDY, SeekableStream, Version
from cpr_trainer.store.interface import CredentialsRefusedError, MissingError, StoreUnreachableError, retried

GOOGLE, AZURE, HADOOP = "gs://", "abfss://", "hdfs://"
#: Time for which the client of Google retries. Callers handle longer outages.
_RETRY = timedelta(seconds=10)
_BUFFER_BYTES = 1 << 20
_CONTAINER = re.compile(r"([^@]+)@([^.]+)\.dfs\.(.+)")
#: Parts of messages of errors without a type in pyarrow. A status number alone would match names of files, too.
_AZURE_ERROR = r"Azure Error: \[\w*\] "
_REFUSED = re.compile(
    _AZURE_ERROR + "40[13]|UNAUTHENTICATED|PERMISSION_DENIED|DefaultAzureCredential|AccessControlException"
)
_MISSING = re.compile(_AZURE_ERROR + "404|NOT_FOUND")
_IDENTITY = "Check the identity of the trainers' pods, or the variables that name credentials, and what it may read."

#: Returns the file system of a place, and the path of the place in it.
Connect = Callable[[str], tuple[fs.FileSystem, str]]


def connect(place: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of gs://bucket, abfss://container@account.dfs.core.windows.net or hdfs://host[:port].

    The credentials are those of the environment. Raises DataError for another place, and without Hadoop's client.
    """
    scheme, name = place[: place.find("://") + 3], place[place.find("://") + 3 :]
    if scheme == GOOGLE and name:
        return fs.GcsFileSystem(retry_time_limit=_RETRY), name
    if scheme == AZURE and (found := _CONTAINER.fullmatch(name)):
        container, account, domain = found.groups()
        blob, dfs = f".blob.{domain}", f".dfs.{domain}"
        return fs.AzureFileSystem(account, blob_storage_authority=blob, dfs_storage_authority=dfs), container
    if scheme == HADOOP:
        host, _, port = name.partition(":")
        try:
            return fs.HadoopFileSystem(host, int(port or 0)), ""
        except (OSError, ValueError) as error:
            if "libjvm" in str(error) or "libhdfs" in str(error):
                raise DataError(
                    f"{place} needs Hadoop's client, and this image has no libhdfs or no Java.",
                    "Add both to the image, or copy the data into an object store.",
                ) from error
            raise StoreUnreachableError(
                f"{place} cannot be reached: {_first_line(error)}.", "Check data.uri."
            ) from error
    raise DataError(
        f"{place} names no place of data.",
        "Give data.uri as gs://bucket/key, abfss://container@account.dfs.core.windows.net/key or hdfs://host:port/key.",
    )


class ArrowData:
    """Files of the places that `connect` supports; see `DataStore`.

    The tag of a version is the ETag if the file system has one, else the time of the last change.
    """

    def __init__(self, connect: Connect = connect) -> None:
        self._connect = connect
        self._systems: dict[str, tuple[fs.FileSystem, str]] = {}

    @retried
    def keys(self, place: str, folder: str, after: str = "") -> list[str]:
        with self.file_system(place, folder) as (system, path):
            below = fs.FileSelector(path.rstrip("/") or "/", recursive=True, allow_not_found=True)
            found = system.get_file_info(below)
        within = len(path) - len(folder)
        keys = (each.path[within:] for each in found if each.type == fs.FileType.File)
        return [key for key in keys if key > after]

    @retried
    def first_key(self, place: str, prefix: str) -> str | None:
        folder = prefix[: prefix.rfind("/") + 1]
        with self.file_system(place, folder) as (system, path):
            siblings = system.get_file_info(fs.FileSelector(path.rstrip("/") or "/", allow_not_found=True))
        within = len(path) - len(folder)
        return min((key for each in siblings if (key := each.path[within:]).startswith(prefix)), default=None)

    @retried
    def version(self, place: str, key: str) -> Version:
        with self.file_system(place, key) as (system, path), system.open_input_file(path) as file:
            tag = (file.metadata() or {}).get("ETag", b"").decode().strip('"')
            return Version(file.size(), tag or str(system.get_file_info(path).mtime_ns))

    @retried
    def open(self, place: str, key: str, version: Version) -> BinaryIO:
        with self.file_system(place, key) as (system, path):
            file = system.open_input_file(path)
        return io.BufferedReader(_ArrowStream(self, file, place, key, version), _BUFFER_BYTES)

    @contextmanager
    def file_system(self, place: str, key: str) -> Iterator[tuple[fs.FileSystem, str]]:
        """Yield the file system of a place, and the path of a key in it. Raises StoreError for its errors.

        After refused credentials the next call connects again, with the credentials of that time.
        """
        if place not in self._systems:
            self._systems[place] = self._connect(place)
        system, base = self._systems[place]
        try:
            with _translated(f"{place}/{key}"):
                yield system, f"{base}/{key}"
        except CredentialsRefusedError:
            self._systems.pop(place, None)
            raise


class _ArrowStream(SeekableStream):
    """Reads one version of a file.

    pyarrow cannot read a given version, so each read compares the version afterwards. If it is the expected one, the
    bytes belong to it, because no version comes back.
    """

    def __init__(self, data: ArrowData, file: Any, place: str, key: str, version: Version) -> None:
        super().__init__(version.size_bytes)
        self._data = data
        self._file = file
        self._place = place
        self._key = key
        self._version = version

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")[: max(0, self._size - self._position)]
        data = self._read(len(view)) if view else b""
        view[: len(data)] = data
        self._position += len(data)
        return len(data)

    @retried
    def _read(self, size: int) -> bytes:
        uri = f"{self._place}/{self._key}"
        try:
            with self._data.file_system(self._place, self._key):
                data = bytes(self._file.read_at(size, self._position))
            if self._data.version(self._place, self._key) == self._version:
                return data
        except MissingError as error:
            raise DataError(f"{uri} is not there any more: {error.message}", CHANGED_REMEDY) from error
        raise DataError(f"{uri} has changed.", CHANGED_REMEDY)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


@contextmanager
def _translated(uri: str) -> Iterator[None]:
    """Turn pyarrow's errors into those of `Store`."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError) or _MISSING.search(str(error)):
            raise MissingError(uri) from error
        reason = _first_line(error)
        if isinstance(error, PermissionError) or _REFUSED.search(str(error)):
            raise CredentialsRefusedError(f"{uri} may not be read: {reason}.", _IDENTITY) from error
        raise StoreUnreachableError(f"{uri} cannot be reached: {reason}.", "Check data.uri and the network.") from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:300].rstrip(". ")
