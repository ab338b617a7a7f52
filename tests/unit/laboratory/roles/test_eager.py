"""ECRec's way to keep parity, as `cprjob bench redundancy` compares it: shards on threads, and a trainer's exchange."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from cpr_trainer.access import find_access
from cpr_trainer.exchange import Exchange, loop
from cpr_trainer.exchange.frames import Frame, FrameError
from cpr_trainer.parity.coding import Parts, Ring
from cpr_trainer.placement import Placement
from cpr_trainer.shard import server
from cpr_trainer.tables.arena import Arena
from cpr_trainer.tables.segments import Seeding
from cprjob_bench.roles.differences import Before, Difference, Sums, pack_differences, row_shapes, unpack_differences
from cprjob_bench.roles.eager import (
    EagerConnection,
    EagerDesk,
    EagerLink,
    EagerRedundancy,
    EagerServer,
    Rounds,
)
from support import shard_thread
from support.exchanges import WAIT_S, follow
from support.parity_ring import banded_job
from support.shard_job import KEY, shard_roster, small_job
from support.shard_thread import ShardThread

SHARDS, K = 3, 2
STEPS = 6


class EagerThread(ShardThread):
    @property
    def eager(self) -> EagerRedundancy:
        return cast(EagerRedundancy, self.redundancy)

    @property
    def desk(self) -> EagerDesk:
        return self.eager.desk


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EagerThread]]:
    monkeypatch.setattr(shard_thread, "Redundancy", EagerRedundancy)
    monkeypatch.setattr(shard_thread, "Server", EagerServer)
    monkeypatch.setattr(server, "Connection", EagerConnection)
    monkeypatch.setattr(loop, "Link", EagerLink)
    monkeypatch.setattr(EagerLink, "rounds", Rounds())
    job = replace(small_job(tmp_path, shards=SHARDS, rows=(90, 37)), parity_shards=K)
    made = [EagerThread(job, index) for index in range(SHARDS)]
    yield made
    for shard in made:
        shard.close()


def meet(shards: list[EagerThread]) -> None:
    """Let the shards know each other."""
    peers = tuple(shard.peer for shard in shards)
    for shard in shards:
        shard.do(lambda shard=shard: shard.eager.follow(shard_roster(index=shard.index, shards=peers)))


def push(exchange: Exchange, placement: Placement, step: int) -> None:
    rng = np.random.default_rng(step)
    ids = np.stack([rng.integers(0, 90, 30), rng.integers(0, 37, 30)], axis=1)
    rows = find_access(placement, ids).unique
    exchange.push(step, rows, np.full((len(rows), 4), step, np.float32), 0, WAIT_S)


def test_sums_are_those_of_what_all_members_have_learnt(shards: list[EagerThread]) -> None:
    job = shards[0].job
    placement, ring = Placement.of(job.model, SHARDS), Ring(SHARDS, K)
    meet(shards)
    exchange = Exchange(job, 0, 1, KEY, 1000)
    try:
        follow(exchange, *shards)
        exchange.wait_ready(WAIT_S)
        for step in range(1, STEPS + 1):
            push(exchange, placement, step)
        exchange.settle(WAIT_S)
    finally:
        exchange.close()
    parts = Parts.of(placement, K)
    for holder in shards:
        (rows, state), expected = holder.eager.sums.sums[0], Sums(row_shapes(holder.arena, parts)).sums[0]
        for part, member in enumerate(ring.members(holder.index)):
            first, end = parts.span(part, 0, len(shards[member].arena))
            fresh = Arena.empty(job, *placement.sizes(member))
            fresh.seed(placement, member, Seeding.of(job.model, job.data.seed))
            expected[0][: end - first] += (shards[member].arena.rows - fresh.rows)[first:end]
            expected[1][: end - first] += shards[member].arena.state[first:end]
        assert np.abs(expected[0]).max() > 0
        np.testing.assert_allclose(rows, expected[0], rtol=0, atol=1e-5)
        np.testing.assert_allclose(state, expected[1], rtol=1e-5, atol=1e-5)


def test_a_push_is_not_acknowledged_before_all_holders_have_staged_it(shards: list[EagerThread]) -> None:
    job = shards[0].job
    placement = Placement.of(job.model, SHARDS)
    exchange = Exchange(job, 0, 1, KEY, 1000)
    try:
        follow(exchange, *shards)
        exchange.wait_ready(WAIT_S)
        push(exchange, placement, 1)  # no shard knows where a holder is
        with pytest.raises(TimeoutError):
            exchange.settle(0.3)
        assert not any(np.any(shard.eager.sums.sums[0][0]) for shard in shards)
        meet(shards)
        exchange.settle(WAIT_S)
    finally:
        exchange.close()


def test_differences_of_several_dims_travel() -> None:
    job = replace(banded_job(SHARDS), parity_shards=K)
    placement = Placement.of(job.model, SHARDS)
    parts, arena = Parts.of(placement, K), Arena.empty(job, *placement.sizes(0))
    slots = np.arange(0, len(arena), 3)
    numbers = np.concatenate([placement.offsets[chunk.tables] + chunk.rows for chunk in placement.rows_of(0)])[slots]
    before = Before(arena, parts, slots)
    assert arena.apply(slots, numbers, tuple(np.ones_like(rows) for rows in arena.read(slots)), 1)
    shapes, found = row_shapes(arena, parts), before.differences()
    assert len(found) == K
    for part, differences in enumerate(found):
        header, payload = pack_differences(7, (1, 9), differences)
        frame = Frame(header, memoryview(b"".join(bytes(each) for each in payload)))
        told, read = unpack_differences(frame, shapes)
        assert told == (1, 9)
        for place, each in enumerate(read):
            first, end = parts.span(part, place, len(arena.segments[place]))
            segment = arena.segments[place]
            changed = np.flatnonzero(segment.rows[first:end].any(axis=1))
            np.testing.assert_array_equal(each.at, changed)
            np.testing.assert_array_equal(each.rows, segment.rows[first:end][changed])
            np.testing.assert_array_equal(each.state, segment.state[first:end][changed])
        with pytest.raises(FrameError):
            unpack_differences(Frame(header, frame.payload[: header.count + 8]), shapes)


def test_what_is_staged_counts_once_and_from_its_commit_on() -> None:
    sums = Sums([(3, 2, 1)])
    one = Difference(np.array([2], np.uint32), np.ones((1, 2), np.float32), np.full((1, 1), 5, np.float32))
    sums.stage((0, 1), 4, (one,))
    sums.stage((0, 1), 4, (one,))
    sums.stage((0, 1), 5, (one,))
    assert not sums.sums[0][0].any()
    sums.commit((0, 2))
    sums.commit((0, 1))
    sums.commit((0, 1))
    assert sums.sums[0][0].tolist() == [[0, 0], [0, 0], [2, 2]]
    assert sums.sums[0][1].ravel().tolist() == [0, 0, 10]
    assert math.isclose(sums.nbytes, 3 * 4 * 3)
