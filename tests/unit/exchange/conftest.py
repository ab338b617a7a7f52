"""A trainer's exchange, and shards on threads that come, go, pause and lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpr_contract.spec import JobSpec
from cpr_trainer.embedding.access import find_access
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.embedding.unique_rows import UniqueRows
from cpr_trainer.exchange import Exchange
from support.exchanges import WAIT_S, Pair, follow
from support.shard_job import KEY, small_job
from support.shard_thread import ShardThread


@pytest.fixture
def job() -> JobSpec:
    return small_job(Path("unused"), shards=2)


@pytest.fixture
def serve(job: JobSpec) -> Iterator[Callable[..., ShardThread]]:
    shards: list[ShardThread] = []

    def start(*arguments: Any, **options: Any) -> ShardThread:
        shards.append(ShardThread(job, *arguments, **options))
        return shards[-1]

    yield start
    for shard in shards:
        shard.close()


@pytest.fixture
def exchange(job: JobSpec) -> Iterator[Exchange]:
    exchange = Exchange(job, 0, 1, KEY, 1000)
    yield exchange
    exchange.close()


@pytest.fixture
def rows(job: JobSpec) -> UniqueRows:
    every = np.stack([np.arange(50), np.arange(50) % 30], axis=1)
    return find_access(Placement.of(job.model, 2), every).unique


@pytest.fixture
def pair(serve: Callable[..., ShardThread], exchange: Exchange) -> Pair:
    """Two shards, and the exchange connected to them."""
    shards = serve(0), serve(1)
    follow(exchange, *shards)
    exchange.wait_ready(WAIT_S)
    return shards
