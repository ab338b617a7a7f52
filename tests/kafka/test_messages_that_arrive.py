"""A job that follows a topic, while its members and the broker are killed: each message is trained once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path

import pytest

from cpr_contract.codec import from_json
from cpr_contract.reports import Result
from cpr_contract.spec import JobSpec
from processes.faults import NEVER_S
from processes.test_data_that_arrives import (
    BATCH,
    all_trained,
    check_calm_run,
    job_of,
    kill_shard,
    kill_trainer,
)
from support.kafka_broker import Broker, count_by_id, send, transactional
from support.local_job import LocalJob
from support.model import saved_model
from support.pins import Pins
from support.table_data import clicks

pytestmark = [pytest.mark.dist, pytest.mark.store]

PARTITIONS = 2


class Log:
    """The messages of a topic; `rows` are those that are committed. Each has an id of its own."""

    def __init__(self, broker: Broker, uri: str) -> None:
        self.uri = uri
        self.rows = 0
        self._ids = count()
        self._producer = broker.producer(enable_idempotence=True)
        self._transactional = transactional(broker, uri)

    def messages(self, rows: int) -> Iterable[bytes]:
        return [json.dumps(asdict(row) | {"id": next(self._ids)}).encode() for row in clicks(rows, seed=self.rows)]

    def send(self, rows: int) -> None:
        send(self._producer, self.uri, self.messages(rows), PARTITIONS)
        self.rows += rows

    def transact(self, rows: int) -> None:
        """Abort a transaction, and commit another one."""
        self._transactional.begin_transaction()
        send(self._transactional, self.uri, self.messages(rows), PARTITIONS)
        self._transactional.abort_transaction()
        self._transactional.begin_transaction()
        self.rows += rows
        send(self._transactional, self.uri, self.messages(rows), PARTITIONS)
        self._transactional.commit_transaction()


def followed(folder: Path, uri: str) -> JobSpec:
    job = job_of(folder)
    return replace(job, data=replace(job.data, format="Kafka", uri=uri))


def test_members_and_the_broker_are_killed_and_each_message_is_trained_once(broker: Broker, tmp_path: Path) -> None:
    uri = broker.topic("clicks", PARTITIONS)
    log = Log(broker, uri)
    log.send(430)
    job = followed(tmp_path / "disturbed", uri)
    pins = Pins(job)
    with LocalJob(job, tmp_path / "disturbed", NEVER_S) as running:
        running.start()
        all_trained(running, pins, log.rows)
        kill_shard(running)
        log.transact(350)
        running.wait_for(lambda: pins.read() == log.rows, "the messages are pinned")
        kill_trainer(1)(running)
        all_trained(running, pins, log.rows)
        log.send(600)
        broker.kill()
        kill_trainer(0)(running)
        kill_shard(running)
        broker.start()
        log.send(401)
        all_trained(running, pins, log.rows)
        pins.end()
        anchor = running.result()
        result = from_json(Result, running.trainers[running.leader].termination_message)
    rows, voids = pins.trained()
    assert rows == Counter(range(log.rows))
    assert 0 < voids < BATCH * len(pins.all)
    assert (result.lost, result.total_samples) == ((), log.rows + voids)
    ids = count_by_id(broker, uri, pins)
    assert len(ids) == log.rows
    assert set(ids.values()) == {1}
    found = saved_model(job, anchor, tmp_path / "found")
    assert found.scored == log.rows
    check_calm_run(found, pins, followed(tmp_path / "calm", uri), tmp_path)
