"""The work of a pass grows with the members of its job, and not with their square."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from cpr_operator.reconcile import ReconcileInput, reconcile
from cprjob_bench.commands.large_job import MOMENTS

#: For twice the members; a pass over their square would take four times the calls.
MOST = 2.5


def calls(observed: ReconcileInput) -> int:
    """Return the number of function calls of a reconciliation, with Python's own."""
    count = 0

    def profile(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(profile)
    try:
        reconcile(observed)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("moment", MOMENTS)
def test_reconcile_is_linear_in_members(moment: str) -> None:
    make: Callable[[int, int], ReconcileInput] = MOMENTS[moment]
    assert calls(make(128, 64)) < MOST * calls(make(64, 32))
