"""A topic of Kafka to which clicks are sent."""

from __future__ import annotations

import json
from collections.abc import Sequence

from confluent_kafka import Producer

from cprjob_bench.roles.freshness import clicks_on

_FLUSH_S = 120.0


class ClickTopic:
    """The topic of kafka://HOST:PORT/TOPIC. A click is a JSON object."""

    def __init__(self, uri: str) -> None:
        """Connect to the broker."""
        self._broker, _, self._name = uri.removeprefix("kafka://").partition("/")
        self._producer = Producer({"bootstrap.servers": self._broker, "linger.ms": 5})

    def send(self, items: Sequence[int], seed: int) -> None:
        """Send a click of each item. Raises TimeoutError if the broker does not take them."""
        for label, user, item in clicks_on(items, seed):
            self._producer.produce(self._name, json.dumps({"label": label, "user": user, "item": item}))
        if self._producer.flush(_FLUSH_S):
            raise TimeoutError(f"{self._broker} took no clicks within {_FLUSH_S:.0f} s")
