"""The operator loses an answer, meets a conflict, or reads what is old, once at each call that matters."""

from collections.abc import Iterator

import pytest

from cpr_operator.cluster.protocol import ConflictError, UnavailableError
from support.driver import Driver, Life, Scenario
from support.fake_cluster import When
from support.faults import EVERY, end_of, struck


def calls(life: Life, when: When, *names: str) -> Iterator[tuple[int, When]]:
    return ((number, when) for number, call in enumerate(life.cluster.calls) if call in names)


@EVERY
@pytest.mark.timeout(300)
async def test_a_lost_answer_anywhere_changes_nothing(scenario: Scenario) -> None:
    calm = await Driver(scenario).run()
    points = calls(calm, "after", "write_status", "create_pod")
    async for number, _, life in struck(scenario, points, UnavailableError("timed out")):
        assert end_of(life, scenario) == end_of(calm, scenario), f"lost answer of call {number}"


@EVERY
async def test_a_conflict_drops_the_outcome(scenario: Scenario) -> None:
    calm = await Driver(scenario).run()
    points = calls(calm, "before", "write_status")
    async for number, _, life in struck(scenario, points, ConflictError("written since")):
        assert end_of(life, scenario) == end_of(calm, scenario), f"conflict at call {number}"


@EVERY
async def test_stale_reads_of_the_job_change_nothing(scenario: Scenario) -> None:
    calm, driver = await Driver(scenario).run(), Driver(scenario)
    driver.cluster.stale_reads = True
    assert end_of(await driver.run(), scenario) == end_of(calm, scenario)
