"""Faults at the calls of a scenario, and what its end must not depend on."""

from __future__ import annotations

import pytest

from support.deletions import MANIFOLD, end_of_deletion
from support.driver import Fault, Life, Scenario
from support.fake_cluster import When
from support.scenarios import SCENARIOS

EVERY = pytest.mark.parametrize("scenario", [*SCENARIOS, *MANIFOLD], ids=lambda s: s.name)


def fault_at(number: int, when: When, error: Exception) -> Fault:
    def fault(call: str, at: int, now: When) -> None:
        if (at, now) == (number, when):
            raise error

    return fault


def end_of(life: Life, scenario: Scenario) -> tuple[object, ...]:
    """What must not depend on when the operator was killed."""
    status = life.status
    failures = sorted((f.role, f.index, f.counted) for f in status.failures)
    account = status.ledger.ranges, status.counters.generation, len(status.restart_times)
    auc = status.progress.auc if status.phase == "Succeeded" else None
    return status.phase, auc, failures, account, end_of_deletion(life)
