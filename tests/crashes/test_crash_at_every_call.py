"""The operator is killed, loses an answer or meets a conflict, at every call that changes the cluster.

Reads change nothing, so a crash before a call is one after the call before it, unless it is the first of its pass.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import pytest

from cpr_operator.api.cprjob_spec import CPRJobSpec
from cpr_operator.api.validate import parse_spec
from cpr_operator.cluster.protocol import ConflictError, UnavailableError
from cpr_operator.controller import job_reader
from simulation.control_plane.checker import outcome_of
from simulation.control_plane.cluster import SimulatedCluster, When
from simulation.control_plane.deletions import MANIFOLD
from simulation.control_plane.failpoints import CallFault
from simulation.control_plane.run import Crash, Simulation
from simulation.control_plane.scenarios import SCENARIOS
from simulation.control_plane.workload import Scenario

EVERY_SCENARIO = (*SCENARIOS, *MANIFOLD)

#: Runs of one spec are equal up to the first step, so only the first scenario of a spec gets faults before that.
FAULTED_EARLY = {
    json.dumps((scenario.spec, scenario.queue), default=dict): scenario.name for scenario in reversed(EVERY_SCENARIO)
}.values()


@pytest.fixture(autouse=True)
def parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse each spec once: thousands of passes read the same few documents."""
    parsed: dict[int, tuple[Mapping[str, Any], CPRJobSpec]] = {}

    def once(spec: Mapping[str, Any], *, checked: bool = False) -> CPRJobSpec:
        if id(spec) not in parsed:
            parsed[id(spec)] = spec, parse_spec(spec, checked=checked)
        return parsed[id(spec)][1]

    monkeypatch.setattr(job_reader, "parse_spec", once)


def faults_at(number: int, cluster: SimulatedCluster) -> Iterator[tuple[When, Exception]]:
    """The faults of a call of this run."""
    call = cluster.calls[number]
    if number in cluster.firsts:
        yield "before", Crash()
    yield "after", Crash()
    if call in {"write_status", "create_pod"}:
        yield "after", UnavailableError("timed out")
    if call == "write_status":
        yield "before", ConflictError("written since")


def raised(number: int, when: When, error: Exception) -> CallFault:
    def fault(_call: str, at: int, now: When) -> None:
        if (at, now) == (number, when):
            raise error

    return fault


@pytest.mark.timeout(300)
@pytest.mark.parametrize("scenario", EVERY_SCENARIO, ids=lambda s: s.name)
async def test_fault_at_any_call_changes_no_outcome(scenario: Scenario) -> None:
    """Runs are equal up to the step of the faulted call, so each begins with a copy from before that step."""
    calm = Simulation(scenario)
    steps = [(0, False)]
    while not calm.over:
        await calm.step()
        steps.append((len(calm.cluster.calls), calm.begun))
    expected, again = outcome_of(calm.result()), Simulation(scenario)
    for (first, _), (end, begun) in pairwise(steps):
        calls = range(first, end) if begun or scenario.name in FAULTED_EARLY else ()
        before = again.copy() if calls else again
        for number in calls:
            for when, error in faults_at(number, calm.cluster):
                faulted = before.copy()
                faulted.cluster.fault = raised(number, when, error)
                outcome = outcome_of(await faulted.run())
                assert outcome == expected, f"{error!r} {when} call {number}, {calm.cluster.calls[number]}"
        await again.step()
