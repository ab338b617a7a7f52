"""The exchange of trainers whose shards merge steps, over shards on threads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from cpr_contract.manifests import RowUpdates
from cpr_trainer.embedding.access import find_access
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.embedding.unique_rows import UniqueRows
from cpr_trainer.exchange import Exchange, ShardsUnavailableError
from cpr_trainer.exchange.frames import Header
from cpr_trainer.shard.service import Client
from cpr_trainer.shard.steps import StepService
from cpr_trainer.trainer.allreduce.group import Group
from cpr_trainer.trainer.control import GroupBroken, PollInterrupts
from cpr_trainer.trainer.shards import Shards
from support.exchanges import follow, push, wait_for
from support.shard_job import KEY, small_job
from support.shard_thread import ShardThread

JOB = replace(small_job(Path("unused"), shards=2, trainers=2), sparse_updates="PerStep", replay_bytes=1 << 20)


@pytest.fixture
def rows() -> UniqueRows:
    every = np.stack([np.arange(50), np.arange(50) % 30], axis=1)
    return find_access(Placement.of(JOB.model, JOB.shards), every).unique


@pytest.fixture
def shards() -> Iterator[list[ShardThread]]:
    found = [ShardThread(JOB, 0), ShardThread(JOB, 1)]
    yield found
    for shard in found:
        shard.close()


@pytest.fixture
def ranks(shards: list[ShardThread]) -> Iterator[list[Exchange]]:
    found = [Exchange(JOB, rank, 1, KEY, 1000) for rank in range(2)]
    for each in found:
        follow(each, *shards)
        each.wait_ready(240.0)
        each.commit(0, 0)
    yield found
    for each in found:
        each.close()


def train(ranks: list[Exchange], rows: UniqueRows, *steps: int) -> None:
    for step in steps:
        for each in ranks:
            push(each, rows, step)
        for each in ranks:
            each.wait_received(step, 240.0)
            each.commit(step, 0)
    for each in ranks:
        each.settle(240.0)


def settles(exchange: Exchange) -> bool:
    try:
        exchange.settle(0.05)
    except (TimeoutError, ShardsUnavailableError):
        return False
    return True


def replaced(shards: list[ShardThread], *ranks: Exchange) -> None:
    """Replace the second shard, from its first values."""
    shards[1].close()
    shards[1] = ShardThread(JOB, 1, 2)
    for each in ranks:
        follow(each, *shards, roster=2)


def test_withdrawn_push_leaves_the_commit_to_a_shard_that_comes_back(
    shards: list[ShardThread], ranks: list[Exchange], rows: UniqueRows
) -> None:
    """A rank that is drained between its push and the sum: the shard's successor gets the earlier steps."""
    train(ranks, rows, 1, 2, 3)
    for each in ranks:
        push(each, rows, 4)
    ranks[1].withdraw(3)
    ranks[1].commit(3, 0)
    replaced(shards, *ranks)
    wait_for(lambda: settles(ranks[1]))
    assert shards[1].progress.applied == (3, 3)


def test_leader_of_a_job_that_stops_commits_for_a_lost_rank(
    shards: list[ShardThread], ranks: list[Exchange], rows: UniqueRows
) -> None:
    for each in ranks:
        push(each, rows, 1)
    for each in ranks:
        each.wait_received(1, 240.0)
    ranks[1].close()
    ranks[0].commit(1, 0)
    push(ranks[0], rows, 2)
    ranks[0].withdraw(1)
    ranks[0].commit(1, 0, for_all=True)
    wait_for(lambda: settles(ranks[0]))
    assert [shard.progress.applied for shard in shards] == [(1, 1)] * 2


def test_leader_of_a_job_that_stops_commits_for_all_once_its_rows_are_counted(
    shards: list[ShardThread], ranks: list[Exchange], rows: UniqueRows
) -> None:
    """All ranks and a shard were lost: nothing but the data has the number of the rows that the shard lacks."""
    train(ranks, rows, 1, 2)
    for rank, each in enumerate(ranks):
        each.close()
        ranks[rank] = Exchange(JOB, rank, 2, KEY, 1000)
    replaced(shards, *ranks)
    for rank, each in enumerate(ranks):
        each.wait_ready(240.0)
        each.commit(2, 0, for_all=rank == 0)
        for step in (1, 2):
            each.count(step, rows)
        each.commit(2, 0, for_all=rank == 0)
    wait_for(lambda: shards[1].progress.applied == (2, 2))
    lost = 2 * 2 * len(rows.places[rows.on_shard(1)])
    assert shards[1].progress.row_updates == RowUpdates((lost // 2,) * 2, lost)


def test_repeated_push_is_received_anew(shards: list[ShardThread], ranks: list[Exchange], rows: UniqueRows) -> None:
    """The group broke before the sum, and the step is computed again."""
    push(ranks[0], rows, 1)
    ranks[0].wait_received(1, 240.0)
    shards[0].freeze()
    push(ranks[0], rows, 1)
    with pytest.raises(TimeoutError):
        ranks[0].wait_received(1, 0.2)
    shards[0].thaw()
    ranks[0].wait_received(1, 240.0)


def test_receipt_of_the_last_generation_counts_for_nothing(
    shards: list[ShardThread], ranks: list[Exchange], rows: UniqueRows
) -> None:
    shards[0].freeze()
    push(ranks[0], rows, 1)
    follow(ranks[0], *shards, roster=2, generation=2)
    shards[0].thaw()
    train(ranks[1:], rows)
    time.sleep(0.2)  # the answer to the push is on its way
    assert ranks[0]._loop.links[0].received == -1


def test_each_step_is_committed_once(monkeypatch: pytest.MonkeyPatch, ranks: list[Exchange], rows: UniqueRows) -> None:
    committed: list[int] = []
    commit = StepService._commit

    def noted(service: StepService, client: Client, header: Header) -> None:
        committed.append(header.step)
        commit(service, client, header)

    monkeypatch.setattr(StepService, "_commit", noted)
    train(ranks, rows, 1, 2, 3)
    assert sorted(filter(None, committed)) == [1] * 4 + [2] * 4 + [3] * 4, "by two ranks to two shards"


class BrokenGroup(Group):
    """A group that has lost a member."""

    def check(self, poll_interrupts: PollInterrupts) -> None:
        poll_interrupts()
        raise GroupBroken("trainer 1 came back")


def test_wait_of_a_push_ends_when_the_group_breaks(
    shards: list[ShardThread], ranks: list[Exchange], rows: UniqueRows
) -> None:
    """A shard that came back needs the other rank's pushes, and that rank waits for the group."""
    train(ranks, rows, 1, 2, 3)
    ranks[1].close()
    replaced(shards, ranks[0])
    ranks[0].wait_ready(240.0)

    @contextmanager
    def waiting(poll_interrupts: PollInterrupts) -> Iterator[PollInterrupts]:
        yield poll_interrupts

    control = SimpleNamespace(poll_roster=lambda: None, poll_interrupts=lambda: None)
    access = Shards(ranks[0], cast(Any, control), cast(Any, SimpleNamespace(waiting=waiting)))
    access.group = BrokenGroup()
    with pytest.raises(GroupBroken):
        access.push(4, rows, torch.ones(len(rows), 4), 0, lambda _: None)
