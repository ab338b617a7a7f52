"""Ways to lose a shard half way after which a job ends as if nothing had been lost."""

from __future__ import annotations

import signal
from collections.abc import Callable

from cpr_contract.reports import ExitCode
from support.local_job import LocalJob


def half_way(running: LocalJob) -> int:
    """Half of the job's samples."""
    samples = running.job.data.samples
    assert samples is not None
    return samples // 2


def kill_and_roll_back(running: LocalJob) -> None:
    """All go back to an anchor: nothing but steps is lost."""
    running.wait_for(lambda: running.trainer().anchors, "there is an anchor")
    running.reach(half_way(running))
    running.kill(running.shards[1])
    running.roll_back(running.trainer().anchors[-1])


def stop_one(running: LocalJob) -> None:
    """The shard saves all that it has, and its successor goes on from there."""
    running.reach(half_way(running))
    running.kill(running.shards[1], signal.SIGTERM)
    assert running.wait_exit(running.shards[1]) == ExitCode.FLUSHED


WITHOUT_LOSS: tuple[Callable[[LocalJob], None], ...] = (kill_and_roll_back, stop_one)
