"""A shard's process that no roster names yet, and then one does."""

from __future__ import annotations

import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from cpr_contract.codec import to_json
from cpr_contract.reports import ShardState
from cpr_contract.roster import MAX_ROSTER_BYTES, ROSTER_PAGE, ROSTER_SIGNATURE, Counters, signature
from support.shard_job import KEY, ShardProcess, shard_roster, small_job

pytestmark = [pytest.mark.dist, pytest.mark.timeout(180)]

POD = "small-spare-1"
TERMINATED = 128 + signal.SIGTERM


@pytest.fixture
def spare(tmp_path: Path) -> Iterator[ShardProcess]:
    """A spare that is warm, with a keeper."""
    roster = shard_roster(index=1, incarnation=3, newest_incarnation=3)
    process = ShardProcess.start_spare(tmp_path, small_job(tmp_path, shards=2), roster, CPR_KEEPER="1", CPR_POD=POD)
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


def send(spare: ShardProcess, number: int, *, pod: str = POD, key: bytes = KEY, size: int | None = None) -> int:
    """Post the roster of incarnation 3 under this roster number; the HTTP status."""
    counters = Counters(roster=number, group=1, generation=1)
    body = to_json(shard_roster(index=1, incarnation=3, newest_incarnation=3, counters=counters)).encode()
    headers = {ROSTER_SIGNATURE: signature(key, pod, body), "Content-Length": str(len(body) if size is None else size)}
    request = urllib.request.Request(spare.url(ROSTER_PAGE), body, headers, method="POST")  # noqa: S310 -- loopback
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_a_roster_that_is_sent_and_signed_makes_it_a_shard(spare: ShardProcess) -> None:
    assert send(spare, 1, key=b"another") == 403
    assert send(spare, 1, pod="small-spare-2") == 403
    assert send(spare, 1, size=MAX_ROSTER_BYTES + 1) == 413
    report = spare.report()
    assert report is not None
    assert report.index == -1
    assert send(spare, 2) == 204
    assert (spare.wait_ready().index, spare.wait_ready().counters.roster) == (1, 2)
    spare.give(shard_roster(index=1, incarnation=3, newest_incarnation=3))  # the file of roster 1 comes later
    assert send(spare, 3) == 204
    assert spare.wait_until(lambda report: report.counters.roster == 3).incarnation == 3


def test_its_server_is_followed_by_another_spare(spare: ShardProcess) -> None:
    spare.signal_server()
    spare.wait_until(lambda report: report.state is ShardState.SPARE and report.lives == 2)
    spare.give(shard_roster(index=1, incarnation=3, newest_incarnation=3))
    assert spare.wait_ready().lives == 2


def test_it_ends_at_once_when_it_is_told_to(spare: ShardProcess) -> None:
    spare.process.send(signal.SIGTERM)
    assert spare.end() == TERMINATED
