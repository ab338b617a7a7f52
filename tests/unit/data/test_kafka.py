"""Messages of a topic: ranges of offsets for a pin, and their rows when the pin is read."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError

from cpr_contract.spec import DataSpec, FollowSpec, KafkaSpec
from cpr_trainer.data.arrivals import Pinned
from cpr_trainer.data.files import Index
from cpr_trainer.data.kafka import arriving_messages, offsets
from cpr_trainer.data.kafka.arriving_messages import ArrivingMessages
from cpr_trainer.data.kafka.client import KafkaTopic
from cpr_trainer.data.kafka.message_format import MessageFormat
from cpr_trainer.data.kafka.offsets import OffsetRange, interleaved, near_deletion, newest_ranges, next_offsets
from cpr_trainer.data.kafka.values import ArrowValues, JsonValues, Values
from cpr_trainer.data.open import open_dataset, topic_of
from cpr_trainer.data.reader import TableDataset
from cpr_trainer.data.schema import columns_of
from cpr_trainer.errors import DataError
from cpr_trainer.runtime import Access
from cpr_trainer.store import CredentialsRefusedError
from support.fake_topic import MARKER, FakeTopic
from support.table_data import COLUMNS, FILES, TABLES, Click, as_table, clicks, model_of

URI = "kafka://broker:9092/clicks"
DATA = DataSpec("Kafka", URI, 1, None, 8, 3, 0, COLUMNS, shuffle_rows=0, follow=FollowSpec(1.0))
MODEL = model_of(TABLES)
ROWS = clicks(40, seed=1)


def values_of(form: str = "JSON") -> Values:
    columns = columns_of(DATA, MODEL)
    return JsonValues(FILES, columns) if form == "JSON" else ArrowValues(columns)


def as_json(row: Click, **changes: Any) -> bytes:
    return json.dumps(asdict(row) | changes).encode()


def as_arrow(rows: Sequence[Click], table: pa.Table | None = None) -> bytes:
    table = as_table(rows) if table is None else table
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    return bytes(sink.getvalue())


def look(topic: FakeTopic, names: Sequence[str] = (), form: str = "JSON") -> tuple[Index, ...]:
    return ArrivingMessages(topic, values_of(form)).look(Pinned(names)).indices


def names_of(indices: Sequence[Index]) -> list[str]:
    return [index.file.uri.removeprefix("clicks-") for index in indices]


def opened(topic: FakeTopic, form: str = "JSON", bad: int = 0) -> TableDataset:
    columns = columns_of(DATA, MODEL)
    message_format = MessageFormat(topic, values_of(form))
    return TableDataset(replace(DATA, max_bad_lines=bad), columns, MODEL, message_format, look(topic, (), form))


def labels(dataset: TableDataset) -> list[int]:
    return [int(each) for each in dataset.take(np.arange(dataset.layout.rows)).labels]


# --- The connection


class FakeMessage:
    """A message, or with an error an event, as the client returns it."""

    def __init__(self, offset: int, error: KafkaError | None = None) -> None:
        self._offset, self._error = offset, error

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes:
        return b"%d" % self._offset

    def error(self) -> KafkaError | None:
        return self._error


class FakeConsumer:
    """Delivers these messages, one with each poll, whatever is assigned."""

    def __init__(self, offsets: Sequence[int]) -> None:
        self._messages = deque(map(FakeMessage, offsets))

    def assign(self, partitions: Sequence[Any]) -> None:
        """Assign nothing."""

    def poll(self, timeout: float) -> FakeMessage | None:
        return self._messages.popleft() if self._messages else None

    def consume(self, number: int, timeout: float) -> list[FakeMessage]:
        return []


def test_repeated_messages_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = KafkaTopic(URI, KafkaSpec(), Access())
    consumer = FakeConsumer([3, 4, 5, 3, 4, 5, 6, 7, 6, 7, 8, 9])
    monkeypatch.setattr(topic, "_connected", lambda: consumer)
    assert [each.offset for each in topic.read({0: range(3, 7)})] == [3, 4, 5, 6]
    assert [each.offset for each in topic.read({0: range(7, 10)})] == [7, 8, 9]


def test_missing_client_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    monkeypatch.delitem(sys.modules, "cpr_trainer.data.kafka.client")
    with pytest.raises(DataError, match=r"needs the Python package confluent_kafka.*pip install 'cprjob\[kafka\]'"):
        topic_of(DATA, FILES)


def test_client_gets_the_credentials_in_the_terms_of_kafka(tmp_path: Path) -> None:
    for name, text in (("username", "reader\n"), ("password", "secret"), ("tls.crt", ""), ("tls.key", "")):
        (tmp_path / name).write_text(text)
    spec = KafkaSpec(security_protocol="SASL_SSL", sasl_mechanism="SCRAM-SHA-512")
    topic = KafkaTopic("kafka://one:9092,two:9093/clicks", spec, Access(tmp_path, tmp_path / "ca.crt"))
    settings, plain = topic._settings(), KafkaTopic(URI, KafkaSpec(), Access())._settings()
    assert topic.name == "clicks"
    assert (plain["security.protocol"], settings["security.protocol"]) == ("PLAINTEXT", "SASL_SSL")
    assert {name: settings[name] for name in settings.keys() - plain.keys() | {"bootstrap.servers"}} == {
        "bootstrap.servers": "one:9092,two:9093",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "reader",
        "sasl.password": "secret",
        "ssl.ca.location": str(tmp_path / "ca.crt"),
        "ssl.certificate.location": str(tmp_path / "tls.crt"),
        "ssl.key.location": str(tmp_path / "tls.key"),
    }
    (tmp_path / "password").write_text("rotated")
    assert topic._settings()["sasl.password"] == "rotated"


def test_client_without_a_password_has_no_access() -> None:
    spec = KafkaSpec(security_protocol="SASL_SSL", sasl_mechanism="PLAIN")
    with pytest.raises(CredentialsRefusedError, match=r"sasl.username and sasl.password must be set.* its Secret"):
        KafkaTopic(URI, spec, Access()).bounds()


def test_topic_that_is_not_followed_is_refused() -> None:
    with pytest.raises(DataError, match=r"clicks is a topic, which has no end of its own. State data.follow"):
        open_dataset(replace(DATA, follow=None), MODEL, FILES)


# --- Ranges


def test_range_is_named_as_kafka_names_a_partition() -> None:
    span = OffsetRange("clicks-of-2026", 3, 100, 250)
    assert span.name == "clicks-of-2026-3@100-250"
    assert OffsetRange.parse(span.name) == span
    assert next_offsets(("c-0@0-5", "c-1@2-4", "c-0@5-9")) == {0: 9, 1: 4}
    assert newest_ranges(("c-0@0-5", "c-1@2-4", "c-0@5-9", "c-2@0-0")) == {"c-0@5-9", "c-1@2-4", "c-2@0-0"}


def test_partitions_alternate_by_ranges() -> None:
    assert interleaved({2: "xyz", 0: "ab", 1: ""}) == ["a", "x", "b", "y", "z"]


@pytest.mark.parametrize(
    ("needed", "bounds", "near"),
    [
        (50, (0, 100), False),
        (0, (0, 100), False),
        (109, (100, 200), True),
        (110, (100, 200), False),
        (100, (100, 100), False),
    ],
)
def test_deletion_is_near_if_retention_deletes_and_few_messages_are_before(
    needed: int, bounds: tuple[int, int], *, near: bool
) -> None:
    assert near_deletion({0: needed}, {0: bounds}) == ([0] if near else [])


# --- Looks


def test_look_counts_what_is_committed_and_skips_markers_and_tombstones(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = FakeTopic(3)
    topic.log[0] = [as_json(ROWS[0]), MARKER, None, as_json(ROWS[1]), MARKER]
    topic.log[1] = [as_json(ROWS[2]), as_json(ROWS[3])]
    topic.uncommitted[1] = 1
    indices = look(topic)
    assert names_of(indices) == ["0@0-5", "1@0-1", "2@0-0"], "a partition without messages has its first offset"
    assert [[block.rows for block in index.blocks] for index in indices] == [[2], [1], []]
    topic.uncommitted[1] = 0
    topic.log[2].append(MARKER)
    assert names_of(look(topic, [index.file.uri for index in indices])) == ["1@1-2"]


def test_range_ends_at_its_limits_and_a_look_at_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets, "RANGE_ROWS", 3)
    monkeypatch.setattr(arriving_messages, "_LOOK_OFFSETS", 10)
    topic = FakeTopic(2)
    topic.log = [[as_json(row) for row in ROWS[:7]], [MARKER, *(as_json(row) for row in ROWS[7:12])]]
    arriving = ArrivingMessages(topic, values_of())
    found = arriving.look(Pinned())
    assert (found.more, found.is_behind) == (True, True), "five offsets of each partition were read"
    assert names_of(found.indices) == ["0@0-3", "1@0-4", "0@3-5", "1@4-5"]
    found = arriving.look(Pinned())
    assert (found.more, names_of(found.indices)) == (False, ["0@0-3", "1@0-4", "0@3-6", "1@4-6", "0@6-7"])
    monkeypatch.setattr(arriving_messages, "_LOOK_OFFSETS", 100)
    assert found.indices == look(topic), "one look finds the same ranges"
    assert names_of(arriving.look(Pinned(["clicks-0@0-3", "clicks-1@0-4"])).indices) == ["0@3-6", "1@4-6", "0@6-7"]
    assert names_of(arriving.look(Pinned(["clicks-0@0-5", "clicks-1@0-4"])).indices) == ["0@5-7", "1@4-6"]


def test_look_of_many_bytes_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arriving_messages, "_LOOK_BYTES", 1)
    topic = FakeTopic()
    topic.log[0] = [as_json(row) for row in ROWS[:3]]
    arriving = ArrivingMessages(topic, values_of())
    looks = [arriving.look(Pinned()) for _ in range(3)]
    assert [(each.more, *names_of(each.indices)) for each in looks] == [
        (True, "0@0-1"),
        (True, "0@0-2"),
        (False, "0@0-3"),
    ]


def test_compacted_topic_is_refused() -> None:
    with pytest.raises(DataError, match=r"The topic clicks has cleanup.policy=compact,delete"):
        look(FakeTopic(policy="compact,delete"))


def test_messages_that_were_deleted_before_they_were_pinned_are_named() -> None:
    topic = FakeTopic()
    topic.log[0] = [as_json(row) for row in ROWS]
    topic.oldest[0] = 9
    assert names_of(look(topic)) == ["0@9-40"], "a job begins with what there is"
    with pytest.raises(DataError, match=r"clicks-0@5-9 was deleted from the topic before"):
        look(topic, ["clicks-0@0-5"])
    with pytest.raises(DataError, match=r"clicks-0 ends at offset 40, and messages up to 41 are pinned"):
        look(topic, ["clicks-0@0-41"])


def test_retention_that_comes_near_the_oldest_anchor_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    topic = FakeTopic()
    topic.log[0] = [as_json(row) for row in ROWS]
    topic.oldest[0] = 9
    arriving = ArrivingMessages(topic, values_of())
    for _ in range(2):
        arriving.look(Pinned(["clicks-0@0-40"], ["clicks-0@20-30", "clicks-0@30-40"]))
    assert not caplog.records
    for _ in range(2):
        arriving.look(Pinned(["clicks-0@0-40"], ["clicks-0@10-20", "clicks-0@20-40"]))
    (record,) = caplog.records
    assert "retention of clicks is near the messages of the oldest anchor, in partitions [0]" in record.getMessage()


# --- Rows of pinned ranges


@pytest.mark.parametrize("form", ["JSON", "Arrow"])
def test_rows_are_those_of_the_messages(form: str) -> None:
    topic = FakeTopic(2)
    if form == "JSON":
        pretty = json.dumps(asdict(ROWS[1]), indent=1).encode()
        topic.log = [[as_json(ROWS[0]), MARKER, b"\0\0\0\0\7" + pretty, None], [as_json(row) for row in ROWS[2:20]]]
    else:
        narrow = as_table(ROWS[1:2]).drop_columns(["price"]).append_column("more", [[1]])
        topic.log = [
            [as_arrow(ROWS[:1]), MARKER, as_arrow((), narrow), as_arrow(())],
            [as_arrow(ROWS[2:10]), as_arrow(ROWS[10:20])],
        ]
    dataset = opened(topic, form)
    found = dataset.take(np.arange(dataset.layout.rows))
    assert found.labels.tolist() == [row.click for row in ROWS[:20]]
    expected = [
        0.0 if row.price is None or (form == "Arrow" and place == 1) else row.price
        for place, row in enumerate(ROWS[:20])
    ]
    assert found.dense[:, 2].tolist() == np.array(expected, np.float32).tolist()


@pytest.mark.parametrize(
    ("form", "bad"),
    [
        ("JSON", b""),
        ("JSON", b" "),
        ("JSON", b"[1]"),
        ("JSON", b'{"click": 1} {"click": 0}'),
        ("JSON", b'{"click": 1'),
        ("JSON", b"\0\0"),
        ("Arrow", b""),
        ("Arrow", b"ARROW1\0\0"),
        ("Arrow", as_arrow(ROWS[:9])[:-400]),
    ],
)
def test_damaged_message_is_a_bad_row_with_its_partition_and_offset(form: str, bad: bytes) -> None:
    topic = FakeTopic()
    good = [as_json(ROWS[0]), as_json(ROWS[1])] if form == "JSON" else [as_arrow(ROWS[:1]), as_arrow(ROWS[1:2])]
    topic.log[0] = [good[0], MARKER, bad, good[1]]
    with pytest.raises(DataError, match=r"clicks-0@2: .*bad rows so far: 1, allowed: 0"):
        labels(opened(topic, form))
    assert labels(opened(topic, form, bad=1)) == [ROWS[0].click, ROWS[1].click]


def test_bad_row_within_a_message_of_many_has_its_offset() -> None:
    topic = FakeTopic()
    rows = [replace(row, click=1) for row in ROWS[:6]]
    rows[4] = replace(rows[4], click=7)
    topic.log[0] = [as_arrow(rows[:2]), MARKER, as_arrow(rows[2:5]), as_arrow(rows[5:])]
    with pytest.raises(DataError, match=r"clicks-0@2: "):
        labels(opened(topic, "Arrow"))


def test_other_messages_under_the_same_offsets_are_found() -> None:
    topic = FakeTopic()
    topic.log[0] = [as_json(row) for row in ROWS[:8]]
    dataset = opened(topic)
    topic.log[0][5] = as_json(ROWS[6])
    with pytest.raises(DataError, match=r"clicks-0@0-8 has changed since it was pinned: .* Other messages have"):
        labels(dataset)


def test_other_messages_of_one_connection_are_read_again() -> None:
    topic = FakeTopic()
    topic.log[0] = [as_json(row) for row in ROWS[:8]]
    dataset = opened(topic)
    topic.received[0, 5] = as_json(ROWS[6])
    assert labels(dataset) == [row.click for row in ROWS[:8]]


@pytest.mark.parametrize("more", [-1, 1])
def test_range_with_another_number_of_rows_than_its_pin_is_refused(more: int) -> None:
    topic = FakeTopic()
    topic.log[0] = [as_arrow(ROWS[:8])]
    (block,) = look(topic, form="Arrow")[0].blocks
    form = MessageFormat(topic, values_of("Arrow"))
    with pytest.raises(DataError, match=f"clicks-0@0-1 has 8 rows where its pin has {8 + more}. Other messages have"):
        form.parse(replace(block, rows=8 + more), form.fetch(block))


def test_pinned_messages_that_retention_deleted_are_named() -> None:
    topic = FakeTopic()
    topic.log[0] = [as_json(row) for row in ROWS[:8]]
    dataset = opened(topic)
    topic.oldest[0] = 3
    with pytest.raises(DataError, match=r"clicks-0@0-3 was deleted from the topic before .* Raise retention.ms"):
        labels(dataset)
