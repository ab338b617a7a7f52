"""One shard of a job with SGD of rate 1, and trainers that keep their pushes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpr_contract.spec import JobSpec
from cpr_trainer.embedding.access import find_access
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.embedding.unique_rows import UniqueRows
from cpr_trainer.exchange import Exchange
from cpr_trainer.exchange.pools import Spill
from support.replays import Ranks, Start, restore
from support.shard_job import KEY, small_job


@pytest.fixture
def job() -> JobSpec:
    job = small_job(Path("unused"), trainers=1)
    sgd = replace(job.model.sparse_optimizer, kind="SGD", learning_rate=1.0)
    return replace(job, model=replace(job.model, sparse_optimizer=sgd), replay_bytes=1 << 20)


@pytest.fixture
def exchanges(job: JobSpec, tmp_path: Path) -> Iterator[Callable[..., Exchange]]:
    made: list[Exchange] = []

    def make(rank: int = 0, incarnation: int = 1, **changes: Any) -> Exchange:
        mine = replace(job, **changes)
        spill = Spill(tmp_path / f"pushes-{len(made)}", mine.spill_bytes) if mine.spill_bytes else None
        made.append(Exchange(mine, rank, incarnation, KEY, 1000, spill=spill))
        return made[-1]

    yield make
    for exchange in made:
        exchange.close()


@pytest.fixture
def begin(serve: Start) -> Start:
    return lambda incarnation=1, save=None, **kw: restore(serve(0, incarnation, ready=False, **kw), save)


@pytest.fixture
def rows(job: JobSpec) -> UniqueRows:
    every = np.stack([np.arange(50), np.arange(50) % 30], axis=1)
    return find_access(Placement.of(job.model, 1), every).unique


@pytest.fixture
def several(job: JobSpec, exchanges: Callable[..., Exchange]) -> Iterator[Callable[..., Ranks]]:
    """Give `trainers` of the job, with changes of it."""
    made: list[Ranks] = []

    def make(trainers: int, **changes: Any) -> Ranks:
        made.append(Ranks(replace(job, trainers=trainers, **changes), exchanges))
        return made[-1]

    yield make
    for each in made:
        each.close()
