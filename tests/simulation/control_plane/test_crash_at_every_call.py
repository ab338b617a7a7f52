"""The operator is killed, once at each call that matters.

Reads change nothing, so a crash before a call is one after the call before it, unless it is the first of its pass.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Iterator

import pytest

from cpr_operator.cluster.protocol import ConflictError, UnavailableError
from simulation.control_plane.cluster import FakeCluster, When
from simulation.control_plane.deletions import MANIFOLD, end_of_deletion
from simulation.control_plane.failpoints import CallFault
from simulation.control_plane.run import Crash, RunResult, Simulation
from simulation.control_plane.scenarios import SCENARIOS
from simulation.control_plane.workload import Scenario

EVERY = pytest.mark.parametrize("scenario", [*SCENARIOS, *MANIFOLD], ids=lambda s: s.name)

#: Lives of one spec are the same until their stories begin, so only the first scenario of a spec is struck before that.
STRUCK_EARLY = {
    json.dumps((scenario.spec, scenario.queue), default=dict): scenario.name
    for scenario in reversed([*SCENARIOS, *MANIFOLD])
}.values()


def fault_at(number: int, when: When, error: Exception) -> CallFault:
    def fault(call: str, at: int, now: When) -> None:
        if (at, now) == (number, when):
            raise error

    return fault


async def struck(
    scenario: Scenario, points: Iterable[tuple[int, When]], error: Exception
) -> AsyncIterator[tuple[int, When, RunResult]]:
    """The life of the scenario with an error at each of these calls, which come in their order.

    Lives are the same up to the step in which the call is made, so each begins with a copy of the
    calm one, as it was before that step. Calls before the story are struck only in `STRUCK_EARLY`.
    """
    calm = Simulation(scenario)
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


def end_of(life: RunResult, scenario: Scenario) -> tuple[object, ...]:
    """What must not depend on when the operator was killed."""
    status = life.status
    failures = sorted((f.role, f.index, f.counted) for f in status.failures)
    account = status.ledger.ranges, status.counters.generation, len(status.restart_times)
    auc = status.progress.auc if status.phase == "Succeeded" else None
    return status.phase, auc, failures, account, end_of_deletion(life)


def crash_points(cluster: FakeCluster) -> Iterator[tuple[int, When]]:
    for number in range(len(cluster.calls)):
        if number in cluster.firsts:
            yield number, "before"
        yield number, "after"


@EVERY
@pytest.mark.timeout(300)
async def test_a_crash_anywhere_changes_nothing(scenario: Scenario) -> None:
    calm = await Simulation(scenario).run()
    async for number, when, life in struck(scenario, crash_points(calm.cluster), Crash()):
        assert end_of(life, scenario) == end_of(calm, scenario), (
            f"killed {when} call {number}, {calm.cluster.calls[number]}"
        )


def calls(life: RunResult, when: When, *names: str) -> Iterator[tuple[int, When]]:
    return ((number, when) for number, call in enumerate(life.cluster.calls) if call in names)


@EVERY
@pytest.mark.timeout(300)
async def test_a_lost_answer_anywhere_changes_nothing(scenario: Scenario) -> None:
    calm = await Simulation(scenario).run()
    points = calls(calm, "after", "write_status", "create_pod")
    async for number, _, life in struck(scenario, points, UnavailableError("timed out")):
        assert end_of(life, scenario) == end_of(calm, scenario), f"lost answer of call {number}"


@EVERY
async def test_a_conflict_drops_the_outcome(scenario: Scenario) -> None:
    calm = await Simulation(scenario).run()
    points = calls(calm, "before", "write_status")
    async for number, _, life in struck(scenario, points, ConflictError("written since")):
        assert end_of(life, scenario) == end_of(calm, scenario), f"conflict at call {number}"


@EVERY
async def test_stale_reads_of_the_job_change_nothing(scenario: Scenario) -> None:
    calm, driver = await Simulation(scenario).run(), Simulation(scenario)
    driver.cluster.stale_reads = True
    assert end_of(await driver.run(), scenario) == end_of(calm, scenario)
