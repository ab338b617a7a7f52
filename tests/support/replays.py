"""Pushes retained for replaced shards. With SGD of rate 1 and integer gradients below 2^24 sums are exact
in any order: a row is minus the sum of its gradients, and any push that is lost or doubled shows."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import numpy as np

from cpr_contract.manifests import RowUpdates
from cpr_contract.reports import SaveRef
from cpr_contract.roster import Counters
from cpr_contract.spec import JobSpec
from cpr_trainer.embedding.unique_rows import UniqueRows
from cpr_trainer.exchange import Exchange
from cpr_trainer.shard.state import Losses, Progress, ReplayBarrier
from support.exchanges import WAIT_S, follow
from support.shard_thread import ShardThread

BATCH = 10
Start = Callable[..., ShardThread]


class Save:
    """The rows of a shard at some moment."""

    def __init__(self, shard: ShardThread) -> None:
        progress = shard.progress
        self.rows, self.state = shard.arena.rows.copy(), shard.arena.state.copy()
        self.applied, self.row_updates = progress.applied, progress.row_updates
        self.ref = SaveRef("", max(progress.applied), max(progress.applied) * BATCH)


def restore(shard: ShardThread, save: Save | None = None) -> ShardThread:
    """Let a shard serve a save, None for zeros. It waits for the announced replay of all ranks."""
    trainers = shard.job.trainers

    def serve() -> None:
        applied, row_updates = (0,) * trainers, RowUpdates((0,) * trainers)
        shard.arena.rows[:] = 0 if save is None else save.rows
        shard.arena.state[:] = 0 if save is None else save.state
        if save is not None:
            applied, row_updates, shard.service.newest_save = save.applied, save.row_updates, save.ref
            shard.service.saved_steps = applied
        shard.service.counters = Counters(1, 1, 1)
        losses = Losses.restored((), trainers)
        shard.service.start(Progress(1, applied, losses, row_updates, replay_barrier=ReplayBarrier.closed(trainers)))

    shard.do(serve)
    return shard


def join(exchange: Exchange, shard: ShardThread, roster: int = 1) -> None:
    follow(exchange, shard, roster=roster)
    exchange.wait_ready(WAIT_S)


def gradients(rows: UniqueRows, rank: int, step: int) -> np.ndarray:
    return np.random.default_rng((rank, step)).integers(-999, 999, (len(rows), 4)).astype(np.float32)


def push(exchange: Exchange, rows: UniqueRows, *steps: int, rank: int = 0) -> None:
    for step in steps:
        exchange.push(step, rows, gradients(rows, rank, step), 0, WAIT_S)


def sums(rows: UniqueRows, *pushes: tuple[int, int]) -> np.ndarray:
    found: np.ndarray = -np.sum([gradients(rows, rank, step) for rank, step in pushes], axis=0)
    return found


def save(shard: ShardThread) -> Save:
    """Save a shard, which its next answers report."""
    saves: list[Save] = []
    shard.do(lambda: saves.append(Save(shard)))
    shard.service.saved_steps = saves[0].applied
    shard.service.newest_save = saves[0].ref
    return saves[0]


def of_one(steps: int) -> list[tuple[int, int]]:
    return [(0, step) for step in range(1, steps + 1)]


class Ranks:
    """All trainers of one shard, with its incarnations one after the other: the last one serves."""

    def __init__(self, job: JobSpec, exchanges: Callable[..., Exchange]) -> None:
        self.shards = [restore(ShardThread(job, 0, 1, ready=False))]
        self.exchanges = [exchanges(rank, trainers=job.trainers) for rank in range(job.trainers)]
        for each in self.exchanges:
            join(each, self.shards[0])

    @property
    def shard(self) -> ShardThread:
        return self.shards[-1]

    def push(self, rank: int, rows: UniqueRows, step: int) -> None:
        """Push a step of one trainer, and wait until it has arrived."""
        push(self.exchanges[rank], rows, step, rank=rank)
        self.exchanges[rank].settle(WAIT_S)

    def train(self, rows: UniqueRows, rng: random.Random, steps: range) -> None:
        """Push steps of all trainers, in each step in another order, which is that in which they arrive."""
        for step in steps:
            for rank in rng.sample(range(len(self.exchanges)), len(self.exchanges)):
                self.push(rank, rows, step)

    def succeed(self, save: Save | None = None) -> ShardThread:
        """End the shard, and let its successor serve what a save holds. No trainer follows it yet."""
        self.shard.close()
        self.shards.append(restore(ShardThread(self.shard.job, 0, len(self.shards) + 1, ready=False), save))
        return self.shard

    def follow(self, exchanges: Iterable[Exchange]) -> None:
        """Send these trainers the roster with the serving shard."""
        for each in exchanges:
            follow(each, self.shard, roster=len(self.shards))

    def settle(self) -> None:
        """Wait until the shard that serves has all that was pushed."""
        for each in self.exchanges:
            each.wait_ready(WAIT_S)
            each.settle(WAIT_S)

    def close(self) -> None:
        for exchange in self.exchanges:
            exchange.close()
        for shard in self.shards:
            shard.close()
