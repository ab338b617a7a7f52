"""Topics of a real broker: transactions, compaction, retention, an outage, and a missing topic."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from cpr_contract.spec import KafkaSpec
from cpr_trainer.data.arrivals import Pinned
from cpr_trainer.data.kafka.arriving_messages import ArrivingMessages
from cpr_trainer.data.kafka.message_format import MessageFormat
from cpr_trainer.data.kafka.topic import Topic
from cpr_trainer.data.kafka.values import JsonValues
from cpr_trainer.errors import DataError
from cpr_trainer.store import StoreUnreachableError
from support.kafka_broker import Broker, send, transactional
from support.table_data import FILES, clicks

pytestmark = pytest.mark.store

ROWS = [json.dumps(asdict(row)).encode() for row in clicks(30)]
VALUES = JsonValues(FILES, None)


def offsets_of(topic: Topic, start: int, stop: int, partition: int = 0) -> list[int]:
    return [message.offset for message in topic.read({partition: range(start, stop)})]


def test_messages_of_open_and_aborted_transactions_are_not_read(broker: Broker) -> None:
    uri = broker.topic("transactions")
    topic = broker.reader(uri)
    producer = transactional(broker, "one")
    for commits in (True, False):
        producer.begin_transaction()
        send(producer, uri, ROWS[:5])
        if commits:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    producer.begin_transaction()
    send(producer, uri, ROWS[5:8])
    assert topic.bounds() == {0: (0, 12)}, "two transactions of five messages and a marker have ended"
    assert offsets_of(topic, 0, 12) == [0, 1, 2, 3, 4]
    (index,) = ArrivingMessages(topic, VALUES).look(Pinned()).indices
    assert (index.file.uri, index.blocks[0].rows) == ("transactions-0@0-12", 5)
    producer.commit_transaction()
    assert topic.bounds() == {0: (0, 16)}
    assert offsets_of(topic, 12, 16) == [12, 13, 14], "the reader continues where it was"
    assert offsets_of(topic, 3, 13) == [3, 4, 12]
    assert MessageFormat(broker.reader(uri), VALUES).fetch(index.blocks[0]).values == ROWS[:5]


def test_partitions_are_read_side_by_side(broker: Broker) -> None:
    uri = broker.topic("partitions", 3)
    send(broker.producer(), uri, ROWS, partitions=3)
    topic = broker.reader(uri)
    read = list(topic.read({0: range(10), 2: range(4, 7)}))
    assert [message.offset for message in read if message.partition == 0] == list(range(10))
    assert [message.value for message in read if message.partition == 2] == ROWS[14:21:3]
    assert offsets_of(topic, 0, 2, partition=1) == [0, 1]
    assert offsets_of(topic, 2, 10, partition=1) == list(range(2, 10))


def test_compacted_topic_is_refused(broker: Broker) -> None:
    uri = broker.topic("compacted", cleanup_policy="compact")
    with pytest.raises(DataError, match=r"The topic compacted has cleanup.policy=compact"):
        ArrivingMessages(broker.reader(uri), VALUES).look(Pinned())


def test_messages_that_were_deleted_are_named_by_looks_and_by_readers(broker: Broker) -> None:
    uri = broker.topic("deleted")
    send(broker.producer(), uri, ROWS)
    looks = ArrivingMessages(broker.reader(uri), VALUES)
    (index,) = looks.look(Pinned()).indices
    form = MessageFormat(broker.reader(uri), VALUES)
    assert len(form.fetch(index.blocks[0]).values) == 30
    broker.delete_before(uri, 0, 7)
    with pytest.raises(DataError, match=r"deleted-0@0-7 was deleted from the topic before the job"):
        form.fetch(index.blocks[0])
    with pytest.raises(DataError, match=r"deleted-0@5-7 was deleted from the topic before the job"):
        looks.look(Pinned(["deleted-0@0-5"]))
    with pytest.raises(DataError, match=r"deleted-0 ends at offset 30, and messages up to 31 are pinned"):
        list(broker.reader(uri).read({0: range(20, 31)}))


def test_topic_that_was_created_again_is_found_by_the_digest(broker: Broker) -> None:
    uri = broker.topic("again")
    send(broker.producer(), uri, ROWS)
    (index,) = ArrivingMessages(broker.reader(uri), VALUES).look(Pinned()).indices
    broker.admin.delete_topics(["again"])["again"].result()
    broker.topic("again2")
    uri = broker.topic("again")
    send(broker.producer(), uri, reversed(ROWS))
    with pytest.raises(DataError, match=r"again-0@0-30 has changed since it was pinned"):
        MessageFormat(broker.reader(uri), VALUES).fetch(index.blocks[0])


def test_missing_topic_is_named_and_not_created(broker: Broker) -> None:
    for _ in range(2):
        with pytest.raises(DataError, match="The topic absent is not there"):
            broker.reader(f"kafka://{broker.address}/absent").bounds()
    assert "absent" not in broker.admin.list_topics().topics


def test_reader_continues_after_an_outage(broker: Broker) -> None:
    uri = broker.topic("outage")
    send(broker.producer(), uri, ROWS)
    topic = broker.reader(uri)
    assert len(offsets_of(topic, 0, 10)) == 10
    broker.kill()
    with pytest.raises(StoreUnreachableError, match=r"Kafka at .* cannot be reached"):
        topic.bounds()
    broker.start()
    while True:
        try:
            found = offsets_of(topic, 10, 30)
        except StoreUnreachableError:
            continue
        break
    assert found == list(range(10, 30))


def test_other_protocol_is_an_outage_with_the_field(broker: Broker) -> None:
    topic = broker.reader(f"kafka://{broker.address}/x", KafkaSpec(security_protocol="SSL"))
    with pytest.raises(StoreUnreachableError, match=r"data\.kafka\.securityProtocol"):
        topic.bounds()
