"""The chain of models at the target of a job: its entries, and the writes of a new one, which may end anywhere."""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from cpr_trainer.publish.decisions import superfluous
from cpr_trainer.store import ExistsError, MissingError, Store, in_parallel
from cprjob_serving.chain import (
    ENTRIES,
    FILES,
    HINT,
    ChainError,
    Entry,
    Found,
    PublishedFile,
    attempt_folder,
    entries_in,
    entry_key,
    hint_of,
    read_entry,
    way_to,
)

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Chain:
    """The newest entry and those that it stands on, its base first; empty if there is none, or they cannot be read.

    `newest` is the number of the newest entry, whether or not it can be read; 0 for none.
    """

    newest: int
    entries: tuple[Found, ...] = ()

    @property
    def last(self) -> Found | None:
        """The newest entry."""
        return self.entries[-1] if self.entries else None


class Target:
    """A chain in a store. Every process has a `nonce` of its own."""

    def __init__(self, store: Store, nonce: str, keep: int) -> None:
        self._store, self._nonce, self._keep = store, nonce, keep
        self._read = dict[int, Found]()

    def probe(self) -> None:
        """Raise StoreUnsuitableError if the store lacks an ability that a chain needs; StoreError."""
        self._store.probe("probe/")

    def chain(self) -> Chain:
        """Read the chain; entries are read once. Raises StoreError."""
        numbers = entries_in(each.key for each in self._store.list(ENTRIES))
        self._read = {number: found for number, found in self._read.items() if number in set(numbers)}
        newest = max(numbers, default=0)
        try:
            return Chain(newest, way_to(self._entry(newest), None, self._get) if newest else ())
        except ChainError as error:
            _LOG.warning("a new base is due: %s", error)
            return Chain(newest)

    def _entry(self, number: int) -> Found:
        if number not in self._read:
            found = read_entry(self._get, number)
            if found is None:
                raise ChainError(f"{entry_key(number)} is missing")
            self._read[number] = found
        return self._read[number]

    def _get(self, key: str) -> bytes | None:
        try:
            return self._store.get(key)
        except MissingError:
            return None

    def fetch(self, file: PublishedFile, to: Path) -> None:
        """Write a file of an entry. Raises ChainError if it is missing or another one, StoreError, OSError."""
        to.parent.mkdir(parents=True, exist_ok=True)
        with to.open("w+b") as opened:
            opened.truncate(file.size_bytes)
            with mmap.mmap(opened.fileno(), file.size_bytes) as mapped, memoryview(mapped) as view:
                try:
                    received = self._store.get_into(file.key, [view])
                except MissingError as error:
                    raise ChainError(f"{file.key} is missing") from error
                digest = hashlib.sha256(view).hexdigest()
        if (received.size_bytes, digest) != (file.size_bytes, file.sha256):
            raise ChainError(f"{file.key} is not what was published")

    def write(self, entry: Entry, folder: Path, before: Entry | None) -> Found | None:
        """Write an entry with the files in a folder: files, then the entry, then the hint.

        before: the entry before it, whose files of the same content are named again. Return None if another process
        has written an entry of this number: nothing of this one counts then. Raises StoreError, OSError.
        """
        known = {(each.path, each.sha256): each for each in before.files} if before is not None else {}
        prefix = attempt_folder(entry.sequence, self._nonce)

        def put(path: Path) -> PublishedFile:
            name = path.relative_to(folder).as_posix()
            with _mapped(path) as content:
                digest = hashlib.sha256(content).hexdigest()
                if (same := known.get((name, digest))) is not None:
                    return same
                key = prefix + name.replace("/", ".")  # a folder store deletes an empty folder, and not those above it
                self._store.put(key, content)
                return PublishedFile(name, key, len(content), digest)

        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        entry = replace(entry, files=tuple(in_parallel(put, paths)))
        content, key = entry.to_bytes(), entry_key(entry.sequence)
        try:
            self._store.put(key, content, if_absent=True)
        except ExistsError:
            if self._store.get(key) != content:  # the answer of an earlier attempt may have been lost
                return None
        found = self._read[entry.sequence] = Found.of_bytes(content, key)
        self.renew_hint(entry.sequence)
        return found

    def renew_hint(self, newest: int) -> None:
        """Write the hint, unless it names this entry or a later one. Raises StoreError."""
        try:
            hint = int(json.loads(self._get(HINT) or b"{}")["sequence"])
        except (ValueError, TypeError, KeyError):
            hint = 0
        if newest > hint:
            self._store.put(HINT, hint_of(newest))

    def prune(self) -> None:
        """Delete the entries before the oldest base that stays, and files that no entry names. Raises StoreError."""
        keys = [each.key for prefix in (ENTRIES, FILES) for each in self._store.list(prefix)]
        entries, bases = dict[int, Entry](), list[int]()
        for number in sorted(entries_in(keys), reverse=True):  # older entries than those that stay need not be readable
            try:
                entries[number] = self._entry(number).entry
            except ChainError as error:  # it names unknown files
                _LOG.warning("nothing of the chain is deleted: %s", error)
                return
            bases += [number] if entries[number].is_base else []
            if len(bases) == self._keep:
                break
        old, files = superfluous(keys, bases, entries, self._keep)
        self._store.delete(old)
        self._store.delete(files)


@contextmanager
def _mapped(path: Path) -> Iterator[memoryview]:
    """Provide the bytes of a file; an empty one cannot be mapped."""
    if not path.stat().st_size:
        yield memoryview(b"")
        return
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as view,
    ):
        yield view
