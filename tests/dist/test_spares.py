"""A shard's process that no roster names yet, and then one does."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cpr_contract.reports import ShardState
from support.shard_job import ShardProcess, shard_roster, small_job

pytestmark = [pytest.mark.dist, pytest.mark.timeout(180)]

TERMINATED = 128 + signal.SIGTERM


@pytest.fixture
def spare(tmp_path: Path) -> Iterator[ShardProcess]:
    """A spare that is warm, with a keeper."""
    roster = shard_roster(index=1, incarnation=3, newest_incarnation=3)
    process = ShardProcess.start_spare(tmp_path, small_job(tmp_path, shards=2), roster, CPR_KEEPER="1")
    try:
        process.wait_until(lambda report: report.state is ShardState.SPARE)
        yield process
    finally:
        process.kill()


def test_it_is_ready_and_nobody_until_a_roster_says_who_it_is(spare: ShardProcess) -> None:
    report = spare.report()
    assert report is not None
    assert (report.index, report.incarnation, report.applied, spare.status_of("/readyz")) == (-1, 0, (), 200)
    spare.give(shard_roster(index=1, incarnation=3, newest_incarnation=3))
    report = spare.wait_ready()
    assert (report.index, report.incarnation, report.lives) == (1, 3, 1)


def test_one_that_is_superseded_before_it_hears_who_it_is_steps_aside(spare: ShardProcess) -> None:
    spare.give(shard_roster(index=1, incarnation=3, newest_incarnation=4))
    assert spare.end() == 11


def test_its_server_is_followed_by_another_spare(spare: ShardProcess) -> None:
    spare.signal_server()
    spare.wait_until(lambda report: report.state is ShardState.SPARE and report.lives == 2)
    spare.give(shard_roster(index=1, incarnation=3, newest_incarnation=3))
    assert spare.wait_ready().lives == 2


def test_it_ends_at_once_when_it_is_told_to(spare: ShardProcess) -> None:
    spare.process.send(signal.SIGTERM)
    assert spare.end() == TERMINATED
