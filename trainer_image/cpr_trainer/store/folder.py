"""A folder as a store, for one machine and for volumes that all pods share."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path

from cpr_trainer.store.interface import (
    CredentialsRefusedError,
    Entry,
    ExistsError,
    MissingError,
    Received,
    StoreFullError,
    StoreUnreachableError,
    StoreUnsuitableError,
)
from cpr_trainer.store.transfers import Buffer, Throttle, extended, flat, slices

#: Infix of the name of an unfinished file, followed by random digits.
_UNFINISHED = ".writing-"
#: Errors of `link` on file systems without hard links. The process has just written the file, so it has the permission.
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})


class FolderStore:
    """Objects as files below `root`, which the first write creates.

    An object is written to a temporary file, flushed to the disk, and renamed (or linked, with `if_absent`). A killed
    process leaves the temporary file, which is listed as an unreferenced object.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(
        self,
        key: str,
        data: Buffer | Sequence[Buffer],
        *,
        if_absent: bool = False,
        throttle: Throttle | None = None,
    ) -> int:
        path = self._path(key)
        with _translated(key, self._root):
            _make(path.parent)
            unfinished = path.with_name(f"{path.name}{_UNFINISHED}{uuid.uuid4().hex}")
            try:
                crc = _write(unfinished, flat(data), throttle)
                if if_absent:
                    _link(unfinished, path)
                else:
                    unfinished.rename(path)
            finally:
                unfinished.unlink(missing_ok=True)
            _flush(path.parent)
        return crc

    def get(self, key: str) -> bytes:
        with _translated(key, self._root):
            return self._path(key).read_bytes()

    def get_into(self, key: str, buffers: Sequence[memoryview]) -> Received:
        crc = 0
        with _translated(key, self._root), self._path(key).open("rb") as file:
            for piece in slices(flat(buffers)):
                found = piece[: file.readinto(piece)]
                crc = extended(crc, found)
                if len(found) < len(piece):
                    break
            return Received(os.fstat(file.fileno()).st_size, crc)

    def list(self, prefix: str) -> tuple[Entry, ...]:
        with _translated(prefix, self._root):
            found = (entry for entry in self._entries(prefix.rpartition("/")[0]) if entry.key.startswith(prefix))
            return tuple(sorted(found, key=attrgetter("key")))

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects, and their folder once it is empty; absence is success."""
        for key in keys:
            path = self._path(key)
            with _translated(key, self._root), contextlib.suppress(FileNotFoundError):
                path.unlink()
                with contextlib.suppress(OSError):  # not empty
                    path.parent.rmdir()

    def probe(self, folder: str) -> None:
        key = f"{folder}{uuid.uuid4().hex}/object"
        self.put(key, b"", if_absent=True)
        self.delete([key])

    def _entries(self, folder: str) -> Iterator[Entry]:
        for parent, _, names in os.walk(self._root / folder, onerror=_raise_unless_missing):
            for name in names:
                path = Path(parent, name)
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    status = path.stat()
                    yield Entry(path.relative_to(self._root).as_posix(), status.st_size, status.st_mtime)

    def _path(self, key: str) -> Path:
        if not key or any(piece in {"", ".", ".."} for piece in key.split("/")):
            raise ValueError(f"{key!r} is not a key")
        return self._root / key


def _write(path: Path, views: Sequence[memoryview], throttle: Throttle | None) -> int:
    """Write a file to the disk, and return the CRC-32C of its bytes."""
    crc = 0
    with path.open("wb", buffering=0) as file:
        for piece in slices(views):
            if throttle:
                throttle.wait(len(piece))
            written = 0
            while written < len(piece):
                written += file.write(piece[written:])
            crc = extended(crc, piece)
        os.fsync(file.fileno())
    return crc


def _link(unfinished: Path, path: Path) -> None:
    """Link a file to its name unless a file has it. A link is atomic on all file systems."""
    try:
        os.link(unfinished, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        raise StoreUnsuitableError(
            f"The store's folder is on a file system without hard links ({path.parent}: {error.strerror}).",
            "Mount a volume that has them, such as ext4, XFS or NFS, or name an S3 store in snapshots.store.",
        ) from error


def _make(folder: Path) -> None:
    """Create a folder and its parents durably. Raises NotADirectoryError if one of them is a file."""
    if not folder.is_dir():
        _make(folder.parent)
        try:
            folder.mkdir(exist_ok=True)
        except FileExistsError as error:  # which would be reported as an existing object
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from error
        _flush(folder.parent)


def _flush(folder: Path) -> None:
    """Flush a folder's entries to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


@contextlib.contextmanager
def _translated(key: str, root: Path) -> Iterator[None]:
    """Turn the system's errors into those of `Store`."""
    try:
        yield
    except FileNotFoundError as error:
        raise MissingError(key) from error
    except FileExistsError as error:
        raise ExistsError(key) from error
    except OSError as error:
        match error.errno:
            case errno.ENOSPC | errno.EDQUOT:
                remedy = "Free space there, or lower snapshots.keep."
                raise StoreFullError(f"The store's folder {root} is full.", remedy) from error
            case errno.EACCES | errno.EPERM | errno.EROFS:
                raise CredentialsRefusedError(
                    f"The store's folder {root} refuses access: {error.strerror}.",
                    "Give the pods' user the right to write there (fsGroup, or the folder's owner).",
                ) from error
            case _:
                raise StoreUnreachableError(
                    f"The store's folder {root} fails: {error.strerror}.", "Check the volume that is mounted there."
                ) from error
