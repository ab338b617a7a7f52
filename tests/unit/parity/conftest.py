"""A job with parity: shards on threads that flush to each other over sockets, while a trainer pushes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract.spec import JobSpec
from cpr_trainer.shard import redundancy
from support.parity_job import SHARDS, K, ParityJob
from support.shard_job import small_job


@pytest.fixture
def trainers() -> int:
    return 1


@pytest.fixture
def job(trainers: int) -> JobSpec:
    job = small_job(Path("unused"), shards=SHARDS, rows=(90, 37), trainers=trainers)
    return replace(job, replay_bytes=1 << 20, parity_shards=K, silence_s=60.0)


@pytest.fixture
def running(job: JobSpec, monkeypatch: pytest.MonkeyPatch) -> Iterator[ParityJob]:
    monkeypatch.setattr(redundancy, "INTERVAL_S", 0.05)
    running = ParityJob(job)
    yield running
    running.close()
