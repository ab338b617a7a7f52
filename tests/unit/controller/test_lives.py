"""What becomes of jobs whose members are lost, by the whole way through the house: controller, core, fake cluster."""

import pytest

from support.scenarios import SCENARIOS, Driver, Life, Scenario


def by_name(name: str) -> Scenario:
    return next(s for s in SCENARIOS if s.name == name)


async def live(name: str) -> Life:
    return await Driver(by_name(name)).run()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
async def test_a_life(scenario: Scenario):
    life = await Driver(scenario).run()
    print(
        scenario.name,
        life.phases,
        life.status.budget,
        [
            (f.role, f.index, f.incarnation, f.kind, f.action, f.lost_samples, f.recovery_seconds)
            for f in life.status.failures
        ],
        life.status.ledger.ranges,
        life.status.counters,
    )
    assert life.status.phase == scenario.phase
