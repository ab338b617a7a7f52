from typing import get_args

import pytest

from cpr_operator.api.status import TERMINAL_PHASES, Phase
from cpr_operator.reconcile.lifecycle import TRANSITIONS


def test_every_phase_has_its_line() -> None:
    assert set(TRANSITIONS) == set(get_args(Phase))


@pytest.mark.parametrize("phase", sorted(TERMINAL_PHASES))
def test_terminal_stays_terminal(phase: Phase) -> None:
    assert TRANSITIONS[phase] == frozenset()


def test_all_phases_but_suspension_can_fail_and_every_one_can_be_reached() -> None:
    for phase in set(TRANSITIONS) - TERMINAL_PHASES - {"Suspending", "Suspended"}:
        assert "Failed" in TRANSITIONS[phase]
    reached: set[Phase] = {"Pending"}
    while more := {after for phase in reached for after in TRANSITIONS[phase]} - reached:
        reached |= more
    assert reached == set(TRANSITIONS)
