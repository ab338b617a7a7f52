"""A topic at its brokers, by confluent-kafka. No consumer group is joined, and no offset is committed: pins are."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import certifi
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # not in its __all__
    AdminClient,
    ConfigResource,
    OffsetSpec,
)

from cpr_contract.spec import KafkaSpec
from cpr_trainer.data.kafka.offsets import check_bounds, lost_messages
from cpr_trainer.data.kafka.topic import Message
from cpr_trainer.errors import DataError
from cpr_trainer.runtime import Access
from cpr_trainer.store import CredentialsRefusedError, StoreError, StoreUnreachableError

_LOG = logging.getLogger(__name__)

_REQUEST_S = 10.0
_POLL_S = 0.2
#: A reader checks the bounds of its partitions after this number of polls without a message.
_CHECK_POLLS = 10
_MAX_EMPTY_POLLS = 100
_BATCH = 1000
# Names of the client's own errors begin with an underscore.
_EOF = KafkaError._PARTITION_EOF  # noqa: SLF001
_OUT_OF_RANGE = KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001
_MISSING = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    }
)
_REFUSED = frozenset(
    {
        KafkaError._AUTHENTICATION,  # noqa: SLF001
        KafkaError._INVALID_ARG,  # noqa: SLF001 -- of a client without a password, or with a damaged certificate
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
#: The client looks for the coordinator of a group that is never joined, and connects again by itself.
_IGNORED = frozenset({KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError._ALL_BROKERS_DOWN})  # noqa: SLF001
_CONSUMER: Final[Mapping[str, Any]] = {
    "group.id": "cprjob",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 100,
    "queued.max.messages.kbytes": 16384,
}


class KafkaTopic:
    """The topic of `uri`, kafka://broker:port[,broker:port]/topic. An error of the brokers ends the connection.

    The next call connects again, with credentials that may have changed.
    """

    def __init__(self, uri: str, spec: KafkaSpec, access: Access) -> None:
        self._brokers, _, self.name = uri.removeprefix("kafka://").partition("/")
        self._spec = spec
        self._access = access
        self._consumer: Consumer | None = None
        self._admin: AdminClient | None = None
        self._last_error: KafkaError | None = None
        # The partition and offset at which the consumer continues, and the messages that it has received since.
        self._position: tuple[int, int] | None = None
        self._received: deque[Any] = deque()

    def cleanup_policy(self) -> str:
        with self._client_errors("DescribeConfigs"):
            resource = ConfigResource("topic", self.name)
            (found,) = self._admin_client().describe_configs([resource], request_timeout=_REQUEST_S).values()
            return str(found.result(_REQUEST_S)["cleanup.policy"].value)

    def bounds(self) -> dict[int, tuple[int, int]]:
        with self._client_errors("Describe"):
            # A client of administrators would let the broker create the topic.
            topic = self._connected().list_topics(self.name, timeout=_REQUEST_S).topics[self.name]
            if topic.error is not None:
                raise KafkaException(topic.error)
            admin = self._admin_client()
            first, end = (self._offsets(admin, topic.partitions, at) for at in (OffsetSpec.earliest, OffsetSpec.latest))
            return {partition: (first[partition], end[partition]) for partition in sorted(topic.partitions)}

    def read(self, spans: Mapping[int, range]) -> Iterator[Message]:
        with self._client_errors("Read"):
            yield from self._read(dict(spans))

    def disconnect(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = self._admin = self._position = None
        self._received.clear()

    def _read(self, left: dict[int, range]) -> Iterator[Message]:
        """Read these spans, and take away each that was read."""
        consumer, ends = self._assigned(left), [(partition, span.stop) for partition, span in left.items()]
        self._position = None
        progress = {partition: span.start for partition, span in left.items()}
        for message in self._arriving(consumer, left, progress):
            partition, offset = message.partition(), message.offset()
            # The client may repeat messages after it has connected again.
            is_repeated = message.error() is None and offset < progress.get(partition, 0)
            if (span := left.get(partition)) is None or is_repeated:
                continue
            if (error := message.error()) is not None:
                if error.code() == _OUT_OF_RANGE:
                    self._check(left, progress)
                if error.code() != _EOF:
                    raise KafkaException(error)
                progress[partition] = max(offset, progress[partition])
            elif offset < span.stop:
                yield Message(partition, offset, message.value())
                progress[partition] = offset + 1
            else:
                self._received.appendleft(message)
                progress[partition] = span.stop
            if progress[partition] >= span.stop:
                del left[partition]
                if left:
                    consumer.incremental_unassign([TopicPartition(self.name, partition)])
        if len(ends) == 1:
            self._position = ends[0]

    def _arriving(self, consumer: Consumer, left: dict[int, range], progress: Mapping[int, int]) -> Iterator[Any]:
        """Yield what the consumer receives while spans are left. Raises StoreUnreachableError if that is nothing."""
        empty_polls = 0
        while left:
            if self._received:
                empty_polls = 0
                yield self._received.popleft()
                continue
            self._received.extend(self._poll(consumer))
            empty_polls += not self._received
            if empty_polls >= _MAX_EMPTY_POLLS:
                raise self._unreachable("no message came")
            if empty_polls % _CHECK_POLLS == _CHECK_POLLS - 1:
                self._check(left, progress)
                # Only markers may be left, and the consumer has reported the end before.
                consumer.assign([TopicPartition(self.name, each, progress[each]) for each in left])

    def _assigned(self, spans: Mapping[int, range]) -> Consumer:
        """Return the consumer at the start of these spans."""
        consumer = self._connected()
        starts = [(partition, span.start) for partition, span in spans.items()]
        if starts != [self._position]:
            self._received.clear()
            consumer.assign([TopicPartition(self.name, *each) for each in starts])
        return consumer

    def _poll(self, consumer: Consumer) -> list[Any]:
        """Return messages that have arrived; wait for the first one for a moment. Errors of groups are ignored."""
        first = consumer.poll(_POLL_S)
        found = [] if first is None else [first, *consumer.consume(_BATCH, timeout=0)]
        return [each for each in found if (error := each.error()) is None or error.code() not in _IGNORED]

    def _check(self, left: Mapping[int, range], next_offsets: Mapping[int, int]) -> None:
        """Raise DataError if messages that are read were deleted, or are beyond the end."""
        bounds = self.bounds()
        for partition, span in left.items():
            oldest, _ = bounds.get(partition, (0, 0))
            if oldest > next_offsets[partition]:
                raise lost_messages(self.name, partition, range(next_offsets[partition], min(oldest, span.stop)))
        check_bounds(self.name, {partition: span.stop for partition, span in left.items()}, bounds)

    def _offsets(self, admin: AdminClient, partitions: Mapping[int, Any], at: Any) -> dict[int, int]:
        places = {TopicPartition(self.name, partition): at() for partition in partitions}
        found = admin.list_offsets(places, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_REQUEST_S)
        return {place.partition: int(future.result(_REQUEST_S).offset) for place, future in found.items()}

    def _connected(self) -> Consumer:
        if self._consumer is None:
            self._last_error = None
            self._consumer = Consumer({**self._settings(), **_CONSUMER}, logger=_LOG)
        return self._consumer

    def _admin_client(self) -> AdminClient:
        if self._admin is None:
            self._last_error = None
            self._admin = AdminClient(self._settings(), logger=_LOG)
        return self._admin

    def _settings(self) -> dict[str, Any]:
        """Return the settings of a client; credentials are read from their files."""
        spec, folder = self._spec, self._access.credentials_dir

        def file(name: str) -> Path | None:
            return folder / name if folder is not None and (folder / name).exists() else None

        def secret(name: str) -> str | None:
            return None if (path := file(name)) is None else path.read_text("utf-8").strip()

        authorities = str(self._access.ca_file or certifi.where())
        settings = {
            "bootstrap.servers": self._brokers,
            "client.id": "cprjob",
            "error_cb": self._on_error,
            # Critical ones: an error is raised once, and the client would log each attempt to connect.
            "log_level": 2,
            "security.protocol": spec.security_protocol,
            "sasl.mechanism": spec.sasl_mechanism,
            "sasl.username": secret("username"),
            "sasl.password": secret("password"),
            "ssl.ca.location": authorities if spec.security_protocol.endswith("SSL") else None,
            "ssl.certificate.location": file("tls.crt"),
            "ssl.key.location": file("tls.key"),
        }
        stated = {name: value for name, value in settings.items() if value is not None}
        return {name: str(value) if isinstance(value, Path) else value for name, value in stated.items()}

    def _on_error(self, error: KafkaError) -> None:
        self._last_error = error

    def _unreachable(self, text: str) -> StoreError:
        error = self._last_error
        if error is not None and error.code() in _REFUSED:
            return self._refused(error.str())
        return StoreUnreachableError(
            f"Kafka at {self._brokers} cannot be reached: {text if error is None else error.str()}.",
            "Check data.uri, data.kafka.securityProtocol and the brokers; the job continues once they answer.",
        )

    def _refused(self, text: str) -> CredentialsRefusedError:
        return CredentialsRefusedError(
            f"Kafka at {self._brokers} refuses the credentials: {text}.",
            "Correct data.kafka and its Secret, and allow Read, Describe and DescribeConfigs on the topic.",
        )

    @contextmanager
    def _client_errors(self, operation: str) -> Iterator[None]:
        """Convert errors of the client to those of this package. The next call connects again."""
        try:
            yield
        except KafkaException as raised:
            self.disconnect()
            error: KafkaError = raised.args[0]
            if error.code() in _MISSING:
                raise DataError(f"The topic {self.name} is not there: {error.str()}.", "Check data.uri.") from raised
            if error.code() in _REFUSED:
                raise self._refused(f"{operation}: {error.str()}") from raised
            raise self._unreachable(error.str()) from raised
        except StoreError:
            self.disconnect()
            raise
        except TimeoutError as raised:
            self.disconnect()
            raise self._unreachable(f"{operation}: no answer") from raised
