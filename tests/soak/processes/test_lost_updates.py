"""Row updates that a killed shard lost, as it reports them, where priority saves hold some of them."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from cpr_contract.roster import Counters
from cpr_trainer.exchange import Exchange
from support.shard_job import PATIENCE_S, shard_roster, trainer_roster
from support.shard_story import ROWS, Story, touched

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]
SAMPLES = 60_000


def fresh(story: Story, exchange: Exchange, last: int) -> int:
    """How many of the updates up to step `last` no row of the shard holds, by the values of its rows.

    Each row has the value that it had after some step: what came after that is lost.
    """
    found = exchange.lookup(last, story.rows).result(PATIENCE_S)
    lost = np.zeros(sum(ROWS), np.int64)
    open_rows = np.ones(sum(ROWS), np.bool_)
    for step in range(last, -1, -1):
        values = story.expected(*range(1, step + 1)).rows[story.slots]
        open_rows &= ~(found == values).all(axis=1)
        lost += open_rows & touched(step)
    assert not open_rows.any(), "a row holds what it never held before"
    return int(lost.sum())


@pytest.mark.parametrize("strategy", ["MFU", "SSU", "SCAR", "Growth"])
def test_row_updates_in_priority_saves_are_not_lost(strategy: str, tmp_path: Path) -> None:
    """MFU counts what they hold; with the others what is lost is a bound."""
    with Story(tmp_path, strategy=strategy, fraction=0.3) as story:
        story.start()
        exchange = story.join()
        story.cut(1, 2, 3, 4)
        story.shard.give(shard_roster(counters=Counters(2, 1, 1), priority_interval_s=0.01))
        last = 4
        while len([*story.store.rglob("*-priority/manifest.json")]) < 3:
            last += 1
            assert last < 90, "the job ends before there are three saves"
            story.push(last)
            time.sleep(0.3)  # a save takes its time, and what it may be committed with comes with later pushes
        story.shard.kill()
        story.start()
        story.shard.wait_ready()
        exchange.follow(trainer_roster((story.shard.peer,), roster=2))
        exchange.wait_ready(PATIENCE_S)
        lost = fresh(story, exchange, last)
        story.push(last + 1)
        report = story.shard.wait_until(lambda report: report.resumed_samples is not None)
        since_the_cut = sum(int(touched(step).sum()) for step in range(5, last + 1))
    assert report.row_updates is not None
    exact = strategy == "MFU"
    assert report.row_updates.exact is exact
    assert 0 < lost < since_the_cut, "priority saves hold some of the updates, and not all"
    assert report.row_updates.lost == lost if exact else lost <= report.row_updates.lost <= since_the_cut
