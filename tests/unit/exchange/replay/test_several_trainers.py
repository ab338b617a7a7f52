"""Pushes that several trainers keep for a shard that is replaced: all of them, and their order."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from cpr_contract.spec import JobSpec
from cpr_trainer.embedding.unique_rows import UniqueRows
from support.exchanges import WAIT_S, wait_for
from support.replays import Ranks, Save, push, save, sums


def test_flush_in_mid_step_protects_the_applied_steps_of_each_rank(
    several: Callable[..., Ranks], rows: UniqueRows
) -> None:
    """It is named after the farthest rank. Twice its successor dies before it saves."""
    ranks = several(2)
    ranks.train(rows, random.Random(0), range(1, 4))
    ranks.push(0, rows, 4)
    flushed: list[Save] = []
    ranks.shard.do(lambda: flushed.append(Save(ranks.shard)))
    for incarnation in (2, 3):
        ranks.succeed(flushed[0])
        ranks.follow(ranks.exchanges)
        for each in ranks.exchanges:
            each.wait_ready(WAIT_S)
        if incarnation == 2:
            push(ranks.exchanges[1], rows, 4, rank=1)
        ranks.settle()
        # The next answer repeats the save.
        wait_for(lambda: all(each.saved()[0].incarnation == len(ranks.shards) for each in ranks.exchanges))
    assert flushed[0].applied == (4, 3)
    assert Save(ranks.shard).applied == (4, 4)
    everything = [(rank, step) for rank in (0, 1) for step in (1, 2, 3, 4)]
    assert np.array_equal(ranks.exchanges[0].lookup(5, rows).result(WAIT_S), sums(rows, *everything))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("deaths", [1, 2])
def test_pushes_of_several_ranks_are_applied_in_the_order_of_the_first_time(
    job: JobSpec, several: Callable[..., Ranks], rows: UniqueRows, seed: int, deaths: int
) -> None:
    """Bit for bit, by an optimizer that depends on the order."""
    adagrad = replace(job.model.sparse_optimizer, kind="RowWiseAdagrad", learning_rate=0.1)
    ranks = several(3, model=replace(job.model, sparse_optimizer=adagrad))
    rng = random.Random(seed)
    ranks.train(rows, rng, range(1, 6))
    saved = save(ranks.shard)
    ranks.train(rows, rng, range(6, 31))
    before = Save(ranks.shard)
    for _ in range(deaths):
        ranks.succeed(saved)
        ranks.follow(rng.sample(ranks.exchanges, 3))
    ranks.settle()
    progress = ranks.shard.progress
    wait_for(lambda: progress.resumed)
    assert progress.in_order
    after = Save(ranks.shard)
    assert after.applied == before.applied == (30, 30, 30)
    assert after.row_updates == before.row_updates
    assert np.array_equal(after.state, before.state)
    assert np.array_equal(after.rows, before.rows)
