"""A folder as a store: for laptops, and for volumes that all pods share."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

from cpr_trainer.store.errors import (
    CredentialsRefusedError,
    ExistsError,
    MissingError,
    StoreError,
    StoreFullError,
    StoreUnreachableError,
)

#: Names that begin so are files on their way; a writer that was killed leaves one behind, and nobody lists it.
_UNFINISHED = ".writing-"


class FolderStore:
    """Objects as files below `root`, which is made when it is first written to.

    An object is written aside, flushed to the disk, and moved (or linked, with `if_absent`) to its name. A process
    killed on the way leaves a hidden file of at most that object's size.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, key: str, data: bytes | memoryview, *, if_absent: bool = False) -> None:
        """Write an object whole; see `Store.put`."""
        path = self._path(key)
        with _translated(key, self._root):
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_name(f"{_UNFINISHED}{uuid.uuid4().hex}")
            try:
                _write(unfinished, data)
                if if_absent:
                    os.link(unfinished, path)
                else:
                    unfinished.rename(path)
            finally:
                unfinished.unlink(missing_ok=True)
            _flush(path.parent)

    def get(self, key: str) -> bytes:
        """Read an object; see `Store.get`."""
        with _translated(key, self._root):
            return self._path(key).read_bytes()

    def list(self, prefix: str) -> tuple[str, ...]:
        """All keys that begin with `prefix`, sorted."""
        with _translated(prefix, self._root):
            start = self._root / prefix.rpartition("/")[0]
            keys = (
                Path(folder, name).relative_to(self._root).as_posix()
                for folder, _, names in os.walk(start, onerror=_raise_unless_gone)
                for name in names
                if not name.startswith(_UNFINISHED)
            )
            return tuple(sorted(key for key in keys if key.startswith(prefix)))

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects, and their own folder once it is empty; absence is success."""
        for key in keys:
            path = self._path(key)
            with _translated(key, self._root), contextlib.suppress(FileNotFoundError):
                path.unlink()
                with contextlib.suppress(OSError):  # not empty
                    path.parent.rmdir()

    def _path(self, key: str) -> Path:
        if not key or any(piece in {"", ".", ".."} for piece in key.split("/")):
            raise ValueError(f"{key!r} is no key")
        return self._root / key


def _write(path: Path, data: bytes | memoryview) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _flush(folder: Path) -> None:
    """Bring a folder's new name to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _raise_unless_gone(error: OSError) -> None:
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
        raise _store_error(error, root) from error


def _store_error(error: OSError, root: Path) -> StoreError:
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return StoreFullError(f"The store's folder {root} is full.", "Free space there, or lower snapshots.keep.")
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return CredentialsRefusedError(
                f"The store's folder {root} refuses access: {error.strerror}.",
                "Give the pods' user the right to write there (fsGroup, or the folder's owner).",
            )
        case _:
            return StoreUnreachableError(
                f"The store's folder {root} fails: {error.strerror}.", "Check the volume that is mounted there."
            )
