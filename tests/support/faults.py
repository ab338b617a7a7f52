"""Faults at the calls of a scenario, and what its end must not depend on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable

import pytest

from support.deletions import MANIFOLD, end_of_deletion
from support.driver import Driver, Fault, Life, Scenario
from support.fake_cluster import When
from support.scenarios import SCENARIOS

EVERY = pytest.mark.parametrize("scenario", [*SCENARIOS, *MANIFOLD], ids=lambda s: s.name)

#: Lives of one spec are the same until their stories begin, so only the first scenario of a spec is struck before that.
STRUCK_EARLY = {
    json.dumps((scenario.spec, scenario.queue), default=dict): scenario.name
    for scenario in reversed([*SCENARIOS, *MANIFOLD])
}.values()


def fault_at(number: int, when: When, error: Exception) -> Fault:
    def fault(call: str, at: int, now: When) -> None:
        if (at, now) == (number, when):
            raise error

    return fault


async def struck(
    scenario: Scenario, points: Iterable[tuple[int, When]], error: Exception
) -> AsyncIterator[tuple[int, When, Life]]:
    """The life of the scenario with an error at each of these calls, which come in their order.

    Lives are the same up to the step in which the call is made, so each begins with a copy of the
    calm one, as it was before that step. Calls before the story are struck only in `STRUCK_EARLY`.
    """
    calm = Driver(scenario)
    before = calm.copy()
    for number, when in points:
        while len(calm.cluster.calls) <= number:
            before = calm.copy()
            await calm.step()
        if not calm.begun and scenario.name not in STRUCK_EARLY:
            continue
        driver = before.copy()
        driver.cluster.fault = fault_at(number, when, error)
        yield number, when, await driver.run()


def end_of(life: Life, scenario: Scenario) -> tuple[object, ...]:
    """What must not depend on when the operator was killed."""
    status = life.status
    failures = sorted((f.role, f.index, f.counted) for f in status.failures)
    account = status.ledger.ranges, status.counters.generation, len(status.restart_times)
    auc = status.progress.auc if status.phase == "Succeeded" else None
    return status.phase, auc, failures, account, end_of_deletion(life)
