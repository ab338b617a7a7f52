"""Reads pinned ranges of offsets as blocks of rows, and checks that their messages are those that were pinned."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cpr_trainer.data.files import Block, Index, Parsed
from cpr_trainer.data.kafka.offsets import OffsetRange, RangeCounter
from cpr_trainer.data.kafka.topic import Topic
from cpr_trainer.data.kafka.values import Values
from cpr_trainer.errors import DataError
from cpr_trainer.store import Version

_LOG = logging.getLogger(__name__)

_REMEDY = (
    "Other messages have these offsets now: after an unclean election, or because the topic was created again or is "
    "compacted. Start a new job."
)


@dataclass(frozen=True, slots=True)
class Fetched:
    """The values of a range, and the offset of each."""

    offsets: Sequence[int]
    values: Sequence[bytes]


class MessageFormat:
    """Reads the messages of a topic. A block is a range of offsets of one partition."""

    def __init__(self, topic: Topic, values: Values) -> None:
        self._topic = topic
        self._values = values
        # The block that a thread parsed last, for its messages about rows.
        self._parsed = threading.local()

    def index(self, uri: str) -> Index:
        """Raise DataError: ranges are counted when they are pinned."""
        raise DataError(f"{uri} is a topic, which has no length of its own.", "State data.follow.")

    def fetch(self, block: Block) -> Fetched:
        """Read a range. Raises DataError if its messages were deleted or are not those that were pinned, StoreError.

        Other messages than the pinned ones are read again over another connection, because the error ends the job.
        """
        fetched, version = self._read(block)
        if version != block.file.version:
            _LOG.warning("%s has %s where its pin has %s: it is read again", block.uri, version, block.file.version)
            self._topic.disconnect()
            fetched, version = self._read(block)
        if version != block.file.version:
            sizes = f"it has {version.size_bytes:,} bytes, and its pin {block.file.version.size_bytes:,}"
            raise DataError(f"{block.uri} has changed since it was pinned: {sizes}.", _REMEDY)
        return fetched

    def _read(self, block: Block) -> tuple[Fetched, Version]:
        span = OffsetRange.parse(block.uri)
        counter = RangeCounter(span.topic, span.partition, span.start)
        offsets: list[int] = []
        values: list[bytes] = []
        for message in self._topic.read({span.partition: range(span.start, span.stop)}):
            if message.value is not None:
                offsets.append(message.offset)
                values.append(message.value)
                counter.add(message.offset, message.value, 0)
        return Fetched(offsets, values), counter.version

    def parse(self, block: Block, fetched: Fetched) -> Parsed:
        """Decode the messages of a range. Raises DataError."""
        self._parsed.block, self._parsed.fetched = block, fetched
        parsed = self._values.parse(block, fetched.values)
        if (rows := parsed.table.num_rows + len(parsed.ragged)) != block.rows:
            raise DataError(f"{block.uri} has {rows} rows where its pin has {block.rows}.", _REMEDY)
        return parsed

    def location(self, block: Block, row: int) -> str:
        """Return the partition and the offset of a row of the block that this thread has parsed last."""
        span = OffsetRange.parse(block.uri)
        assert self._parsed.block == block, "a row is named by the thread that parsed its block"
        fetched: Fetched = self._parsed.fetched
        ends = np.cumsum([self._values.rows_of(value) for value in fetched.values])
        return f"{span.topic}-{span.partition}@{fetched.offsets[int(np.searchsorted(ends, row, side='right'))]}"
