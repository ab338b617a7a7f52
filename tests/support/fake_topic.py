"""A topic without a broker: partitions with committed messages, markers of transactions, and retention."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cpr_trainer.data.kafka.offsets import check_bounds, lost_messages
from cpr_trainer.data.kafka.topic import Message


class Marker:
    """Takes an offset, and is never read: the end of a transaction, or an aborted message."""


MARKER = Marker()


class FakeTopic:
    """Implements `Topic`. `log` has what lies at each offset of a partition, from 0 on."""

    def __init__(self, partitions: int = 1, policy: str = "delete") -> None:
        self.name = "clicks"
        self.policy = policy
        self.log: list[list[bytes | Marker | None]] = [[] for _ in range(partitions)]
        self.oldest = [0] * partitions
        #: Messages at the end of each partition in a transaction that is open.
        self.uncommitted = [0] * partitions
        #: What the present connection has received in place of the log; a new one reads the log.
        self.received: dict[tuple[int, int], bytes] = {}

    def cleanup_policy(self) -> str:
        """Return what the test states."""
        return self.policy

    def bounds(self) -> dict[int, tuple[int, int]]:
        """Return the first offset of each partition, and its last stable offset."""
        return {place: (self.oldest[place], len(log) - self.uncommitted[place]) for place, log in enumerate(self.log)}

    def read(self, spans: Mapping[int, range]) -> Iterator[Message]:
        """Yield messages, one of each partition in turn."""
        check_bounds(self.name, {partition: span.stop for partition, span in spans.items()}, self.bounds())
        for partition, span in spans.items():
            if span.start < self.oldest[partition]:
                raise lost_messages(self.name, partition, range(span.start, self.oldest[partition]))
        for place in range(max(map(len, spans.values()))):
            for partition, span in spans.items():
                if place < len(span) and not isinstance(value := self.log[partition][span[place]], Marker):
                    yield Message(partition, span[place], self.received.get((partition, span[place]), value))

    def disconnect(self) -> None:
        """Read the log again."""
        self.received.clear()
