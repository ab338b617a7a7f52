"""A real Kafka broker on this machine, which a test kills and starts again, and topics of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # not in its __all__

from cpr_contract.spec import KafkaSpec, SecurityProtocol
from cpr_trainer.data.kafka.client import KafkaTopic
from cpr_trainer.data.kafka.message_format import MessageFormat
from cpr_trainer.data.kafka.values import JsonValues
from cpr_trainer.runtime import Access
from support.pins import Pins
from support.table_data import FILES

_SCRIPT = Path(__file__).parents[1] / "kafka/broker.sh"
_WAIT_S = 120.0


class Broker:
    """The process of a broker. Its data are in `folder`, and survive a SIGKILL."""

    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        self._folder, self._host = folder, host
        self._port = _free_ports(host)
        self._pid = 0
        self.address = f"{host}:{self._port}"
        self.start()
        self.admin = AdminClient({"bootstrap.servers": self.address})

    def address_of(self, protocol: SecurityProtocol) -> str:
        """Return the address of the listener with this protocol: see `broker.sh`."""
        return f"{self._host}:{self._port + {'PLAINTEXT': 0, 'SSL': 2, 'SASL_SSL': 3}[protocol]}"

    def start(self) -> None:
        """Start, and wait until the broker listens."""
        done = subprocess.run(
            [str(_SCRIPT), "start", str(self._folder), self._host, str(self._port)],
            check=True,
            capture_output=True,
            text=True,
        )
        self._pid = int(done.stdout)

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end."""
        os.kill(self._pid, signal.SIGKILL)
        while Path(f"/proc/{self._pid}").exists() and "State:\tZ" not in Path(f"/proc/{self._pid}/status").read_text():
            time.sleep(0.05)

    def topic(self, name: str, partitions: int = 1, **settings: str) -> str:
        """Create a topic; return the URI."""
        config = {key.replace("_", "."): value for key, value in settings.items()}
        self.admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(_WAIT_S)
        return f"kafka://{self.address}/{name}"

    def reader(self, uri: str, spec: KafkaSpec | None = None, access: Access | None = None) -> KafkaTopic:
        """Return the product's reader of a topic."""
        return KafkaTopic(uri, spec or KafkaSpec(), access or Access())

    def producer(self, **settings: Any) -> Producer:
        """Return a producer; settings with underscores for dots."""
        config = {key.replace("_", "."): value for key, value in settings.items()}
        return Producer({"bootstrap.servers": self.address, "linger.ms": 5} | config)

    def delete_before(self, uri: str, partition: int, offset: int) -> None:
        """Delete messages as retention does."""
        place = TopicPartition(uri.rpartition("/")[2], partition, offset)
        self.admin.delete_records([place])[place].result(_WAIT_S)


def send(producer: Producer, uri: str, values: Iterable[bytes | None], partitions: int = 1) -> None:
    """Send messages to the partitions in turn, and wait until the broker has them."""
    for number, value in enumerate(values):
        producer.produce(uri.rpartition("/")[2], value, partition=number % partitions)
    assert producer.flush(_WAIT_S) == 0, "the broker does not take messages"


def count_by_id(broker: Broker, uri: str, pins: Pins) -> Counter[int]:
    """Return how often the pins have each message of JSON, by its field `id`. The ranges are read from the broker."""
    form = MessageFormat(broker.reader(uri), JsonValues(FILES, None))
    values = (value for index in pins.files for block in index.blocks for value in form.fetch(block).values)
    return Counter(json.loads(value)["id"] for value in values)


def transactional(broker: Broker, name: str) -> Producer:
    """Return a producer of transactions; its coordinator may still be starting."""
    producer = broker.producer(transactional_id=name)
    producer.init_transactions(_WAIT_S)
    return producer


def wait_for(reached: Callable[[], bool], what: str) -> None:
    """Wait for a state of the broker."""
    end = time.monotonic() + _WAIT_S
    while not reached():
        assert time.monotonic() < end, f"not within {_WAIT_S:.0f} s: {what}"
        time.sleep(0.05)


@contextmanager
def running_broker(folder: Path, host: str = "127.0.0.1") -> Iterator[Broker]:
    """Start a broker at an address of this machine, and kill it at the end."""
    broker = Broker(folder, host)
    try:
        yield broker
    finally:
        broker.kill()


def _free_ports(host: str) -> int:
    """Return the first of four free ports in a row."""
    while True:
        with ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket()) for _ in range(4)]
            sockets[0].bind((host, 0))
            first = int(sockets[0].getsockname()[1])
            try:
                for number, each in enumerate(sockets[1:], first + 1):
                    each.bind((host, number))
            except (OSError, OverflowError):  # another's, or above the last
                continue
            return first
