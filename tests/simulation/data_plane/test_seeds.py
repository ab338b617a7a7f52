"""The first seeds pass in both modes and reach rare states. `python -m simulation.data_plane` runs more seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from simulation.data_plane.run import RunResult, run_to_completion, run_under_faults

#: `make soak` runs 10,000, in the parts `seeds-1` and `seeds-2`.
SEEDS = 30

#: Rare states that these seeds reach.
SOMETIMES = (
    "a push was replayed while a cut was announced",
    "a cut was taken while a shard caught up",
    "two shards caught up at once",
    "a server was killed between two lines",
    "memory for pushes was nearly full",
    "rows came from parity",
    "rows came from a save",
    "a request was done after its sender had died",
    "an answer of the store was lost",
    "a killed process left an unfinished object",
    "an incarnation outlived its replacement",
    "a shard was drained",
    "a trainer restarted in its pod",
    "a trainer was replaced",
    "the job stopped at an anchor",
    "fault: a trainer was drained",
    "a key was counted",
    "a key was evicted",
    "a key took the slot of an expired one",
    "a gradient was dropped, because all slots were pinned",
)


@pytest.mark.timeout(600)
def test_seeds_report_every_loss_and_complete_once_faults_end() -> None:
    probes = Counter[str]()
    for seed in range(SEEDS):
        for mode in (run_under_faults, run_to_completion):
            probes += mode(seed).probes
    assert [state for state in SOMETIMES if not probes[state]] == []


@pytest.mark.parametrize("mode", [run_under_faults, run_to_completion])
def test_seed_gives_the_same_run_every_time(mode: Callable[[int], RunResult]) -> None:
    one, other = mode(4), mode(4)
    assert one == other
    assert one.switches > 500
