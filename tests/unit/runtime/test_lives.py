"""What a keeper and the processes that it begins tell each other of how long a member was away."""

from __future__ import annotations

import numpy as np
import pytest

from cpr_contract.limits import MAX_LIVES
from cpr_trainer.runtime.keeper import FREE, Lives


@pytest.fixture
def lives() -> Lives:
    """In its first life."""
    made = Lives(np.zeros(FREE, np.int64), "owner")
    made.begin_life()
    return made


def test_nobody_was_away_in_the_first_life(lives: Lives) -> None:
    lives.work(1.0)
    assert lives.in_place_s == ()


def test_a_life_that_ended_is_told_once_the_next_one_works(lives: Lives) -> None:
    lives.lose(10.0)
    lives.begin_life()
    assert lives.in_place_s == ()
    lives.work(10.25)
    lives.work(99.0)
    assert lives.in_place_s == ((1, 0.25),)


def test_a_life_that_never_worked_adds_to_the_time_of_the_one_before(lives: Lives) -> None:
    for at_s in (10.0, 11.0):
        lives.lose(at_s)
        lives.begin_life()
    lives.work(11.5)
    assert lives.in_place_s == ((1, 1.5), (2, 0.5))


def test_the_last_lives_are_remembered(lives: Lives) -> None:
    for life in range(1, MAX_LIVES + 4):
        lives.lose(10.0 * life)
        lives.begin_life()
        lives.work(10.0 * life + life / 8)
    expected = tuple((life, life / 8) for life in range(4, MAX_LIVES + 4))
    assert lives.in_place_s == expected


def test_what_is_away_is_not_told_as_what_was_there_before(lives: Lives) -> None:
    for life in range(1, MAX_LIVES + 2):
        lives.lose(10.0 * life)
        lives.begin_life()
        if life <= MAX_LIVES:
            lives.work(10.0 * life + 1)
    assert [life for life, _ in lives.in_place_s] == list(range(2, MAX_LIVES + 1))
