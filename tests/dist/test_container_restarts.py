"""Shards whose container ends as a whole and begins again in its pod: the next keeper takes over the last one's memory.

As with the kubelet's container restart rules, a file in the pod's memory is all that is left, and its scratch folder.
"""

from __future__ import annotations

import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cpr_contract.codec import to_json
from cpr_contract.env import KEEPER, MEMORY_DIR, SPEC
from cpr_contract.reports import ExitCode
from support.shard_story import BATCH, Story
from support.shard_story import push_through as push

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]


@pytest.fixture
def memory() -> Iterator[Path]:
    """Where the pod's memory is mounted: memory, so that no write waits for a disk."""
    with tempfile.TemporaryDirectory(prefix="cpr-memory-", dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def story(tmp_path: Path, memory: Path) -> Story:
    return Story(tmp_path, {KEEPER: "1", MEMORY_DIR: str(memory)}, strategy="Full")


def end_container(story: Story) -> None:
    """Kill the keeper, as the kernel does when the container runs out of memory: its server dies with it."""
    server = story.shard.process.child
    story.shard.process.send(signal.SIGKILL)
    assert story.shard.end() == -signal.SIGKILL
    story.wait_for(lambda: not Path(f"/proc/{server}").exists())


def test_a_container_killed_at_any_moment_goes_on_with_all_rows(story: Story, memory: Path) -> None:
    """Rows and state, bit for bit, whether it was applying, saving or waiting; and what it saves later is whole."""
    rng = random.Random(time.time_ns())
    with story:
        story.start()
        story.join()
        last, lives = 0, 1
        for _ in range(3):  # no count of crashes outlives a keeper: the operator counts containers

            def strike() -> None:
                end_container(story)
                story.shard.run_again()

            kill = threading.Timer(rng.random() / 20, strike)
            kill.start()
            for first in range(last + 1, last + 25, 4):
                push(story, *range(first, first + 4), cut=first + 1)
            last += 24
            kill.join()
            lives = story.shard.wait_until(lambda report, before=lives: report.lives > before).lives
        report = story.shard.wait_until(lambda report: report.applied == (last,))
        assert (report.lost, report.restored_samples, report.incarnation) == ((), 0, 1)
        assert report.row_updates is not None
        assert (report.row_updates.lost, report.row_updates.exact) == (0, True)
        push(story, last + 1, cut=last + 1)
        story.wait_for(lambda: story.saved_step() == last + 1)
        story.shard.kill()
        (memory / "rows").unlink()
        story.start()  # in another pod: what the last life has saved stands alone
        assert story.shard.wait_ready().restored_samples == BATCH * (last + 1)
        story.assert_rows(story.expected(*range(1, last + 2)))


def test_how_long_the_container_was_away_is_told_by_its_successor(story: Story) -> None:
    with story:
        story.start()
        story.join()
        push(story, 1)
        end_container(story)
        ended = time.monotonic()
        story.shard.run_again()
        report = story.shard.wait_until(lambda report: bool(report.in_place_s))
        ((life, took_s),) = report.in_place_s
        assert (life, report.restarts) == (1, 1)
        assert 0 < took_s < time.monotonic() - ended + 60


def test_a_server_that_dies_after_that_goes_on_as_ever(story: Story) -> None:
    with story:
        story.start()
        story.join()
        push(story, 1, 2)
        end_container(story)
        story.shard.run_again()
        push(story, 3)
        story.shard.signal_server()
        push(story, 4)
        report = story.shard.wait_until(lambda report: report.lives >= 3 and report.applied == (4,))
        assert report.restarts == 1, "the server ended without its container"
        story.assert_rows(story.expected(1, 2, 3, 4))


def damage(path: Path) -> None:
    """Change what the server has kept beside the rows, in both copies."""
    data = bytearray(path.read_bytes())
    at = data.index(b'"generation"')
    while at >= 0:
        data[at + 1] ^= 1
        at = data.find(b'"generation"', at)
    path.write_bytes(data)


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(lambda rows: rows.unlink(), id="the machine began anew"),
        pytest.param(damage, id="damaged"),
    ],
)
def test_memory_that_cannot_be_used_ends_the_pod(harm: Callable[[Path], None], story: Story, memory: Path) -> None:
    """By a code after which no kubelet begins the container again."""
    with story:
        story.start()
        story.join()
        push(story, 1, 2)
        end_container(story)
        harm(memory / "rows")
        story.shard.run_again()
        assert story.shard.end() == ExitCode.INTERNAL
        assert story.shard.termination()["reason"] == "GivenUp"


def test_memory_of_another_layout_ends_the_pod(story: Story) -> None:
    with story:
        story.start()
        story.join()
        push(story, 1, 2)
        end_container(story)
        tables = story.job.model.tables
        # As many rows in all, and as many bytes: only the layout tells them apart.
        model = replace(story.job.model, tables=(replace(tables[0], rows=59), replace(tables[1], rows=6)))
        story.shard.run_again(**{SPEC: to_json(replace(story.job, model=model))})
        assert story.shard.end() == ExitCode.INTERNAL
        assert story.shard.termination()["reason"] == "GivenUp"
