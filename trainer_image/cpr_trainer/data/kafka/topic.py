"""The interface of a topic, which tests implement without a broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol


class Message(NamedTuple):
    """A committed message. `value` is None for a tombstone."""

    partition: int
    offset: int
    value: bytes | None


class Topic(Protocol):
    """A topic. Every method raises StoreError if the brokers fail. For one thread."""

    name: str

    def cleanup_policy(self) -> str:
        """Return the topic's cleanup.policy. Raises DataError without the topic."""

    def bounds(self) -> dict[int, tuple[int, int]]:
        """Return the first offset of each partition, and its last stable offset, before which all is committed.

        Raises DataError without the topic.
        """

    def read(self, spans: Mapping[int, range]) -> Iterator[Message]:
        """Yield the committed messages with these offsets, by partition; those of one partition in their order.

        No offset may be beyond the last stable one. Raises DataError if one was deleted, or is beyond the end.
        """

    def disconnect(self) -> None:
        """End the connection, and forget what was received. The next call connects again."""
