"""Clicks come as messages for ten minutes, while all that takes part is killed in turn on the cluster.

Members, the publisher, the broker, the store and the operator die. Each click is trained once, and each served model
that is copied is the export of its anchor.
"""

from __future__ import annotations

import json
import os
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from cluster.harness import Cluster, Pod, Space, until
from cluster.harness import store as stores
from cluster.harness.space import Role
from cluster.jobs import LOSSLESS, Run, account
from cpr_contract.codec import from_json
from cpr_contract.spec import JobSpec
from cpr_trainer.store import open_store
from cprjob_serving import Follower
from cprjob_serving.sources import source_of
from support.kafka_broker import Broker, count_by_id, running_broker, send
from support.pins import Pins
from support.served_models import ServedModels

pytestmark = pytest.mark.timeout(2400, func_only=True)

MINUTES = float(os.environ.get("MINUTES", "10"))
JOB, PARTITIONS = "stream", 2
#: Clicks in a round of messages, and seconds between two rounds.
CLICKS, EVERY_S = 40, 0.5
SERVED_S = 240
MODEL = {
    "embeddingDim": 8,
    "bottomMlp": [16, 8],
    "topMlp": [16, 1],
    "numeric": 0,
    "tables": [{"name": "item", "rows": 1 << 16, "ids": "Dynamic"}, {"name": "user", "rows": 1000, "ids": "RowNumber"}],
}


class Clicks:
    """A topic to which clicks on new items come, each with an id of its own."""

    def __init__(self, broker: Broker) -> None:
        self.uri = broker.topic("clicks", PARTITIONS)
        self.rows = 0
        self._producer = broker.producer(enable_idempotence=True, message_timeout_ms=120_000)
        self._random = random.Random(1)
        self._over = threading.Event()

    @contextmanager
    def coming(self) -> Iterator[None]:
        """Send in a thread, so that faults delay nothing but a broker that is down."""
        thread = threading.Thread(target=self._send_all)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _send_all(self) -> None:
        while not self._over.wait(EVERY_S):
            ids = range(self.rows, self.rows + CLICKS)
            send(self._producer, self.uri, map(self._click, ids), PARTITIONS)
            self.rows += CLICKS

    def _click(self, number: int) -> bytes:
        user, label = self._random.randrange(1000), self._random.randrange(2)
        return json.dumps({"id": number, "item": number, "user": user, "label": label}).encode()


@dataclass
class Stream:
    """The job, and all that takes part in it."""

    cluster: Cluster
    run: Run
    broker: Broker
    served: ServedModels

    def faults(self) -> dict[str, Callable[[], object]]:
        """Return the faults of a round, in order; each returns once something has been replaced or restarted."""
        return {
            "a shard's process": lambda: self._replaced("shard", 0, self._kill),
            "the publisher's pod": self._publisher,
            "a trainer's pod": lambda: self._replaced("trainer", 1, self._delete),
            "the broker": self._broker,
            "the store": self._store,
            "the operator": self._operator,
            "the leader's process": lambda: self._replaced("trainer", self.run.leader(), self._kill),
            "a shard's pod": lambda: self._replaced("shard", 1, self._delete),
        }

    def wait_served(self, more: int) -> None:
        """Wait until all members train, and this many further models are served. The last one is copied."""
        due = self.served.follower.sequence + more

        def served() -> bool:
            status = self.run.status()
            whole = status["phase"] == "Running" and not status.get("recovery")
            return whole and self.served.copy(due, {anchor["key"] for anchor in status["anchors"]})

        until(f"{more} models more are served", served, SERVED_S)

    def _kill(self, pod: Pod) -> None:
        self.cluster.nodes.signal(pod, "KILL")

    def _delete(self, pod: Pod) -> None:
        self.run.space.delete_pod(pod.name, force=True)

    def _replaced(self, role: Role, index: int, fault: Callable[[Pod], None]) -> None:
        pod = self.run.pod(role, index)
        self.run.recover_from(f"the loss of {role}/{index}", lambda: fault(pod))

    def _publisher(self) -> None:
        (pod,) = self.run.space.pods(job=JOB, role="publisher")
        self._delete(pod)

        def another() -> bool:
            return any(each.uid != pod.uid and each.ready for each in self.run.space.pods(job=JOB, role="publisher"))

        until("another publisher runs", another, 120)

    def _broker(self) -> None:
        self.broker.kill()
        self.broker.start()

    def _store(self) -> None:
        (pod,) = map(Pod.of, self.cluster.reader.pods(stores.NAMESPACE, "app.kubernetes.io/name=minio"))
        self.cluster.nodes.signal(pod, "KILL")

        def another() -> bool:
            found = map(Pod.of, self.cluster.reader.pods(stores.NAMESPACE, "app.kubernetes.io/name=minio"))
            return any(each.ready and each.container_id != pod.container_id for each in found)

        until("the store has started again", another, 120)

    def _operator(self) -> None:
        self.cluster.kill_operator()
        self.cluster.wait_operator()


@pytest.fixture
def broker(cluster: Cluster, tmp_path: Path) -> Iterator[Broker]:
    """A broker at the address that this machine has in the network of the nodes."""
    address = urlsplit(cluster.store.environment()["AWS_ENDPOINT_URL"])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address.hostname, address.port))
        host = probe.getsockname()[0]
    with running_broker(tmp_path / "kafka", host) as broker:
        yield broker


@pytest.fixture
def access(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The store's address and keys, in the environment too: the product's own readers take them from there."""
    access = cluster.store.environment()
    for name, value in access.items():
        monkeypatch.setenv(name, value)
    return access


def job_of(run: Run, access: dict[str, str]) -> JobSpec:
    """Return the job with its store at the address by which this machine has it."""
    job = from_json(JobSpec, run.status()["runtime"]["jobSpec"])
    store = replace(job.snapshots.store, endpoint=access["AWS_ENDPOINT_URL"])
    return replace(job, snapshots=replace(job.snapshots, store=store))


def end_data(pins: Pins, rows: int) -> None:
    """Pin the end once all rows are pinned. The leader may pin void samples at the same time."""

    def ended() -> bool:
        if pins.read() == rows:
            pins.end()
        return pins.order.has_ended

    until("the data has ended", ended, 120)


def test_clicks_are_trained_once_and_served_while_all_that_takes_part_is_killed(
    cluster: Cluster, space: Space, broker: Broker, access: dict[str, str], tmp_path: Path
) -> None:
    clicks = Clicks(broker)
    chain = f"s3://{stores.BUCKET}/{space.name}-models"
    changes = LOSSLESS | {
        "model": MODEL,
        "data": {
            "format": "Kafka",
            "uri": clicks.uri,
            "columns": {"labels": ["label"], "categories": ["item", "user"]},
            "follow": {"everySeconds": 1},
            "batchSize": 128,
            "shuffleRows": 0,
        },
        "trainers__replicas": 2,
        "shards__replicas": 2,
        "snapshots__denseIntervalSeconds": 1,
        "snapshots__keep": 128,  # a copied model is compared a moment later
        "publish": {"to": chain, "everySeconds": 1},
        "failurePolicy": {"restartLimit": {"count": 1000}},
    }
    with Follower(chain, tmp_path / "followed", every_s=0.5, source=source_of(chain, access)) as follower:
        served = ServedModels(follower, tmp_path / "copies")
        with clicks.coming():
            run = Run.start(space, JOB, **changes)
            stream = Stream(cluster, run, broker, served)
            stream.wait_served(1)
            job = job_of(run, access)
            store = open_store(job.snapshots.store, None, None)
            served.check(job, store)
            end, killed = time.monotonic() + 60 * MINUTES, Counter[str]()
            while time.monotonic() < end:
                for name, fault in stream.faults().items():
                    print(f"after {clicks.rows} clicks and {follower.sequence} models: kill {name}", flush=True)
                    fault()
                    killed[name] += 1
                    stream.wait_served(2)
                    served.check(job, store)
        pins = Pins(job)
        end_data(pins, clicks.rows)
        status = run.finish(within_s=300)
        last = {status["result"]["key"]}
        until("the last model is served", lambda: served.copy(1, last), SERVED_S)
    print(f"{clicks.rows} clicks, {follower.sequence} models; killed: {dict(killed)}", flush=True)
    rows, voids = pins.trained()
    assert rows == Counter(range(clicks.rows))
    assert status["progress"]["samples"] == clicks.rows + voids
    assert count_by_id(broker, clicks.uri, pins) == Counter(range(clicks.rows))
    assert not any(account(cluster.store, status).values()), "nothing is lost"
    assert len(served.copies) == 2 + killed.total()
    served.check(job, store)
