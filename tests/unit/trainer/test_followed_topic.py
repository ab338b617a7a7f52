"""Messages that arrive are pinned once, by any leader, and all trainers train each committed one once."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpr_contract.codec import from_json
from cpr_contract.pinned_data import DataPin, data_pin_key
from cpr_contract.spec import DataSpec, FollowSpec
from cpr_trainer.checkpoint.format import data_pins
from cpr_trainer.data.kafka import arriving_messages, offsets
from cpr_trainer.data.kafka.arriving_messages import ArrivingMessages
from cpr_trainer.data.kafka.message_format import MessageFormat
from cpr_trainer.data.kafka.values import JsonValues
from cpr_trainer.trainer.followed_data import DataLooks, FollowedData
from support.fake_topic import MARKER, FakeTopic
from support.memory_store import MemoryStore
from support.table_data import FILES

BATCH = 8
DATA = DataSpec("Kafka", "kafka://broker:9092/clicks", 1, None, BATCH, 3, 0, shuffle_rows=30, follow=FollowSpec(1.0))
VALUES = JsonValues(FILES, None)


def looks_of(store: MemoryStore, topic: FakeTopic, follow: FollowSpec = FollowSpec(1.0)) -> DataLooks:  # noqa: B008
    return DataLooks(replace(DATA, follow=follow), "uid", store, ArrivingMessages(topic, VALUES))


class Reader:
    """A trainer: the messages of the pins that it has read, and those that it trains."""

    def __init__(self, store: MemoryStore, topic: FakeTopic) -> None:
        self.followed = FollowedData(DATA, "uid", store)
        self._form = MessageFormat(topic, VALUES)
        self.messages: list[bytes] = []

    def read(self) -> None:
        for index in self.followed.read():
            for block in index.blocks:
                self.messages += self._form.fetch(block).values

    def step(self, step: int) -> list[bytes]:
        order = self.followed.order
        return [self.messages[row] for row in order.indices_of(order.slice_of(step)).tolist()]


class Arrivals:
    """Messages, transactions and partitions that come; two leaders, which die and take each other's place."""

    def __init__(self, seed: int) -> None:
        self.rng, self.topic, self.store = random.Random(seed), FakeTopic(2), MemoryStore()
        self.leaders = [self._leader() for _ in range(2)]
        self.readers = [Reader(self.store, self.topic)]
        self.sent: list[bytes] = []

    def _leader(self) -> DataLooks:
        return looks_of(self.store, self.topic)

    def look(self) -> None:
        place = self.rng.randrange(2)
        if self.rng.random() < 0.2:
            self.leaders[place] = self._leader()
        self.store.before_put = self._fail if self.rng.random() < 0.2 else lambda _: None
        try:
            self.leaders[place].look(waits=self.rng.random() < 0.5, now_s=0.0)
        except InterruptedError:
            self.leaders[place] = self._leader()
        self.store.before_put = lambda _: None

    def send(self) -> None:
        """Send messages in a transaction or without, and markers that take offsets; at times to a new partition."""
        topic, rng = self.topic, self.rng
        if rng.random() < 0.1:
            topic.log.append([])
            topic.oldest.append(0)
            topic.uncommitted.append(0)
        place = rng.randrange(len(topic.log))
        new = [b"%d" % (len(self.sent) + number) for number in range(rng.randint(0, 12))]
        topic.log[place] += new
        self.sent += new
        topic.uncommitted[place] = len(new)
        for _ in range(rng.randint(0, 3)):
            self.look()
        topic.log[place] += rng.choices([MARKER, None], k=rng.randint(0, 2))
        topic.uncommitted[place] = 0
        for reader in self.readers:
            if rng.random() < 0.5:
                reader.read()
        if rng.random() < 0.2:
            self.readers.append(Reader(self.store, topic))

    @staticmethod
    def _fail(_key: str) -> None:
        raise InterruptedError


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32))
def test_each_message_is_trained_once_for_any_leader_and_any_time_of_reading(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_pins, "RESTATE_EVERY", 3)
        patch.setattr(offsets, "RANGE_ROWS", 4)
        patch.setattr(arriving_messages, "_LOOK_OFFSETS", 14)
        arrivals = Arrivals(seed)
        for _ in range(12):
            arrivals.send()
        last = looks_of(arrivals.store, arrivals.topic, FollowSpec(1.0, idle="Finish"))
        for _ in range(40):
            last.look(waits=True, now_s=0.0)
        known: dict[int, list[bytes]] = {}
        for reader in (*arrivals.readers, Reader(arrivals.store, arrivals.topic)):
            reader.read()
            assert reader.followed.order.has_ended or not arrivals.sent
            for step in range(1, reader.followed.order.steps + 1):
                assert known.setdefault(step, reader.step(step)) == reader.step(step)
    trained = Counter(message for messages in known.values() for message in messages)
    assert trained == Counter(arrivals.sent)


def test_restatement_has_the_last_range_of_a_quiet_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_pins, "RESTATE_EVERY", 3)
    topic, store = FakeTopic(3), MemoryStore()
    topic.log[1] = [b"0"] * BATCH
    looks = DataLooks(DATA, "uid", store, ArrivingMessages(topic, VALUES), lambda: 6 * BATCH)
    for _ in range(8):
        assert looks.look(waits=False, now_s=0.0) is not None
        topic.log[0] += [b"1"] * BATCH
    pin = from_json(DataPin, store.get(data_pin_key("uid", 7)))
    assert [segment.number for segment in pin.segments] == [6]
    assert pin.names == ("clicks-0@32-40", "clicks-1@0-8", "clicks-2@0-0")
    followed = FollowedData(DATA, "uid", store)
    followed.read()
    assert followed.names == {"clicks-0@48-56", "clicks-1@0-8", "clicks-2@0-0"}


def test_leader_that_is_behind_pins_what_is_left_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arriving_messages, "_LOOK_OFFSETS", 5)
    topic, store = FakeTopic(), MemoryStore()
    topic.log[0] = [b"%d" % number for number in range(12)]
    looks = looks_of(store, topic, FollowSpec(1.0, idle="Finish"))
    pins = [looks.look(waits=True, now_s=0.0) for _ in range(4)]
    assert [None if pin is None else (pin.segments[-1].rows, pin.end) for pin in pins] == [
        None,
        (10, False),
        (2, False),
        (0, True),
    ]
    assert not looks.is_behind
