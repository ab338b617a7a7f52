"""What a supervisor and the processes that it begins tell each other of how long a member was away."""

from __future__ import annotations

import numpy as np
import pytest

from cpr_contract.limits import MAX_RESTART_TIMES
from cpr_trainer.runtime.supervision import FIRST_FREE_WORD, ControlBlock


@pytest.fixture
def lives() -> ControlBlock:
    """In its first life."""
    made = ControlBlock(np.zeros(FIRST_FREE_WORD, np.int64), "owner")
    made.begin_process()
    return made


def test_nobody_was_away_in_the_first_life(lives: ControlBlock) -> None:
    lives.record_serving(1.0)
    assert lives.in_place_s == ()


def test_a_life_that_ended_is_told_once_the_next_one_works(lives: ControlBlock) -> None:
    lives.record_end(10.0)
    lives.begin_process()
    assert lives.in_place_s == ()
    lives.record_serving(10.25)
    lives.record_serving(99.0)
    assert lives.in_place_s == ((1, 0.25),)


def test_a_life_that_never_worked_adds_to_the_time_of_the_one_before(lives: ControlBlock) -> None:
    for at_s in (10.0, 11.0):
        lives.record_end(at_s)
        lives.begin_process()
    lives.record_serving(11.5)
    assert lives.in_place_s == ((1, 1.5), (2, 0.5))


def test_the_last_lives_are_remembered(lives: ControlBlock) -> None:
    for life in range(1, MAX_RESTART_TIMES + 4):
        lives.record_end(10.0 * life)
        lives.begin_process()
        lives.record_serving(10.0 * life + life / 8)
    expected = tuple((life, life / 8) for life in range(4, MAX_RESTART_TIMES + 4))
    assert lives.in_place_s == expected


def test_what_is_away_is_not_told_as_what_was_there_before(lives: ControlBlock) -> None:
    for life in range(1, MAX_RESTART_TIMES + 2):
        lives.record_end(10.0 * life)
        lives.begin_process()
        if life <= MAX_RESTART_TIMES:
            lives.record_serving(10.0 * life + 1)
    assert [life for life, _ in lives.in_place_s] == list(range(2, MAX_RESTART_TIMES + 1))
