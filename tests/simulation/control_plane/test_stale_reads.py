"""A read of the API server's cache may be a version behind."""

from __future__ import annotations

import pytest

from simulation.control_plane.checker import outcome_of
from simulation.control_plane.deletions import MANIFOLD
from simulation.control_plane.run import Simulation
from simulation.control_plane.scenarios import SCENARIOS
from simulation.control_plane.workload import Scenario


@pytest.mark.parametrize("scenario", [*SCENARIOS, *MANIFOLD], ids=lambda s: s.name)
async def test_stale_reads_of_the_job_change_nothing(scenario: Scenario) -> None:
    stale = Simulation(scenario)
    stale.cluster.stale_reads = True
    assert outcome_of(await stale.run()) == outcome_of(await Simulation(scenario).run())
