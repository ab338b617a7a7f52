"""New messages of a topic for the next pin: read up to the last stable offset, and counted by range."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from cpr_trainer.data.arrivals import Arrived, Pinned
from cpr_trainer.data.kafka.offsets import (
    OffsetRange,
    RangeCounter,
    check_bounds,
    interleaved,
    near_deletion,
    next_offsets,
)
from cpr_trainer.data.kafka.topic import Topic
from cpr_trainer.data.kafka.values import Values
from cpr_trainer.errors import DataError

_LOG = logging.getLogger(__name__)

#: A look ends at this many offsets or bytes: a pin of the rest follows at once.
_LOOK_OFFSETS = 2**17
_LOOK_BYTES = 2**26


class ArrivingMessages:
    """Reads messages that are not pinned yet. For one thread.

    Ranges that were read and are not pinned yet grow with the next look, and are forgotten when another leader pins.
    """

    def __init__(self, topic: Topic, values: Values) -> None:
        self._topic = topic
        self._values = values
        self._unpinned: dict[int, list[RangeCounter]] = {}
        self._warned: list[int] = []

    def look(self, pinned: Pinned) -> Arrived:
        """Read on, and return the ranges that are not pinned.

        Raises DataError if messages were deleted before they were pinned, or the topic is compacted, and StoreError.
        """
        topic = self._topic
        if "compact" in (policy := topic.cleanup_policy()):
            raise DataError(
                f"The topic {topic.name} has cleanup.policy={policy}: compaction deletes messages between others.",
                "Set cleanup.policy=delete, or write the samples to a topic without compaction.",
            )
        bounds, offsets = topic.bounds(), next_offsets(pinned.names)
        check_bounds(topic.name, offsets, bounds)
        self._warn_of_retention(pinned.needed, bounds)
        self._unpinned = {
            partition: self._continued(partition, offsets.get(partition), oldest)
            for partition, (oldest, _) in bounds.items()
        }
        self._read({partition: end for partition, (_, end) in bounds.items()})
        unread = sum(end - self._unpinned[partition][-1].stop for partition, (_, end) in bounds.items())
        if unread:
            _LOG.info("%d messages of %s are not counted yet", unread, topic.name)
        ranges = {
            partition: [each.index() for each in counters if each.rows or partition not in offsets]
            for partition, counters in self._unpinned.items()
        }
        return Arrived(tuple(interleaved(ranges)), listed=pinned.names, more=unread > 0, is_behind=unread > 0)

    def _continued(self, partition: int, pinned: int | None, oldest: int) -> list[RangeCounter]:
        """Return what was read after the pinned offset; an empty range there if that is nothing."""
        read = [each for each in self._unpinned.get(partition, ()) if each.stop > (pinned or 0)]
        start = oldest if pinned is None else pinned
        if read and (read[0].start == pinned or (pinned is None and read[0].start >= oldest)):
            return read
        return [RangeCounter(self._topic.name, partition, start)]

    def _read(self, ends: dict[int, int]) -> None:
        """Read the messages up to these ends, or until the look is full."""
        starts = {partition: self._unpinned[partition][-1].stop for partition, end in ends.items()}
        new = [partition for partition, start in starts.items() if start < ends[partition]]
        if not new:
            return
        share = max(_LOOK_OFFSETS // len(new), 1)
        spans = {each: range(starts[each], min(ends[each], starts[each] + share)) for each in new}
        size = 0
        for message in self._topic.read(spans):
            counters = self._unpinned[message.partition]
            if message.value is None:
                continue
            if counters[-1].is_full:
                counters.append(RangeCounter(self._topic.name, message.partition, counters[-1].stop))
            counters[-1].add(message.offset, message.value, self._values.rows_of(message.value))
            size += len(message.value)
            if size >= _LOOK_BYTES:
                return
        for partition, span in spans.items():
            # The offsets after the last message are those of markers, of aborted messages and of tombstones.
            self._unpinned[partition][-1].stop = span.stop

    def _warn_of_retention(self, needed: Iterable[str], bounds: dict[int, tuple[int, int]]) -> None:
        first: dict[int, int] = {}
        for each in map(OffsetRange.parse, needed):
            first.setdefault(each.partition, each.start)
        near = near_deletion(first, bounds)
        if near and near != self._warned:
            _LOG.warning(
                "retention of %s is near the messages of the oldest anchor, in partitions %s: raise retention.ms and "
                "retention.bytes",
                self._topic.name,
                near,
            )
        self._warned = near
