"""Many seeds of a world end as they should, and met what is rare. `python -m support.world` rides more of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from support.world.ride import Ride, ride_through, ride_to_the_end

#: So many seeds of each way are ridden here; `make soak` rides 10,000.
SEEDS = 40

#: What is rare, and was met by these seeds nevertheless.
SOMETIMES = (
    "a push was replayed while a cut was announced",
    "two shards caught up at once",
    "the last push was put into the rows again",
    "a server was killed between two lines",
    "memory for pushes was nearly full",
    "memory for pushes was full",
    "rows came from parity",
    "rows came from a save",
    "a holder took a flush back",
    "rows of a stripe had to be asked for again",
    "a request was done after its sender had died",
    "an answer of the store was lost",
    "an incarnation lived on beside its successor",
    "a shard was below its floor",
    "a shard was drained",
    "a trainer went on in its pod",
    "a trainer was replaced",
    "a push waited for a save",
    "a save was given up: Superseded",
)


@pytest.mark.timeout(300)
def test_any_faults_and_what_is_lost_is_told() -> None:
    assert sum(ride_through(seed).met["a push was replayed"] for seed in range(SEEDS)) > 0


@pytest.mark.timeout(300)
def test_once_faults_end_every_job_ends_with_all_that_it_misses_told() -> None:
    met = Counter[str]()
    for seed in range(SEEDS):
        met += ride_to_the_end(seed).met
    assert [what for what in SOMETIMES if not met[what]] == []


@pytest.mark.parametrize("way", [ride_through, ride_to_the_end])
def test_a_seed_is_the_same_every_time(way: Callable[[int], Ride]) -> None:
    one, other = way(3), way(3)
    assert one == other
    assert one.switches > 1000
