"""The restarts of a member, counted and timed in the control block of its supervisor."""

from __future__ import annotations

import numpy as np
import pytest

from cpr_contract.limits import MAX_RESTART_TIMES
from cpr_trainer.runtime.supervision import FIRST_FREE_WORD, ControlBlock


@pytest.fixture
def control_block() -> ControlBlock:
    """Return the control block of a first process."""
    made = ControlBlock(np.zeros(FIRST_FREE_WORD, np.int64), "owner")
    made.begin_process()
    return made


def test_first_process_reports_no_restart(control_block: ControlBlock) -> None:
    control_block.record_serving(1.0)
    assert control_block.in_place_s == ()


def test_restart_is_reported_once_the_next_process_works(control_block: ControlBlock) -> None:
    control_block.record_end(10.0)
    control_block.begin_process()
    assert control_block.in_place_s == ()
    control_block.record_serving(10.25)
    control_block.record_serving(99.0)
    assert control_block.in_place_s == ((1, 0.25),)


def test_process_that_never_worked_adds_to_the_time_of_the_one_before(control_block: ControlBlock) -> None:
    for at_s in (10.0, 11.0):
        control_block.record_end(at_s)
        control_block.begin_process()
    control_block.record_serving(11.5)
    assert control_block.in_place_s == ((1, 1.5), (2, 0.5))


def test_last_restarts_are_retained(control_block: ControlBlock) -> None:
    for number in range(1, MAX_RESTART_TIMES + 4):
        control_block.record_end(10.0 * number)
        control_block.begin_process()
        control_block.record_serving(10.0 * number + number / 8)
    expected = tuple((number, number / 8) for number in range(4, MAX_RESTART_TIMES + 4))
    assert control_block.in_place_s == expected


def test_restarting_member_is_not_reported_as_it_was(control_block: ControlBlock) -> None:
    for number in range(1, MAX_RESTART_TIMES + 2):
        control_block.record_end(10.0 * number)
        control_block.begin_process()
        if number <= MAX_RESTART_TIMES:
            control_block.record_serving(10.0 * number + 1)
    assert [number for number, _ in control_block.in_place_s] == list(range(2, MAX_RESTART_TIMES + 1))
