"""The operator is killed before and after every call that changes the cluster, in every scenario, once each.

Reads change nothing: a crash at one is a crash after the call before it.
"""

import pytest

from cpr_operator.cluster.protocol import ConflictError, UnavailableError
from support.fake_cluster import When
from support.scenarios import SCENARIOS, Crash, Driver, Life, Scenario


def crash_at(number: int, when: When):
    def fault(call: str, at: int, now: When) -> None:
        if (at, now) == (number, when):
            raise Crash(f"{when} {call}")

    return fault


def end_of(life: Life) -> tuple[object, ...]:
    """What must not depend on when the operator was killed."""
    status = life.status
    failures = sorted((f.role, f.index, f.kind, f.counted) for f in status.failures)
    return status.phase, status.ledger.ranges, failures, status.counters.generation, len(status.restart_times)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
@pytest.mark.timeout(300)
async def test_a_crash_anywhere_changes_nothing(scenario: Scenario):
    calm = await Driver(scenario).run()
    for number in range(len(calm.cluster.calls)):
        for when in ("before", "after"):
            life = await Driver(scenario, crash_at(number, when)).run()
            assert end_of(life) == end_of(calm), f"killed {when} call {number}, {calm.cluster.calls[number]}"
