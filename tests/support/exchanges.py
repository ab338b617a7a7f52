"""Helpers for a trainer's exchange over shards on threads."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from cpr_trainer.embedding.unique_rows import UniqueRows
from cpr_trainer.exchange import Exchange
from support.shard_job import trainer_roster
from support.shard_thread import ShardThread

WAIT_S = 240.0
Pair = tuple[ShardThread, ShardThread]


def follow(exchange: Exchange, *shards: ShardThread, roster: int = 1, generation: int = 1) -> None:
    exchange.follow(trainer_roster(tuple(shard.peer for shard in shards), roster=roster, generation=generation))


def push(exchange: Exchange, rows: UniqueRows, step: int, cut_step: int = 0, timeout_s: float = WAIT_S) -> None:
    exchange.push(step, rows, np.ones((len(rows), 4), np.float32), cut_step, timeout_s)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
