"""The drawing of a storm: the same from the same seed, all faults in turn, and none that are in each other's way."""

from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.real_cluster.failpoints.catalogue import CATALOGUE
from simulation.real_cluster.timeline import SPREAD_S, TOGETHER, Kind, Round, timeline

KINDS = [fault.kind for fault in CATALOGUE]
BY_NAME = {kind.name: kind for kind in KINDS}


def rounds(seed: int, number: int, kinds: list[Kind] | None = None) -> list[Round]:
    return list(islice(timeline(seed, KINDS if kinds is None else kinds), number))


def test_the_same_seed_has_the_same_storm_and_another_seed_another() -> None:
    assert rounds(7, 40) == rounds(7, 40)
    assert rounds(7, 40)[:10] == rounds(7, 10)
    assert rounds(7, 10) != rounds(8, 10)


@given(st.integers(0, 2**32))
def test_two_or_three_come_together_and_none_takes_what_another_has(seed: int) -> None:
    for drawn in rounds(seed, 40):
        names = [injection.fault for injection in drawn.injections]
        assert len(set(names)) == len(names)
        assert len(names) in TOGETHER
        taken = Counter(thing for name in names for thing in BY_NAME[name].takes)
        assert max(taken.values(), default=0) <= 1


@given(st.integers(0, 2**32))
def test_every_fault_comes_once_before_it_has_come_three_times(seed: int) -> None:
    seen: Counter[str] = Counter()
    for drawn in rounds(seed, 3 * len(KINDS)):
        seen.update(injection.fault for injection in drawn.injections)
        assert max(seen.values()) < 3 or len(seen) == len(KINDS)
    assert set(seen) == set(BY_NAME)


@given(st.integers(0, 2**32))
def test_times_are_within_what_the_fault_says(seed: int) -> None:
    for injection in (injection for drawn in rounds(seed, 20) for injection in drawn.injections):
        least, most = BY_NAME[injection.fault].holds_s
        assert 0 <= injection.after_s <= SPREAD_S
        assert least - 0.05 <= injection.holds_s <= most + 0.05


def test_faults_that_all_take_the_same_cannot_come_together() -> None:
    alone = [Kind(name, takes=frozenset({"node"})) for name in "abc"]
    with pytest.raises(ValueError, match="nothing can come together"):
        rounds(1, 1, alone)


def test_the_timeline_says_what_comes_when() -> None:
    (drawn,) = rounds(1, 1, [Kind("cut", holds_s=(9, 9)), Kind("kill")])
    assert str(drawn).startswith("round 1: ")
    assert "cut after" in str(drawn)
    assert str(drawn).count("for 9 s") == 1


def test_the_catalogue_has_at_least_forty_faults_of_all_groups_and_no_name_twice() -> None:
    assert len(BY_NAME) == len(CATALOGUE) >= 40
    assert {fault.group for fault in CATALOGUE} == {
        "pods",
        "processes",
        "nodes",
        "store",
        "API server",
        "operator",
        "user",
    }
