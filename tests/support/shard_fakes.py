"""Fakes around a shard's service and its lifecycle: trainers, a restorer, a saver."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import numpy as np

from cpr_contract.manifests import ManifestRef
from cpr_contract.roster import ShardRoster
from cpr_trainer.checkpoint.restore.restorer import Outcome
from cpr_trainer.checkpoint.write.save import Committed, Save, SavedShard
from cpr_trainer.exchange.frames import Frame, Header, Operation
from cpr_trainer.shard.service import Service

DIM = 4
ROWS = 80
WAIT_S = 240.0


class FakeClient:
    """Remembers what was sent to it."""

    def __init__(self, service: Service, rank: int) -> None:
        self.rank = rank
        self.backlog: deque[Frame] = deque()
        self.sent: list[tuple[Header, bytes]] = []
        self.refusals: list[str] = []
        self._service = service

    def send(self, header: Header, *payload: Any) -> None:
        self.sent.append((header, b"".join(bytes(memoryview(part)) for part in payload)))

    def refuse(self, why: str) -> None:
        self.refusals.append(why)

    def send_frame(self, operation: Operation, step: int = 0, payload: bytes = b"", **fields: Any) -> list[str]:
        """Send a frame; the operations answered with since."""
        header = Header(operation, generation=1, rank=self.rank, step=step, total_samples=1000)
        header = header._replace(payload_bytes=len(payload), **fields)
        buffer = bytearray(payload)
        before = len(self.sent)
        self._service.on_frame(self, Frame(header, memoryview(buffer)))
        buffer[:] = b"\xff" * len(buffer)  # a connection uses its buffer again
        return self.answers_since(before)

    def pushes(self, step: int, row: int = 0, **fields: Any) -> list[str]:
        """Push one row. The step after the last: so this is also the number of rows that were pushed up to it."""
        payload = np.array([row], np.int32).tobytes() + np.ones(DIM, np.float32).tobytes()
        return self.send_frame(Operation.PUSH, step, payload, **{"count": 1, "row_updates": step - 1} | fields)

    def answers_since(self, since: int = 0) -> list[str]:
        return [header.operation.name for header, _ in self.sent[since:]]

    def look_up(self, row: int = 0) -> list[str]:
        return self.send_frame(Operation.LOOKUP, 1, np.array([row], np.int32).tobytes(), count=1, ticket=7)


class FakeRestorer:
    """Answers what the test puts; remembers the rosters it was asked under."""

    def __init__(self) -> None:
        self.rosters: list[ShardRoster] = []
        self.answers: SimpleQueue[Outcome | Exception] = SimpleQueue()

    def restore(self, roster: ShardRoster, _cancel: threading.Event) -> Outcome:
        self.rosters.append(roster)
        answer = self.answers.get(timeout=WAIT_S)
        if isinstance(answer, Exception):
            raise answer
        return answer


class FakeWriter:
    """Stores the drafts of saves; the test commits them."""

    def __init__(self) -> None:
        self.saves: list[Save] = []
        self.idle = True

    def submit(self, save: Save | None) -> None:
        if save is None:
            self.saves.clear()
        else:
            self.saves.append(save)
        self.idle = save is None


def committed(save: Save, key: str = "the new key", rows: int = 1) -> Committed:
    return Committed(save, SavedShard(replace(save.draft, rows=rows), ManifestRef(key, "digest"), 80), 0.1)
