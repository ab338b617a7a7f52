"""Ranges of offsets: their names in pins, their digests, and their order. Pure functions of what was read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import zip_longest
from struct import pack
from typing import Self, TypeVar

from cpr_trainer.data.files import Block, Index, SourceFile
from cpr_trainer.errors import DataError
from cpr_trainer.store import Version

#: A range ends at the first message with which it has this many rows or bytes: partitions alternate by ranges.
RANGE_ROWS = 2**14
RANGE_BYTES = 2**23
_NAME = re.compile(r"(?P<topic>.+)-(?P<partition>\d+)@(?P<start>\d+)-(?P<stop>\d+)")
#: The portion of a partition's messages before the oldest needed one, below which retention comes near.
_NEAR = 0.1

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets from `start` up to, and without, `stop` of a partition. Its name is that of a file in a pin."""

    topic: str
    partition: int
    start: int
    stop: int

    @classmethod
    def parse(cls, name: str) -> Self:
        """Return the range of a name. Raises ValueError for another text."""
        if (found := _NAME.fullmatch(name)) is None:
            raise ValueError(f"{name!r} is no range of offsets")
        return cls(found["topic"], *(int(found[part]) for part in ("partition", "start", "stop")))

    @property
    def name(self) -> str:
        """The partition as Kafka prints it, and its offsets, as "clicks-3@100-250"."""
        return f"{self.topic}-{self.partition}@{self.start}-{self.stop}"


class RangeCounter:
    """Counts the messages of a range from `start` on, in the order of their offsets; `rows`, and `size` in bytes.

    `stop` is the offset after the last one read. The digest is the SHA-256 of the offset, length and bytes of each
    message with a value: markers of transactions, aborted messages and tombstones take offsets and have no row.
    """

    def __init__(self, topic: str, partition: int, start: int) -> None:
        self.topic = topic
        self.partition = partition
        self.start = self.stop = start
        self.rows = 0
        self.size = 0
        self._digest = sha256()

    @property
    def is_full(self) -> bool:
        """True if the next message belongs to another range."""
        return self.rows >= RANGE_ROWS or self.size >= RANGE_BYTES

    def add(self, offset: int, value: bytes, rows: int) -> None:
        """Count a message of `rows` rows."""
        self._digest.update(pack("<qq", offset, len(value)))
        self._digest.update(value)
        self.rows += rows
        self.size += len(value)
        self.stop = offset + 1

    @property
    def version(self) -> Version:
        """The bytes of the messages counted so far, and their digest."""
        return Version(self.size, self._digest.hexdigest())

    def index(self) -> Index:
        """Return the range as a pin has it: one block that begins at its first offset, or none without rows."""
        file = SourceFile(OffsetRange(self.topic, self.partition, self.start, self.stop).name, self.version)
        blocks = (Block(file, 0, self.rows, self.start, self.stop - self.start),) if self.rows else ()
        return Index(file, blocks, sequential=False)


def next_offsets(names: Iterable[str]) -> dict[int, int]:
    """Return the offset after the last pinned one of each partition."""
    found: dict[int, int] = {}
    for each in map(OffsetRange.parse, names):
        found[each.partition] = max(each.stop, found.get(each.partition, 0))
    return found


def newest_ranges(names: Iterable[str]) -> set[str]:
    """Return the last range of each partition: all that a look needs of earlier pins."""
    found: dict[int, OffsetRange] = {}
    for each in map(OffsetRange.parse, names):
        if each.partition not in found or each.stop >= found[each.partition].stop:
            found[each.partition] = each
    return {each.name for each in found.values()}


def interleaved(ranges: Mapping[int, Sequence[T]]) -> list[T]:
    """Return the first range of each partition in the order of these, then the second ones, and so on."""
    rounds = zip_longest(*(ranges[partition] for partition in sorted(ranges)))
    return [each for round_ in rounds for each in round_ if each is not None]


def check_bounds(topic: str, pinned: Mapping[int, int], bounds: Mapping[int, tuple[int, int]]) -> None:
    """Raise DataError if messages after the pinned ones were deleted, or if pinned ones are beyond the end.

    pinned: the next offset of each partition. bounds: the first offset of each partition, and the end.
    """
    for partition, offset in sorted(pinned.items()):
        oldest, end = bounds.get(partition, (0, 0))
        if oldest > offset:
            raise lost_messages(topic, partition, range(offset, oldest))
        if end < offset:
            raise DataError(
                f"{topic}-{partition} ends at offset {end}, and messages up to {offset} are pinned.",
                "The topic was created again, or an unclean election lost messages: restore it, or start a new job.",
            )


def lost_messages(topic: str, partition: int, offsets: range) -> DataError:
    """Return the error for messages that retention deleted before they were trained."""
    return DataError(
        f"{OffsetRange(topic, partition, offsets.start, offsets.stop).name} was deleted from the topic before the job "
        f"had trained it.",
        "Raise retention.ms and retention.bytes of the topic: messages must stay until the oldest anchor that is kept "
        "is newer than they are. The range is lost for this job; start a new one, from its last model by restoreFrom.",
    )


def near_deletion(needed: Mapping[int, int], bounds: Mapping[int, tuple[int, int]]) -> list[int]:
    """Return the partitions in which retention may soon delete a message that the job still needs.

    needed: the first needed offset of each partition. Retention has deleted messages of these partitions before, and
    fewer than a tenth of the others come before the needed one.
    """
    found = []
    for partition, offset in sorted(needed.items()):
        oldest, end = bounds.get(partition, (0, 0))
        if oldest and offset - oldest < _NEAR * (end - oldest):
            found.append(partition)
    return found
