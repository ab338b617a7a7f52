"""The operator is killed, meets a conflict or loses an answer, once at each call that matters.

Reads change nothing, so a crash before a call is one after the call before it, unless it is the first of its pass.
"""

from collections.abc import Iterator

import pytest

from cpr_operator.cluster.protocol import ConflictError, UnavailableError
from support.deletions import MANIFOLD, end_of_deletion
from support.driver import Crash, Driver, Fault, Life, Scenario
from support.fake_cluster import FakeCluster, When
from support.scenarios import SCENARIOS

EVERY = pytest.mark.parametrize("scenario", [*SCENARIOS, *MANIFOLD], ids=lambda s: s.name)


def fault_at(number: int, when: When, error: Exception) -> Fault:
    def fault(call: str, at: int, now: When) -> None:
        if (at, now) == (number, when):
            raise error

    return fault


def crash_points(cluster: FakeCluster) -> Iterator[tuple[int, When]]:
    for number in range(len(cluster.calls)):
        if number in cluster.firsts:
            yield number, "before"
        yield number, "after"


def end_of(life: Life, scenario: Scenario) -> tuple[object, ...]:
    """What must not depend on when the operator was killed."""
    status = life.status
    failures = sorted((f.role, f.index, f.counted) for f in status.failures)
    account = status.ledger.ranges, status.counters.generation, len(status.restart_times)
    auc = status.progress.auc if status.phase == "Succeeded" else None
    return status.phase, auc, failures, account, end_of_deletion(life)


@EVERY
@pytest.mark.timeout(300)
async def test_a_crash_anywhere_changes_nothing(scenario: Scenario) -> None:
    calm = await Driver(scenario).run()
    for number, when in crash_points(calm.cluster):
        life = await Driver(scenario, fault_at(number, when, Crash())).run()
        assert end_of(life, scenario) == end_of(calm, scenario), (
            f"killed {when} call {number}, {calm.cluster.calls[number]}"
        )


@EVERY
@pytest.mark.timeout(300)
async def test_a_lost_answer_anywhere_changes_nothing(scenario: Scenario) -> None:
    calm = await Driver(scenario).run()
    for number, call in enumerate(calm.cluster.calls):
        if call in {"write_status", "create_pod"}:
            life = await Driver(scenario, fault_at(number, "after", UnavailableError("timed out"))).run()
            assert end_of(life, scenario) == end_of(calm, scenario), f"lost answer of call {number}, {call}"


@EVERY
async def test_a_conflict_drops_the_outcome(scenario: Scenario) -> None:
    calm = await Driver(scenario).run()
    for number, call in enumerate(calm.cluster.calls):
        if call == "write_status":
            life = await Driver(scenario, fault_at(number, "before", ConflictError("written since"))).run()
            assert end_of(life, scenario) == end_of(calm, scenario), f"conflict at call {number}"


@EVERY
async def test_stale_reads_of_the_job_change_nothing(scenario: Scenario) -> None:
    calm, driver = await Driver(scenario).run(), Driver(scenario)
    driver.cluster.stale_reads = True
    assert end_of(await driver.run(), scenario) == end_of(calm, scenario)
