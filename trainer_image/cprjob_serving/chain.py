"""The chain of a job's published models: entries in an order, the files that each names, and the way to the newest.

An entry is an immutable object. `chain/current.json` is only a hint: it has the number of an entry that exists.
docs/publish.md describes the objects.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Self

#: The hint, and the folders of entries and of their files.
HINT, ENTRIES, FILES = "chain/current.json", "chain/", "files/"
VERSION = 1
_DIGITS = 12


class ChainError(Exception):
    """A chain cannot be followed now. The message names the object, and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A file of a model: its path in the model's folder, its object, its size, and the SHA-256 (hex) of its bytes."""

    path: str
    key: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A published model. Its `base` is the sequence number of the whole model before it, or its own.

    `previous` is the SHA-256 of the entry before a delta; empty for a base. `time_s` is the time of the publication,
    in seconds since the epoch.
    """

    sequence: int
    base: int
    previous: str
    job: str
    job_uid: str
    anchor: str
    generation: int
    step: int
    samples: int
    time_s: float
    format: str
    files: tuple[PublishedFile, ...] = field(default=())

    @property
    def is_base(self) -> bool:
        """True for a whole model."""
        return self.base == self.sequence

    @property
    def size_bytes(self) -> int:
        """The size of its files."""
        return sum(each.size_bytes for each in self.files)

    def to_bytes(self) -> bytes:
        """Return the object's content."""
        return (json.dumps({"version": VERSION, **asdict(self)}, indent=1) + "\n").encode()

    @classmethod
    def of_bytes(cls, content: bytes, key: str) -> Self:
        """Return the entry in an object. Raises ChainError."""
        try:
            document: dict[str, Any] = json.loads(content)
            if document.pop("version") != VERSION:
                raise ChainError(f"{key} is of another version than {VERSION}; upgrade cprjob")
            files = tuple(PublishedFile(**each) for each in document.pop("files"))
            if any(not _inside(name) for each in files for name in (each.path, each.key)):
                raise ChainError(f"{key} names a file outside of its folder")
            return cls(**document, files=files)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ChainError(f"{key} is no entry of a chain: {error}") from error


@dataclass(frozen=True, slots=True)
class Found:
    """An entry, and the SHA-256 (hex) of its object."""

    entry: Entry
    digest: str

    @classmethod
    def of_bytes(cls, content: bytes, key: str) -> Self:
        """Return the entry in an object. Raises ChainError."""
        return cls(Entry.of_bytes(content, key), hashlib.sha256(content).hexdigest())


def _inside(path: str) -> bool:
    """Return whether a path with slashes stays in the folder that it is relative to."""
    return not {"", ".", ".."} & set(path.split("/"))


#: Reads an object by its key; None if there is none.
Read = Callable[[str], bytes | None]


def entry_key(sequence: int) -> str:
    """Return the key of an entry."""
    return f"{ENTRIES}{sequence:0{_DIGITS}d}.json"


def sequence_of(key: str) -> int | None:
    """Return the sequence number in the key of an entry, or of a file; None for another object."""
    for folder, rest in ((ENTRIES, ".json"), (FILES, "-")):
        number = key.removeprefix(folder)[:_DIGITS]
        if key.startswith(folder) and number.isdecimal() and key[len(folder) + _DIGITS :].startswith(rest):
            return int(number)
    return None


def entries_in(keys: Iterable[str]) -> tuple[int, ...]:
    """Return the sequence numbers of the entries among the keys of a chain."""
    return tuple(number for key in keys if (number := sequence_of(key)) is not None and key == entry_key(number))


def attempt_folder(sequence: int, nonce: str) -> str:
    """Return the folder of the files that one process writes for an entry."""
    return f"{FILES}{sequence:0{_DIGITS}d}-{nonce}/"


def hint_of(sequence: int) -> bytes:
    """Return the content of the hint."""
    return (json.dumps({"sequence": sequence}) + "\n").encode()


def read_entry(read: Read, sequence: int) -> Found | None:
    """Return an entry; None if there is none. Raises ChainError."""
    key = entry_key(sequence)
    content = read(key)
    if content is None:
        return None
    found = Found.of_bytes(content, key)
    if found.entry.sequence != sequence:
        raise ChainError(f"{key} has the sequence number {found.entry.sequence}")
    return found


def newest_entry(read: Read, least: int = 0) -> Found | None:
    """Return the newest entry from number `least` on, by the hint and by the entries after it; None if there is none.

    Raises ChainError.
    """
    start, hint = least, read(HINT)
    with suppress(ValueError, TypeError, KeyError):  # it is no more than a hint
        start = max(start, int(json.loads(hint or b"{}")["sequence"]))
    found = read_entry(read, start) if start else None
    while (further := read_entry(read, (found.entry.sequence if found else start) + 1)) is not None:
        found = further
    return found


def way_to(newest: Found, have: tuple[int, str] | None, read: Read) -> tuple[Found, ...]:
    """Return the entries that lead from a model to the newest one, in their order.

    have: the sequence number of the entry of the model that a reader has, and its digest. It is left out if the model
    is not in the chain of `newest`; the first entry is then a base. Raises ChainError if an entry is missing, or is
    not the one that its successor names.
    """
    found = [newest]
    while not (first := found[0].entry).is_base:
        if have == (first.sequence - 1, first.previous):
            return tuple(found)
        before = read_entry(read, first.sequence - 1)
        if before is None:
            raise ChainError(f"{entry_key(first.sequence - 1)} is missing: it was deleted meanwhile")
        if before.digest != first.previous or before.entry.base != first.base:
            raise ChainError(f"{entry_key(first.sequence - 1)} is not the entry that its successor names")
        found.insert(0, before)
    return tuple(found)
