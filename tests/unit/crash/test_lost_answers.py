"""The operator loses an answer, meets a conflict, or reads what is old, once at each call that matters."""

import pytest

from cpr_operator.cluster.protocol import ConflictError, UnavailableError
from support.driver import Driver, Scenario
from support.faults import EVERY, end_of, fault_at


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
