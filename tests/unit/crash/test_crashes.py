"""The operator is killed, once at each call that matters.

Reads change nothing, so a crash before a call is one after the call before it, unless it is the first of its pass.
"""

from collections.abc import Iterator

import pytest

from support.driver import Crash, Driver, Scenario
from support.fake_cluster import FakeCluster, When
from support.faults import EVERY, end_of, struck


def crash_points(cluster: FakeCluster) -> Iterator[tuple[int, When]]:
    for number in range(len(cluster.calls)):
        if number in cluster.firsts:
            yield number, "before"
        yield number, "after"


@EVERY
@pytest.mark.timeout(300)
async def test_a_crash_anywhere_changes_nothing(scenario: Scenario) -> None:
    calm = await Driver(scenario).run()
    async for number, when, life in struck(scenario, crash_points(calm.cluster), Crash()):
        assert end_of(life, scenario) == end_of(calm, scenario), (
            f"killed {when} call {number}, {calm.cluster.calls[number]}"
        )
