"""A plan says the same wherever it is read: in the status, in the event, in the operator's log."""

import logging

import pytest

from cpr_operator.api.status import Status
from simulation.control_plane.failpoints import kill
from simulation.control_plane.run import Simulation
from simulation.control_plane.workload import Scenario, spec, trained


async def test_a_plan_says_the_same_in_status_event_and_log(caplog: pytest.LogCaptureFixture) -> None:
    job = spec(snapshots__interval={"mode": "Auto"}, failurePolicy__expectedJobMtbfSeconds=20)
    with caplog.at_level(logging.INFO, "cpr_operator"):
        life = await Simulation(
            Scenario("struck", ((trained(1200), kill("shard", 1)),), job, replaced=("shard/1",))
        ).run()
    plans = [status.plan for each in life.cluster.statuses if (status := Status.model_validate(each)).plan is not None]
    told = [event.message for event in life.cluster.events.values() if event.reason == "Planned"]
    # At the start, when the speed is known, and after the failure.
    assert len({plan.interval_seconds for plan in plans}) >= 3
    assert len(told) >= 3
    assert told[0] == plans[0].reason
    assert set(told) <= {plan.reason for plan in plans}
    logged = [message.removeprefix("job: Planned: ") for message in caplog.messages if ": Planned: " in message]
    assert logged == told
    for plan in plans:
        assert plan.reason
        assert plan.inputs["shards"] == 3
