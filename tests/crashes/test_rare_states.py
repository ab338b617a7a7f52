"""Chosen faults of the data plane's simulation: jobs reach rare states, and their first seeds pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import pytest

from simulation.data_plane.run import run_to_completion
from simulation.data_plane.workload import Workload, following, with_faults, with_keys

#: Rare states: one of 20 seeds reaches each, where only these faults are injected.
RARE = {
    "a holder undid a flush": with_faults("kill_in_flush", "clog", shards=4, parity_shards=2),
    "a save was given up: Superseded": with_faults("replace_live", "store_slow"),
    "the last push was reapplied": with_faults("kill_between_lines"),
    "a push waited for a save": with_faults("store_slow", "store_slow", "kill_server", shards=1),
    "memory for pushes was full": with_faults("store_down", "store_slow", replay_bytes=30_000),
    "a shard was below its floor": with_faults("kill_two", "kill_again", shards=4, parity_shards=2),
}


@pytest.mark.parametrize("state", RARE)
def test_rare_state_is_reached_under_its_faults(state: str) -> None:
    assert any(run_to_completion(seed, RARE[state]).probes[state] for seed in range(20))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("faults", [("kill_trainer",), ("kill_in_push", "kill_trainer_process", "reset", "clog")])
def test_lost_trainers_lose_no_update_if_steps_are_merged(faults: tuple[str, ...]) -> None:
    """A lost trainer's contributions are at the shards, or no row has changed: see `Failpoints.WITHOUT_SHARDS`."""
    alter = with_faults(*faults, trainers=3, sparse_updates="PerStep")
    replaced = [run_to_completion(seed, alter).probes["a trainer was replaced"] for seed in range(8)]
    assert sum(replaced) > len(replaced)


def reached(alter_of: Callable[[int], Callable[[Workload], Workload]]) -> Counter[str]:
    """Return the probes of the first seeds, each of a job that is altered by it."""
    return sum((run_to_completion(seed, alter_of(seed)).probes for seed in range(6)), Counter[str]())


#: Faults of jobs with dynamic tables, and a state that their first seeds reach.
KEYS = {
    "saves": (with_faults("kill_shard", "kill_server", "store_slow"), "rows came from a save"),
    "parity": (with_faults("kill_shard", "kill_in_flush", shards=4, parity_shards=2), "rows came from parity"),
    "lines": (with_faults("kill_between_lines", trainers=2), "the last push was reapplied"),
    "one trainer": (with_faults("kill_trainer", "clog", trainers=1), "a trainer was replaced"),
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", KEYS)
def test_lost_members_leave_keys_as_expected(name: str) -> None:
    faults, state = KEYS[name]
    probes = reached(lambda _: with_keys(faults))
    assert probes[state]
    assert probes["a key was evicted"]


#: Faults around a stop of the job and around drained trainers, and a state that their first seeds reach.
STOPS = {
    "drained": (("drain_trainer", "drain_again", "reset"), "a trainer was replaced"),
    "stopped": (("stop_job", "stop_without_follower", "drain_trainer", "clog"), "the job stopped at an anchor"),
    "killed in a stop": (("kill_in_stop",), "the job stopped at an anchor"),
    "in the last step": (("kill_at_end",), "fault: a member was lost in the last step"),
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", STOPS)
def test_stopped_and_drained_trainers_leave_the_bytes_of_a_calm_run(name: str) -> None:
    """Unless updates are lost: saves of a stopped job are of one step on all members, and it ends as without a stop."""
    faults, state = STOPS[name]
    probes = reached(lambda seed: with_faults(*faults, trainers=2 + seed % 2, sparse_updates="PerStep"))
    assert probes[state]


#: Faults of jobs whose data arrives while they train, a state that their seeds reach, and these.
ARRIVALS: dict[str, tuple[tuple[str, ...], str, Iterable[int]]] = {
    "trainers": (("kill_trainer", "kill_trainer_process", "reset", "clog"), "a trainer was replaced", range(3)),
    "shards": (("kill_shard", "kill_server", "store_slow"), "rows came from a save", range(3)),
    "store": (("store_slow", "store_down", "kill_trainer"), "a trainer was replaced", range(3)),
    "rollbacks": (("roll_back", "roll_back"), "the job went back to its oldest anchor", (6, 8, 15)),
    "the end": (("kill_at_end",), "fault: a member was lost in the last step", range(3)),
    "stops": (("stop_job", "drain_trainer", "kill_in_stop"), "the job stopped at an anchor", range(3)),
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ARRIVALS)
def test_rows_that_arrive_are_trained_once_and_in_the_same_steps(name: str) -> None:
    faults, state, seeds = ARRIVALS[name]
    alter = following(with_faults(*faults, trainers=2, sparse_updates="PerStep"))
    probes = sum((run_to_completion(seed, alter).probes for seed in seeds), Counter[str]())
    assert probes[state]
    assert probes["a later pin was named"]
    assert probes["a batch was filled by voids"]
    assert probes["data pins were deleted"]
